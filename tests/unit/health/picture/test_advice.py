"""What to host next, and the command that a volunteer copies."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.spans import Span
from swarm.health.picture.advice import MAX_ADVICE, MAX_CONTACTS, advice, command, contacts, model_name
from swarm.models.demo import SMOLLM2

ANNA, BERT, CARL = (Identity(bytes([number]) * 32).peer_id for number in (1, 2, 3))
PUBLIC, PRIVATE, OWN = "/ip4/203.0.112.7/tcp/31337", "/ip4/192.168.1.5/tcp/31337", "/ip4/127.0.0.1/tcp/31337"
MODEL = "org/model@0123456789abcdef0123456789abcdef01234567#0123456789abcdef"
CONTACTS = [f"{PUBLIC}/p2p/{ANNA}"]
replica_counts = st.lists(st.integers(0, 3), max_size=40)
spans = st.tuples(st.integers(0, 50), st.integers(1, 20)).map(lambda pair: Span(pair[0], pair[0] + pair[1]))


@given(replica_counts, st.lists(spans, max_size=3))
def test_it_names_layers_of_the_model_alone_each_once_holes_first(counts: list[int], slowest: list[Span]) -> None:
    told = advice(counts, slowest, MODEL, CONTACTS)
    assert len(told) <= MAX_ADVICE
    layers = [layer for one in told for layer in range(one.start, one.end)]
    assert all(0 <= layer < len(counts) for layer in layers)
    worst = [min(min(counts[one.start : one.end]), 2) for one in told]
    assert worst == sorted(worst)
    needy = [one for one, least in zip(told, worst, strict=True) if least < 2]
    assert all(len(set(counts[one.start : one.end])) == 1 for one in needy), "each is a stretch of equal layers"
    if 0 in counts:
        assert counts[told[0].start] == 0
    for one in told:
        words = shlex.split(one.command)
        assert words[:7] == [
            "python",
            "-m",
            "swarm.server",
            "--model",
            model_name(MODEL),
            "--initial-peers",
            CONTACTS[0],
        ]
        assert words[7:] in ([], ["--blocks", f"{one.start}:{one.end}"])
        assert one.reason


def test_holes_then_single_servers_then_slow_layers() -> None:
    told = advice([2, 0, 1, 1, 2, 2], [Span(4, 5)], MODEL, CONTACTS)
    assert [(one.start, one.end) for one in told] == [(1, 2), (2, 4), (4, 5)]
    assert [one.reason for one in told] == [
        "Nobody serves layer 1: without it there are no answers.",
        "Nobody stands by for layers 2 to 3: when one server goes, answers stop.",
        "Layer 4 is slowest: one more server there makes answers faster.",
    ]


def test_a_large_part_is_left_to_the_server_to_choose() -> None:
    [whole] = advice([0] * 6, [], MODEL, CONTACTS)
    assert whole.reason == "Nobody serves this model: every layer is missing."
    assert "--blocks" not in whole.command
    assert "--blocks 0:3" in command(MODEL, CONTACTS, Span(0, 3), 6)
    assert "--blocks" not in command(MODEL, CONTACTS, Span(0, 4), 6)
    assert "--blocks 0:1" in command(MODEL, CONTACTS, Span(0, 1), 1)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        (MODEL, MODEL.partition("#")[0]),
        (f"{SMOLLM2.name}@{SMOLLM2.revision}#0123456789abcdef", "demo"),
        (f"{SMOLLM2.name}@another#0123456789abcdef", f"{SMOLLM2.name}@another"),
        ("tiny@local#0123456789abcdef", "path/to/tiny"),
        ("--quantization@main#0123456789abcdef", "NAME"),
        ("$(reboot)@main#0123456789abcdef", "NAME"),
        ("a/b/c@main#0123456789abcdef", "NAME"),
        ("../../etc@main#0123456789abcdef", "NAME"),
        ("tiny@`id`#0123456789abcdef", "NAME"),
        ("nothing", "NAME"),
    ],
)
def test_the_model_is_named_so_that_a_server_finds_it(model: str, name: str) -> None:
    assert model_name(model) == name


@given(st.text(min_size=1, max_size=30), st.text(min_size=1, max_size=10))
def test_no_name_of_a_stranger_is_more_than_one_plain_word_of_the_command(name: str, revision: str) -> None:
    try:
        model = ModelId(name, revision, "0123456789abcdef")
    except Exception:
        return
    text = command(str(model), CONTACTS, Span(0, 1), 4)
    words = shlex.split(text)
    assert len(words) == 9
    assert not words[4].startswith("-")
    assert text == " ".join(words), "nothing in it needed to be quoted"


def test_addresses_that_most_can_dial_come_first_and_own_before_others() -> None:
    mine = [f"{OWN}/p2p/{ANNA}"]
    theirs = [[f"{PRIVATE}/p2p/{BERT}", f"{PUBLIC}/p2p/{BERT}"], [f"{PRIVATE}/p2p/{CARL}"]]
    assert contacts(mine, theirs) == [f"{PUBLIC}/p2p/{BERT}", f"{PRIVATE}/p2p/{CARL}"]
    assert contacts([f"{PUBLIC}/p2p/{ANNA}"], theirs) == [f"{PUBLIC}/p2p/{ANNA}", f"{PUBLIC}/p2p/{BERT}"]
    assert contacts(mine, []) == mine
    assert contacts([], []) == []


def test_what_is_no_address_or_says_not_whose_is_left_out() -> None:
    odd = f"{PUBLIC}; reboot/p2p/{BERT}", f"/ip4/1.2.3.4/tcp/99999999/p2p/{BERT}", f"/dns4/$(id)/tcp/1/p2p/{BERT}"
    odder = f"/dns4/a&b/tcp/1/p2p/{BERT}", f"/ip6/fe80::1%$(id)/tcp/1/p2p/{BERT}", f"{PUBLIC}/p2p/{BERT}\n"
    for address in (PUBLIC, "/p2p/x", *odd, *odder):
        assert contacts([], [[address]]) == []
    assert contacts([f"{PUBLIC}/p2p/{ANNA}"] * 3, [[f"{PRIVATE}/p2p/{ANNA}"]]) == [f"{PUBLIC}/p2p/{ANNA}"]
    assert len(contacts([f"{PUBLIC}/p2p/{peer}" for peer in (ANNA, BERT, CARL)], [])) == MAX_CONTACTS


def test_without_an_address_its_place_is_shown() -> None:
    assert "--initial-peers ADDRESS --blocks" in command(MODEL, [], Span(0, 1), 4)
