"""Chains from what each server tells of its stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sights import LABELS, NOW_S, PEERS, UNREACHED, figures, heard, report, server, sight

from swarm.core.ids import PeerId
from swarm.health.picture.chains import LOYAL_S, MAX_CHAINS, QUIET_S, chains_of
from swarm.health.sight import Heard, Repute
from swarm.health.state import ChainState
from swarm.wire.status import WINDOW_S, StageFigures

SPANS = ((0, 2), (2, 4), (4, 6))
THREE = [server(number, *span) for number, span in enumerate(SPANS)]


def told(*stages: StageFigures, **changes: Any) -> Heard:
    return heard(report(chains=stages), **changes)


def everybody(**changes: Any) -> dict[PeerId, Heard]:
    return {PEERS[number]: told(figures(*span, **changes)) for number, span in enumerate(SPANS)}


def chains(
    answers: Mapping[PeerId, Heard], servers: Sequence[Any] = THREE, known: Sequence[ChainState] = ()
) -> list[ChainState]:
    kept = {chain.label: frozenset(stage.peer for stage in chain.stages) for chain in known}
    return chains_of(sight(servers, heard=answers, chains=kept))


def test_stages_of_one_label_are_one_chain() -> None:
    [chain] = chains(everybody())
    assert chain.complete
    assert chain.label == LABELS[0].hex()
    assert [(stage.peer, stage.start, stage.end) for stage in chain.stages] == [
        (PEERS[number], *span) for number, span in enumerate(SPANS)
    ]
    assert (chain.period_s, chain.tokens_per_s, chain.open_s) == (0.2, 5.0, 10.0)
    assert chain.elsewhere_s == pytest.approx(0.2 - 3 * 0.04)
    assert chain.stages[0].figures_at == NOW_S - 0.1


def test_what_is_left_over_is_never_negative() -> None:
    [chain] = chains(everybody(compute_s=0.1))
    assert chain.elsewhere_s == 0.0


def test_times_that_cannot_be_are_not_shown_and_nothing_is_left_of_them() -> None:
    """A step of 0.2 s was not computed for an hour at one of its servers; the others are believed as before."""
    liar = {PEERS[1]: told(figures(2, 4, compute_s=3600.0))}
    [chain] = chains(everybody() | liar)
    assert [stage.compute_s for stage in chain.stages] == [0.02, None, 0.02]
    assert (chain.stages[1].wait_s, chain.stages[1].send_s, chain.elsewhere_s) == (None, None, None)
    assert chain.tokens_per_s == 5.0


def test_who_was_ejected_tells_of_no_chain() -> None:
    seen = sight(THREE, heard=everybody(), repute={PEERS[1]: Repute(ejected=True)})
    [chain] = chains_of(seen)
    assert not chain.complete
    assert PEERS[1] not in {stage.peer for stage in chain.stages}


def test_chains_that_a_crowd_at_one_place_makes_up_leave_the_others_room() -> None:
    """Whole ones, each, and of this very moment."""
    crowd = [server(number, 0, 6) for number in range(10, 40)]
    made_up = {
        one.peer: told(
            *(figures(0, 6, bytes([number]) * 7 + bytes([label]), age_s=0.0) for label in range(60)),
            network="203.0.113.0/24",
        )
        for number, one in enumerate(crowd)
    }
    honest = {
        peer: replace(one, network=f"198.51.{number}.0/24") for number, (peer, one) in enumerate(everybody().items())
    }
    found = chains(made_up | honest, [*THREE, *crowd])
    assert len(found) == MAX_CHAINS
    assert LABELS[0].hex() in {chain.label for chain in found}
    assert [chain.stages[0].figures_at for chain in found] == sorted(
        (chain.stages[0].figures_at for chain in found), reverse=True
    )


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_chain_of_which_a_stage_is_unheard_of_is_not_complete(lost: int) -> None:
    for note in (UNREACHED, Heard(reached=True, note="off"), told()):
        [chain] = chains(everybody() | {PEERS[lost]: note})
        assert not chain.complete
        assert chain.elsewhere_s is None
        assert len(chain.stages) == 2
        assert chain.tokens_per_s == 5.0


def test_a_step_that_a_starting_server_takes_by_itself_is_no_chain() -> None:
    probe = figures(2, 4, period_s=None)
    assert chains({PEERS[1]: told(probe)}) == []
    assert len(chains(everybody(period_s=None))) == 1, "a chain that begins is whole, and shown"


def test_two_labels_are_two_chains_the_latest_first() -> None:
    older = [figures(*span, LABELS[1], age_s=3.0) for span in SPANS]
    both = {PEERS[number]: told(older[number], figures(*span)) for number, span in enumerate(SPANS)}
    assert [chain.label for chain in chains(both)] == [LABELS[0].hex(), LABELS[1].hex()]


def test_only_layers_a_server_announces_count() -> None:
    assert chains({PEERS[0]: told(figures(0, 6), figures(2, 4), figures(1, 4000, LABELS[1]))}) == []
    outside = [server(0, 0, 6, layers=6)]
    assert chains({PEERS[0]: told(figures(0, 7))}, outside) == []


def test_after_a_heal_the_newcomer_is_the_stage() -> None:
    healer = [*THREE, server(3, 2, 4)]
    before = chains(everybody(), healer)
    after = everybody() | {PEERS[1]: told(figures(2, 4, age_s=LOYAL_S + 2)), PEERS[3]: told(figures(2, 4, age_s=0.1))}
    [chain] = chains(after, healer, before)
    assert chain.complete
    assert chain.stages[1].peer == PEERS[3]


@pytest.mark.parametrize("age_s", [0.5, WINDOW_S - 1])
def test_who_claims_a_place_later_waits_until_the_first_falls_silent(age_s: float) -> None:
    """Also while the whole chain waits for its client, and whatever times the newcomer claims."""
    crowd = [*THREE, server(3, 2, 4)]
    before = chains(everybody(), crowd)
    late = everybody(age_s=age_s) | {PEERS[3]: told(figures(2, 4, age_s=0.0, compute_s=3600.0))}
    [chain] = chains(late, crowd, before)
    assert [stage.peer for stage in chain.stages] == PEERS[:3]


def test_a_claim_that_leads_nowhere_is_passed_over() -> None:
    """A later claim to layers 0 to 3 meets no follower; the one to 0 and 1 does."""
    servers = [*THREE, server(3, 0, 4)]
    both = everybody() | {PEERS[3]: told(figures(0, 3, age_s=0.0))}
    [chain] = chains(both, servers)
    assert chain.complete
    assert [stage.peer for stage in chain.stages] == PEERS[:3]


def test_old_steps_are_dropped_and_a_waiting_chain_makes_no_tokens() -> None:
    assert chains(everybody(age_s=WINDOW_S + 1)) == []
    assert chains({peer: replace(one, report_at=NOW_S - WINDOW_S) for peer, one in everybody().items()}) == []
    [chain] = chains(everybody(age_s=QUIET_S + 1))
    assert (chain.tokens_per_s, chain.period_s) == (None, 0.2)


@pytest.mark.parametrize("period_s", [None, 0.0, 1e-300, 3600.0])
def test_a_period_that_cannot_be_is_none(period_s: float | None) -> None:
    [chain] = chains(everybody(period_s=period_s))
    assert (chain.period_s, chain.tokens_per_s, chain.elsewhere_s) == (None, None, None)


def test_there_are_not_more_than_a_page_can_show() -> None:
    many = [server(0, 0, 6), server(1, 0, 6)]
    labels = [index.to_bytes(8, "big") for index in range(1, 2 * MAX_CHAINS + 1)]
    half = {PEERS[0]: told(*(figures(0, 6, label) for label in labels[:MAX_CHAINS]))}
    rest = {PEERS[1]: told(*(figures(0, 5, label, age_s=0.0) for label in labels[MAX_CHAINS:]))}
    found = chains(half | rest, many)
    assert len(found) == MAX_CHAINS
    assert all(chain.complete for chain in found), "they come before those that are not"


@given(st.permutations(range(3)))
def test_the_order_of_servers_says_nothing(order: list[int]) -> None:
    assert chains(everybody(), [THREE[place] for place in order]) == chains(everybody())
