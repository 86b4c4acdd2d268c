"""From what is known of a model to what people see: laws for anything strangers may say, and the cases by hand."""

from __future__ import annotations

import shlex
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from sights import MODEL, NOW_S, PEERS, UNREACHED, built, few, heard, histogram, report, server, sight, sights

from swarm.core.announcement import Reach, State
from swarm.core.numerics import Numerics
from swarm.health.picture.building import (
    AUDITORS,
    FIGURES_S,
    MOST_SESSIONS,
    MOST_TOKENS_PER_S,
    NO_PREDICTION,
    build,
    condition,
    predict,
    replicas,
)
from swarm.health.picture.links import MAX_OF_ONE
from swarm.health.sight import NOTHING_HEARD, Heard, Repute, Sight
from swarm.health.state import CoverageState, ModelState
from swarm.scheduling.coverage import holders

THREE = [server(0, 0, 2), server(1, 2, 4), server(2, 4, 6)]


def stretches(model: ModelState) -> list[tuple[int, int, int, int]]:
    return [(one.start, one.end, one.replicas, one.silent) for one in model.coverage]


@few
@given(sights())
def test_whatever_strangers_say_makes_a_state_that_holds_together(seen: Sight) -> None:
    serving = replicas(seen)
    model = build(seen, predict(seen, serving))
    # coverage tiles the model, neighbours differ, and it counts exactly who may be counted
    edges = [(one.start, one.end) for one in model.coverage]
    assert [edge for pair in edges for edge in pair] == sorted(edge for pair in edges for edge in pair)
    assert edges[0][0] == 0
    assert edges[-1][1] == seen.layers
    assert all(one.end == other.start for one, other in pairwise(model.coverage))
    assert all((a.replicas, a.silent) != (b.replicas, b.silent) for a, b in pairwise(model.coverage))
    counted = {one.peer for one in model.servers if one.condition == "serving"}
    spans = [listing.announcement.span for listing in serving]
    assert counted == {listing.peer for listing in serving}
    shown = [one.replicas for one in model.coverage for _ in range(one.start, one.end)]
    assert shown == holders(spans, seen.layers)
    # what counts was reached, or not tried; and is not ejected
    for one in model.servers:
        if one.condition == "serving":
            assert one.reached is not False
            assert not one.standing.ejected
    assert {(a, b) for a, b in model.missing} == {(one.start, one.end) for one in _merged(model) if not one.replicas}
    assert model.usable == (not model.missing and model.tokens_per_s is not None)
    assert model.sentence.startswith("Usable now: " if model.usable else "Not usable: ")
    _check_parts(seen, model, counted)
    # and it travels as JSON, to the same again
    text = msgspec.json.encode(model)
    assert b"Infinity" not in text
    assert msgspec.json.decode(text, type=ModelState) == model


def _check_parts(seen: Sight, model: ModelState, counted: set[str]) -> None:
    """Chains, links and advice stay within the model, and nothing is negative."""
    for chain in model.chains:
        assert chain.elsewhere_s is None or chain.elsewhere_s >= 0
        assert all(0 <= stage.start < stage.end <= seen.layers for stage in chain.stages)
        if chain.complete:
            assert [stage.start for stage in chain.stages] == [0, *(stage.end for stage in chain.stages[:-1])]
            assert chain.stages[-1].end == seen.layers
    for source in {link.source for link in model.links}:
        assert sum(link.source == source for link in model.links) <= MAX_OF_ONE
    assert {peer for link in model.links for peer in (link.source, link.target)} <= counted
    assert all(link.source != link.target and link.rtt_s >= 0 for link in model.links)
    for advice in model.advice:
        assert 0 <= advice.start < advice.end <= seen.layers
        assert shlex.split(advice.command)[:5] == ["python", "-m", "swarm.server", "--model", "demo@main"]


def _merged(model: ModelState) -> list[CoverageState]:
    """Stretches of replicas alone."""
    merged: list[CoverageState] = []
    for one in model.coverage:
        start = merged.pop().start if merged and merged[-1].replicas == one.replicas else one.start
        merged.append(CoverageState(start=start, end=one.end, replicas=one.replicas, silent=0))
    return merged


