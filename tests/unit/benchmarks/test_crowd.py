"""Who comes to the benchmark of challenges and traffic, and what an onlooker makes of what they send."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from benchmarks import tells
from benchmarks.crowd import PEOPLE, Visit, in_order, key_of, measured, people, verifier
from benchmarks.onlooker import Onlooker
from benchmarks.prompts import dealt
from swarm.core.ids import PeerId
from swarm.core.sampling import SamplingParams
from swarm.verification.challenges.challenge import Table
from swarm.verification.challenges.challenge_prompts import table_of
from swarm.wire.fields import DECODE_LANE
from swarm.wire.frames import encode_head
from swarm.wire.messages import Answer, Close, Hello, Message, Open, Step, Upstream
from swarm.wire.payload import pack_ids
from swarm.wire.session import Channel

CLIENT, BEFORE, SERVER, OTHER = (PeerId(name) for name in ("client", "before", "server", "other"))
HIDDEN = 6


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


def test_prompts_are_dealt_out() -> None:
    """Enough for each side, none twice, and whoever asks about other pages of the manual asks about no others."""
    sides = dealt(1)
    every = [*sides.people, *sides.alike, *sides.elsewhere]
    assert len(set(every)) == len(every)
    assert min(map(len, (sides.people, sides.alike, sides.elsewhere))) > 240
    longer = [np.mean([len(prompt) > 100 for prompt in side]) for side in (sides.people, sides.alike, sides.elsewhere)]
    assert longer == pytest.approx([0.5] * 3, abs=0.15)


def test_a_verifier_comes_as_people_do() -> None:
    """No prompt twice, as many sessions as asked for, one manner a client, and clients as long-lived as people's."""
    prompts = [f"prompt number {number}" for number in range(400)]
    crowd = people(key_of("p"), prompts, encode, 300)
    traffic = measured(key_of("m"), [20], ((1, 2), (3,)))
    checks = verifier("checks", key_of("v"), table_of(prompts, encode), traffic, 300)
    for visits in (crowd, checks):
        assert len({visit.challenge.prompt for visit in visits}) == len(visits) == 300
        manners: dict[str, set[tuple[int, float]]] = {}
        for visit in visits:
            how = visit.challenge.max_new_tokens, visit.challenge.sampling.temperature
            manners.setdefault(visit.client, set()).add(how)
        assert all(len(kinds) == 1 for kinds in manners.values())
        assert len(manners) == pytest.approx(200, abs=25)
    assert {visit.challenge.prompt[:2] for visit in checks} == {(1, 2)}
    with_lengths = measured(key_of("m"), [20, 30], ((), ()))
    walks = verifier("walks", key_of("w"), Table(tuple(encode("to be or not to be that is"))), with_lengths, 50)
    assert all(20 <= len(visit.challenge.prompt) <= 30 for visit in walks)


def test_the_schedule_tells_how_long_ago() -> None:
    crowd = people(key_of("p"), [f"prompt {number}" for number in range(100)], encode, 100)
    ordered = in_order(crowd)
    assert Counter(visit.client for visit in ordered) == Counter(visit.client for visit in crowd)
    first = [visit for visit in ordered if visit.client == f"{PEOPLE} 0"]
    for visit in first:
        assert visit.arrival[1] == pytest.approx(visit.at_s - first[0].at_s)
    assert all(after.at_s - before.at_s == after.arrival[2] for before, after in pairwise(ordered))


def send(looker: Onlooker, source: PeerId, channel: Channel, message: Message, payload: bytes = b"") -> None:
    looker.hook(source, SERVER, channel.protocol, encode_head(message, len(payload)) + payload)


def session(looker: Onlooker, rows: np.ndarray) -> None:
    """One session as a server in the middle gets it: a prompt of four rows, then one row."""
    opened = Open(1, "model", bytes(16), 1, 2, 4, False, False, 20, "", "raw", Upstream(BEFORE, bytes(16)), None,
                  bytes(16), bytes(32))  # fmt: skip
    send(looker, CLIENT, Channel.CONTROL, opened)
    send(looker, BEFORE, Channel.LINK, Hello(CLIENT, bytes(16), 1, bytes(16), DECODE_LANE))
    answer = Answer(4, SamplingParams(temperature=0.5))
    ids = pack_ids([5, 6, 7, 8])
    send(looker, BEFORE, Channel.LINK, Step(0, 0, 0, 0, 4, 1, True, 4, answer), ids + rows[:4].tobytes())
    send(looker, BEFORE, Channel.LINK, Step(0, 0, 1, 4, 1, 1, True), pack_ids([9]) + rows[4:].tobytes())
    looker.hook(SERVER, CLIENT, Channel.CONTROL.protocol, b"what the server says is not read")
    looker.hook(CLIENT, OTHER, Channel.CONTROL.protocol, b"nor what others hear")
    send(looker, CLIENT, Channel.CONTROL, Close())


def test_an_onlooker_sees_what_the_server_gets() -> None:
    looker = Onlooker(SERVER, HIDDEN)
    with pytest.raises(LookupError):
        _ = looker.latest
    rows = np.random.default_rng(0).normal(size=(5, HIDDEN)).astype("<f4")
    session(looker, rows)
    assert looker.closed.is_set()
    seen = looker.latest
    assert (seen.client, seen.number, seen.fetches_before, seen.prompt_rows) == (CLIENT, 0, 0, 4)
    assert seen.ids.tolist() == [5, 6, 7, 8, 9]
    assert tells.shape(seen)[:4] == [4, 1, 15, 16]
    assert tells.sampling(seen)[0] == 0.5
    assert tells.opening(seen)[0] == 20
    assert tells.activations(seen)[0] == pytest.approx(float(np.sqrt(np.mean(rows[0].astype(float) ** 2))))
    unit = rows[1:4] / np.linalg.norm(rows[1:4], axis=1, keepdims=True)
    assert tells.mean_row(seen) == pytest.approx(unit.mean(axis=0), abs=1e-6)
    looker.hook(CLIENT, SERVER, Channel.FETCH.protocol, b"")
    session(looker, rows)
    assert (looker.latest.number, looker.latest.fetches_before) == (1, 1)
    assert tells.client(looker.latest, (3.0,)) == [1, 1, 3.0]


def test_a_memory_knows_what_was_said() -> None:
    memory = tells.Memory()
    assert memory.known_share([1, 2, 3, 4, 5, 6]) == 0
    assert memory.known_share([1, 2, 3, 4, 5, 9]) == 0.5
    assert memory.known_share([7]) == 0


def test_visits_are_of_one_kind() -> None:
    visit = in_order(people(key_of("p"), ["one prompt"], encode, 1))[0]
    assert isinstance(visit, Visit)
    assert (visit.kind, visit.text, visit.arrival) == (PEOPLE, "one prompt", (0.0, 0.0, visit.at_s))
