"""Challenges: the same for anyone from the seed, opened like any session, and shaped like traffic."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import BadSignatureError, ConfigError, ProtocolViolation
from swarm.core.sampling import SamplingParams
from swarm.verification.challenges.challenge import (
    Draws,
    Manner,
    Table,
    Traffic,
    check_challenge,
    make_challenge,
    one_client,
    walk,
    words,
)
from swarm.verification.challenges.challenge_text import TEXT
from swarm.verification.challenges.commitment import commit

SEED = bytes(range(32))
TABLE = Table((5, 6, 7, 5, 8, 6, 9, 5, 7))
MANNERS = (Manner(5), Manner(50, SamplingParams(temperature=0.7)))
TRAFFIC = Traffic((0.1, 2.0), MANNERS, (1, 4), (10, 30, 200), prefix=(1,), suffix=(2, 3))
PROMPTS = Table((5, 6, 7, 8, 9, 5), prompts=(3, 1, 2))
seeds = st.binary(min_size=32, max_size=32)
tables = st.builds(
    Table, st.lists(st.integers(0, 9), min_size=2, max_size=40).map(tuple), st.integers(1, 4),
)  # fmt: skip


def test_the_frozen_challenge() -> None:
    """Other values here mean that revealed seeds no longer show what was sent: that takes a new tag."""
    assert walk(SEED, 12, TABLE) == (5, 8, 6, 9, 5, 6, 7, 5, 8, 6, 9, 5)
    assert words(SEED, 12) == "Who decides when the owner of the work was done by hand."
    assert TABLE.digest().hex() == "d4f03ebcb7c245d592a7893d25d51cbce324c651d74ceee1940b1d87be45da54"
    made = make_challenge(SEED, TABLE, TRAFFIC)
    assert made.prompt == (1, 5, 8, 6, 9, 5, 6, 7, 5, 8, 6, 9, 5, 8, 6, 9, 5, 7, 2, 3)
    assert (made.max_new_tokens, made.sampling.temperature) == (50, 0.7)
    assert (made.wait_s, made.sampling.seed) == (0.4375373849401699, 124296410241246)
    assert PROMPTS.digest().hex() == "2028d16a5f0d0b1372faa1aa90d73cf6b661b139a0fe8c1ab2090a3700bbaada"
    assert make_challenge(SEED, PROMPTS, TRAFFIC).prompt == (1, 8, 2, 3)


def test_it_opens_like_any_session() -> None:
    made = make_challenge(SEED, TABLE, TRAFFIC)
    assert made.commitment == commit(SEED)
    check_challenge(made.commitment, SEED, made.prompt, TABLE, (1, 2))


@given(seeds, seeds, tables, st.integers(1, 60))
def test_nobody_passes_off_something_else(seed: bytes, other: bytes, table: Table, count: int) -> None:
    prompt = walk(seed, count, table)
    check_challenge(commit(seed), seed, prompt, table)
    if seed != other:
        with pytest.raises(BadSignatureError):
            check_challenge(commit(seed), other, prompt, table)
    for wrong in ((*prompt[:-1], prompt[-1] + 1), ()):
        with pytest.raises(ProtocolViolation):
            check_challenge(commit(seed), seed, wrong, table)
    with pytest.raises(ProtocolViolation):
        check_challenge(commit(seed), seed, prompt, table, (-1, 0))


@given(seeds, tables, st.integers(0, 60), st.integers(0, 60))
def test_a_walk_follows_its_text(seed: bytes, table: Table, count: int, more: int) -> None:
    found = walk(seed, count + more, table)
    assert len(found) == count + more
    assert found[:count] == walk(seed, count, table)
    known = set(pairwise(table.ids))
    ends = table.ids[-1]  # nothing may follow that one: then the walk begins again
    assert all(pair in known or pair[0] == ends for pair in pairwise(found))


def test_the_last_tokens_decide_as_often_as_in_the_text() -> None:
    """After 5 come 6, 8 and 7, once each; with the token before it known, only what came then: 9 5 → 7."""
    assert sorted(TABLE.followers([5])) == [6, 7, 8]
    assert TABLE.followers([9, 5]) == [7]
    assert TABLE.followers([6, 5]) == TABLE.followers([5])  # never seen: one token less
    assert TABLE.followers([4]) == list(TABLE.ids)
    assert Table(TABLE.ids, starts=(8,)).followers([]) == [8]
    counted = Counter(pairwise(walk(SEED, 6000, Table(TABLE.ids, order=1))))
    assert counted[5, 6] == pytest.approx(counted[5, 8], rel=0.15)


def test_walks_of_two_seeds_part() -> None:
    texts = {words(bytes([number]) * 32, 30) for number in range(50)}
    assert len(texts) == 50
    assert all(text[0].isupper() for text in texts)
    assert all(set(text.split()) <= set(TEXT.split()) for text in texts)


def test_draws_are_uniform_and_of_one_purpose() -> None:
    draws, other = Draws(SEED, "text"), Draws(SEED, "shape")
    found = np.array([draws.uniform() for _ in range(4000)])
    assert found[:10].tolist() != [other.uniform() for _ in range(10)]
    assert np.histogram(found, 10, (0, 1))[0] == pytest.approx(400, rel=0.2)
    assert sorted({draws.below(3) for _ in range(100)}) == [0, 1, 2]


def test_shapes_are_those_of_traffic() -> None:
    """Mean and spread of 800 challenges' lengths and times are those of the samples, and none lies outside."""
    rng = np.random.default_rng(1)
    lengths, gaps = np.exp(rng.normal(3, 0.7, 300)).astype(int) + 1, rng.exponential(2.0, 300)
    manners = (Manner(256), Manner(64, SamplingParams(temperature=0.7, top_p=0.9)))
    traffic = Traffic(tuple(gaps.tolist()), manners, prompt_tokens=tuple(lengths.tolist()))
    made = [make_challenge(number.to_bytes(32, "big"), TABLE, traffic) for number in range(800)]
    for samples, drawn in (
        (lengths, np.array([len(challenge.prompt) for challenge in made])),
        (gaps, np.array([challenge.wait_s for challenge in made])),
    ):
        assert samples.min() <= drawn.min() <= drawn.max() <= samples.max()
        assert np.quantile(drawn, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(samples, [0.1, 0.5, 0.9]), rel=0.2)
    asked = Counter((challenge.max_new_tokens, challenge.sampling.temperature) for challenge in made)
    assert set(asked) == {(256, 0.0), (64, 0.7)}  # what belongs together stays together
    assert asked[64, 0.7] == pytest.approx(400, abs=80)
    assert len({challenge.sampling.seed for challenge in made}) == 800