def test_a_whole_swarm() -> None:
    model = built(THREE)
    assert stretches(model) == [(0, 6, 1, 0)]
    assert model.usable
    assert (model.tokens_per_s, model.knee_sessions, model.sessions, model.fullness) == (10.0, 9.0, 0, 0.0)
    assert (
        model.sentence
        == "Usable now: about 10 tokens/s for a new session; 0 of about 9 sessions before it gets slower."
    )
    assert [one.short for one in model.servers] == [PEERS[number][-8:] for number in range(3)]
    assert (model.model, model.name, model.layers) == (MODEL, "demo", 6)


@pytest.mark.parametrize(
    ("changes", "told", "ejected", "word"),
    [
        ({}, NOTHING_HEARD, False, "serving"),
        ({}, heard(), False, "serving"),
        ({}, Heard(reached=True, note="off"), False, "serving"),
        ({}, UNREACHED, False, "silent"),
        ({}, heard(), True, "ejected"),
        ({"measured": None}, heard(), False, "silent"),
        ({"measured": {"expires_s": NOW_S}}, heard(), False, "silent"),
        ({"state": State.JOINING, "measured": None}, UNREACHED, False, "joining"),
        ({"state": State.DRAINING}, heard(), False, "draining"),
        ({"state": State.DRAINING}, UNREACHED, False, "silent"),
        ({"state": State.DRAINING, "measured": None}, heard(), False, "draining"),
        ({"state": State.DRAINING}, NOTHING_HEARD, False, "draining"),
        ({"state": State.DRAINING, "measured": None}, NOTHING_HEARD, False, "silent"),
        ({"reach": Reach.UNREACHABLE}, heard(), False, "silent"),
        ({"gone": True}, heard(), False, "silent"),
        ({"gone": True}, heard(), True, "ejected"),
    ],
)
def test_a_servers_condition_in_one_word(changes: dict[str, object], told: Heard, ejected: bool, word: str) -> None:
    assert condition(server(0, 0, 2, **changes), told, ejected=ejected, as_of=NOW_S) == word


@pytest.mark.parametrize(
    ("changes", "told"),
    [({}, UNREACHED), ({"measured": {"expires_s": NOW_S}}, heard()), ({"measured": None}, UNREACHED)],
)
def test_of_who_is_silent_no_old_figure_is_told(changes: dict[str, object], told: Heard) -> None:
    """However it fell silent: with metrics that have not run out yet, with old ones, without any."""
    [one] = built([server(0, 0, 6, **changes)], heard={PEERS[0]: told}).servers
    assert one.condition == "silent"
    measured = one.tau_s, one.fixed_s, one.prefill_tokens_per_s, one.kv_free_tokens, one.sessions, one.queued_steps
    assert (*measured, one.uplink_mbps) == (None,) * 7


def test_who_cannot_be_reached_or_was_ejected_only_claims_its_layers() -> None:
    told = {PEERS[0]: heard(), PEERS[1]: UNREACHED, PEERS[2]: heard()}
    model = built(THREE, heard=told, repute={PEERS[2]: Repute(ejected=True, proofs=("ab",))})
    assert stretches(model) == [(0, 2, 1, 0), (2, 6, 0, 1)]
    assert model.missing == [(2, 6)]
    assert model.sentence == "Not usable: nobody serves layers 2 to 5."
    assert model.tokens_per_s is None
    assert [one.condition for one in model.servers] == ["serving", "silent", "ejected"]
    assert model.servers[2].standing.proofs == ["ab"]


def test_a_server_that_is_joining_claims_nothing() -> None:
    assert stretches(built([*THREE, server(3, 0, 6, state=State.JOINING)])) == [(0, 6, 1, 0)]


def test_without_servers_and_without_layers() -> None:
    assert built([], 6, step_s=None).sentence == "Not usable: nobody serves it at present."
    nothing = built([], 0, step_s=None)
    assert (nothing.coverage, nothing.missing, nothing.advice, nothing.usable) == ([], [], [], False)


def test_sessions_are_bounded_by_the_layer_with_the_fewest() -> None:
    """Each session passes every layer, so a liar at one layer makes them no more."""
    busy = [server(number, start, start + 2, measured={"sessions": 3}) for number, start in enumerate((0, 2, 4))]
    assert built(busy).sessions == 3
    assert built([*busy, server(3, 2, 4, measured={"sessions": 2**31})]).sessions == 3
    assert built([*busy, server(3, 0, 6, measured={"sessions": 2**31})]).sessions == 3 + MOST_SESSIONS


