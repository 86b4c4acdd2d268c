"""A few servers tell the index of each model, whoever joins when."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from swarm.core.model_entry import ModelEntry
from swarm.dht.model_index import ENTRIES_PER_MODEL, one_per_model, should_list

MODEL, OTHER = "demo@main#0123456789abcdef", "other@main#0123456789abcdef"


def entry(peer: str, model: str = MODEL) -> ModelEntry:
    return ModelEntry(model=model, peer=peer, instance=1, sequence=1, expires_s=1.0, layer_count=30)


def test_a_newcomer_lists_its_model_only_if_fewer_than_four_do() -> None:
    named = [entry(f"peer {n}") for n in range(4)]
    assert should_list([], MODEL, "new")
    assert should_list(named[:3], MODEL, "new")
    assert not should_list(named, MODEL, "new")
    assert should_list(named, OTHER, "new")
    assert not should_list(named[:1], MODEL, "new", wanted=1)


def test_those_that_list_it_go_on() -> None:
    named = [entry(f"peer {n}") for n in range(4)]
    assert all(should_list(named, MODEL, one.peer) for one in named)


@given(st.sets(st.text(min_size=1, max_size=9), min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_of_many_that_joined_at_once_four_remain_and_all_agree_which(peers: set[str], chance: Random) -> None:
    entries = [entry(peer) for peer in sorted(peers)] + [entry("stranger", OTHER)]
    staying = {peer for peer in peers if should_list(entries, MODEL, peer)}
    assert len(staying) == min(len(peers), ENTRIES_PER_MODEL)
    chance.shuffle(entries)
    assert staying == {peer for peer in peers if should_list(entries, MODEL, peer)}
    left = [one for one in entries if one.peer in staying]
    assert all(should_list(left, MODEL, peer) for peer in staying)


def test_a_reader_is_told_every_model_once_in_order() -> None:
    entries = [entry("b", OTHER), entry("c"), entry("a"), entry("b")]
    told = one_per_model(entries)
    assert [(one.model, one.peer) for one in told] == [(MODEL, "c"), (OTHER, "b")]
    assert told == one_per_model(reversed(entries))