def test_a_prompt_of_the_verifiers_is_sent_as_it_stands() -> None:
    """Each of them as often, whole, between what the template puts around it."""
    made = [make_challenge(number.to_bytes(32, "big"), PROMPTS, TRAFFIC) for number in range(900)]
    counted = Counter(challenge.prompt for challenge in made)
    assert set(counted) == {(1, 5, 6, 7, 2, 3), (1, 8, 2, 3), (1, 9, 5, 2, 3)}
    assert min(counted.values()) > 240
    for challenge in made[:20]:
        check_challenge(challenge.commitment, challenge.seed, challenge.prompt, PROMPTS, (1, 2))
        other = next(prompt for prompt in counted if prompt != challenge.prompt)
        with pytest.raises(ProtocolViolation):
            check_challenge(challenge.commitment, challenge.seed, other, PROMPTS, (1, 2))


def test_one_client_asks_in_one_manner() -> None:
    """All of an identity's challenges do; over identities manners and numbers of sessions are those of traffic."""
    drawn = [one_client(number.to_bytes(32, "big"), TRAFFIC) for number in range(400)]
    assert Counter(sessions for _, sessions in drawn)[4] == pytest.approx(200, abs=50)
    assert Counter(narrow.manners for narrow, _ in drawn)[MANNERS[1:]] == pytest.approx(200, abs=50)
    narrow = next(narrow for narrow, _ in drawn if narrow.manners == MANNERS[1:])
    assert all(make_challenge(bytes([n]) * 32, TABLE, narrow).max_new_tokens == 50 for n in range(20))


def test_a_template_longer_than_the_prompt_leaves_one_token() -> None:
    short = make_challenge(SEED, TABLE, Traffic((0.0,), MANNERS, prompt_tokens=(1,), prefix=(1, 1), suffix=(2, 2)))
    assert len(short.prompt) == 5


def test_what_cannot_be() -> None:
    for ids, order in (((5,), 1), ((5, -1), 1), ((5, 2**32), 1), ((5, 6), 0), ((5, 6), 9)):
        with pytest.raises(ConfigError):
            Table(ids, order)
    for prompts in ((5,), (2, 0), (1, 2)):  # not all of the ids, an empty one, more than the ids
        with pytest.raises(ConfigError):
            Table((5, 6), prompts=prompts)
    for changes in (
        {"manners": ()}, {"manners": (Manner(0),)}, {"sessions": (0,)}, {"prompt_tokens": (0,)}, {"gaps_s": (-1.0,)},
        {"gaps_s": (float("nan"),)},
    ):  # fmt: skip
        with pytest.raises(ConfigError):
            Traffic(**({"gaps_s": (1.0,), "manners": MANNERS} | changes))
    with pytest.raises(ConfigError):
        make_challenge(SEED, TABLE, Traffic((1.0,), MANNERS))  # how long is a walk?
    with pytest.raises(ConfigError):
        Draws(bytes(31), "text")
    with pytest.raises(ConfigError):
        walk(SEED, -1, TABLE)


@given(tables, tables)
def test_tables_have_their_own_digests(one: Table, other: Table) -> None:
    assert (one.digest() == other.digest()) == (one == other)
    assert Table(one.ids, one.order, (1,)).digest() != Table((1, *one.ids), one.order).digest()
    assert len({Table((1, 2, 3), prompts=lengths).digest() for lengths in ((), (3,), (1, 2), (2, 1))}) == 4