def test_tokens_served_are_bounded_by_the_rows_of_layers_that_tell() -> None:
    honest = report(decode_rows=600, answers=0)
    tail, liar = report(decode_rows=600, answers=600), report(decode_rows=2**62, answers=2**62)
    told = {PEERS[0]: heard(honest), PEERS[1]: heard(honest), PEERS[2]: heard(tail)}
    assert built(THREE, heard=told).served_tokens_per_s == 10.0
    assert built(THREE, heard=told | {PEERS[2]: heard(liar)}).served_tokens_per_s == 10.0
    off = Heard(reached=True, note="off")
    assert built(THREE, heard=told | {PEERS[0]: off}).served_tokens_per_s == 10.0
    everything = [server(number, 0, 6) for number in range(2)]
    huge = heard(report(answers=2**62, decode_rows=2**62))
    assert built(everything, heard={PEERS[0]: huge}).served_tokens_per_s == MOST_TOKENS_PER_S, "also who holds all"
    assert built(THREE, heard={}).served_tokens_per_s is None


def test_step_times_are_of_all_servers_and_one_weighs_little_more_than_the_others() -> None:
    honest, liar = report(step_s=histogram(b3=100)), report(step_s=histogram(b12=2**62))
    told = {PEERS[0]: heard(honest), PEERS[1]: heard(honest), PEERS[2]: heard(honest)}
    model = built(THREE, heard=told)
    assert model.step_p50_s == pytest.approx(0.0075)
    many = [server(number, 0, 6) for number in range(6)]
    told = {one.peer: heard(honest) for one in many} | {PEERS[0]: heard(liar)}
    assert built(many, heard=told).step_p50_s == pytest.approx(0.0095, rel=0.1)
    assert built(many, heard=told).step_p99_s == pytest.approx(10.0, rel=0.1), "its own word all the same"


def test_old_figures_are_not_shown() -> None:
    old = {PEERS[0]: heard(report(), report_at=NOW_S - FIGURES_S - 1, note="busy")}
    first, second, _ = built(THREE, heard=old).servers
    assert (first.stats, first.stats_note) == (None, "busy")
    assert (second.stats, second.stats_note, second.reached) == (None, "", None)


def test_spot_checkable_are_those_whose_layers_enough_others_hold_alike() -> None:
    others = [server(number, 2, 6) for number in range(3, 3 + AUDITORS)]
    model = built([*THREE, *others])
    checkable = {one.peer for one in model.servers if one.standing.spot_checkable}
    assert checkable == {PEERS[1], PEERS[2]}, "of the others each has but one that holds all its layers"
    int8 = [server(number, 2, 6, numerics=Numerics("float32", "int8")) for number in range(3, 3 + AUDITORS)]
    assert not any(one.standing.spot_checkable for one in built([*THREE, *int8]).servers)
    without = [server(number, 0, 2, embeddings=False) for number in range(3, 3 + AUDITORS)]
    assert {one.peer for one in built([*THREE, *without]).servers if one.standing.spot_checkable} == {
        one.peer for one in without if AUDITORS > 2
    }
    trusted = built(THREE, repute={PEERS[0]: Repute(audited=5, trusted=True)}).servers[0].standing
    assert trusted.spot_checkable
    assert trusted.audited_windows == 5


def test_prediction_needs_servers_that_count() -> None:
    seen = sight(THREE)
    whole = predict(seen, replicas(seen))
    assert whole.step is not None
    assert 0.03 < whole.step.middle_s < 3.0
    assert whole.knee_sessions is not None
    assert whole.knee_sessions >= 1
    assert predict(seen, replicas(seen)[:2]) == NO_PREDICTION, "nothing leads over missing layers"
    assert predict(seen, ()).reason == ""


def test_a_model_without_room_says_why() -> None:
    full = [server(number, start, start + 2, measured={"kv_free_tokens": 0}) for number, start in enumerate((0, 2, 4))]
    seen = sight(full)
    model = build(seen, predict(seen, replicas(seen)))
    assert not model.usable
    assert model.missing == []
    assert "too little KV room" in model.sentence
