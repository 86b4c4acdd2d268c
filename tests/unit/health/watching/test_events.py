"""What happened between two states, and when it is news."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace
from sights import MODEL, NOW_S, PEERS, UNREACHED, built, few, heard, report, server, sights, swarm

from swarm.core.announcement import State
from swarm.health.picture.building import NO_PREDICTION, build
from swarm.health.sight import Repute, Seen, Sight
from swarm.health.state import EventState, ModelState, ServerState
from swarm.health.watching.chronicle import (
    BUDGET,
    BUDGET_S,
    CROWD,
    GAP_S,
    HOUR_S,
    KNOWN_S,
    MOVES_OF_ONE,
    OUTAGE_S,
    SETTLE_S,
    Chronicle,
)
from swarm.health.watching.events import MANY, condensed, happened
from swarm.wire.status import Totals

THREE = [server(0, 0, 2, public_name="Ada"), server(1, 2, 4), server(2, 4, 6)]
ADA = f"Ada (…{PEERS[0][-8:]})"
BERT = f"…{PEERS[1][-8:]}"


def told(before: ModelState, after: ModelState) -> list[tuple[str, str]]:
    return [(event.kind, event.text) for event in happened(swarm(before), swarm(after))]


def without(number: int) -> list[Seen]:
    return [one for one in THREE if one.peer != PEERS[number]]


@few
@given(sights())
def test_between_a_state_and_itself_nothing_happened(seen: Sight) -> None:
    state = swarm(build(seen, NO_PREDICTION))
    assert happened(state, state) == []


@few
@given(sights(), sights())
def test_between_any_two_states_events_are_about_what_is_there(one: Sight, other: Sight) -> None:
    before, after = swarm(build(one, NO_PREDICTION)), swarm(build(other, NO_PREDICTION), at=NOW_S + 2)
    known = {server.peer for state in (before, after) for server in state.models[0].servers}
    for event in happened(before, after):
        assert event.peer in known | {""}
        assert (event.model, event.number, event.at) == (MODEL, 0, NOW_S + 2)
        assert event.text.endswith(".")
        assert event.text.isprintable()
    for event in condensed(happened(before, after)):
        assert len(event.text) < 1000


def test_coming_and_going() -> None:
    whole = built(THREE)
    down = built(without(1), step_s=None)
    assert told(whole, down) == [
        ("left", f"{BERT} left: it had layers 2 to 3."),
        ("unusable", "Not usable: nobody serves layers 2 to 3."),
    ]
    assert told(down, whole) == [("joined", f"{BERT} joined: layers 2 to 3."), ("usable", whole.sentence)]


def test_falling_silent_and_coming_back() -> None:
    answers = {one.peer: heard() for one in THREE}
    whole, dark = built(THREE), built(THREE, heard=answers | {PEERS[0]: UNREACHED}, step_s=None)
    assert told(whole, dark)[0] == ("silent", f"{ADA} does not answer any more: it had layers 0 to 1.")
    assert told(dark, whole)[0] == ("back", f"{ADA} is back with layers 0 to 1.")
    assert told(dark, built(without(0), step_s=None)) == [("left", f"{ADA} did not come back.")]


def test_who_is_joining_has_not_joined() -> None:
    coming = server(3, 0, 6, state=State.JOINING, measured=None)
    loading = built([*THREE, coming])
    assert told(built(THREE), loading) == []
    assert [kind for kind, _ in told(loading, built([*THREE, server(3, 0, 6)]))] == ["joined"]
    assert [kind for kind, _ in told(loading, built([*THREE, server(3, 2, 6)]))] == ["joined"], "it has not moved"
    assert told(built(THREE), built([*THREE, server(3, 0, 6, measured=None)])) == [], "a record that is left over"


def test_moving_and_draining() -> None:
    spare = [*THREE, server(3, 0, 2)]
    assert told(built(spare), built([*THREE, server(3, 0, 2, state=State.DRAINING)])) == []
    assert told(built(spare), built([*THREE, server(3, 5, 6)])) == [
        ("moved", f"…{PEERS[3][-8:]} moved from layers 0 to 1 to layer 5.")
    ]


@pytest.mark.parametrize(
    ("heals", "uptime_s", "text"),
    [
        (3, 1002.0, "took over for a lost server in a running answer."),
        (5, 1002.0, "took over for a lost server in 3 running answers."),
        (2**62, 1002.0, "took over for a lost server in 1000 running answers."),
        (2, 1002.0, None),
        (1, 1002.0, None),
        (9, 3.0, None),
    ],
)
def test_heals_are_told_as_far_as_one_process_counted_them(heals: int, uptime_s: float, text: str | None) -> None:
    def healed(count: int, since_s: float) -> ModelState:
        answer = heard(report(totals=Totals(heals=count), uptime_s=since_s))
        return built(THREE, heard={one.peer: heard() for one in THREE} | {PEERS[0]: answer})

    found = told(healed(2, 1000.0), healed(heals, uptime_s))
    assert found == ([] if text is None else [("healed", f"{ADA} {text}")])


def test_what_is_proven_is_told_with_its_proof() -> None:
    def judged(**fields: Any) -> ModelState:
        return built(THREE, repute={PEERS[0]: Repute(**fields)}, step_s=0.1)

    accused, struck = judged(accused=True), judged(strikes=1, proofs=("aa",))
    assert [kind for kind, _ in told(judged(), accused)] == ["accused"]
    assert told(accused, accused) == []
    [event] = happened(swarm(accused), swarm(struck))
    assert (event.kind, event.peer, event.proof) == ("struck", PEERS[0], "aa")
    out = judged(strikes=2, ejected=True, proofs=("bb", "aa"))
    events = happened(swarm(struck), swarm(out))
    assert [(event.kind, event.proof) for event in events][:2] == [("struck", "bb"), ("ejected", "bb")]
    assert "unusable" in [event.kind for event in events]
    itself = judged(strikes=2, ejected=True)
    assert ("ejected", f"{ADA} was ejected: this machine found it at fault itself.") in told(judged(), itself)
    back = ("back", f"{ADA} is let back in: what was held against it was not proven, or was forgiven.")
    assert back in told(itself, judged())
    assert [kind for kind, _ in told(built(without(0), step_s=None), out)] == [], "who comes as an ejected one"


def test_a_model_that_was_not_there_tells_nothing_of_its_servers() -> None:
    assert happened(swarm(), swarm(built(THREE))) == []
    assert happened(swarm(built(THREE)), swarm()) == []


def event(kind: str, peer: str = "p", at: float = NOW_S, model: str = MODEL) -> EventState:
    return EventState(number=0, at=at, kind=kind, model=model, peer=peer, text=f"{peer} {kind}.")


def test_many_of_a_kind_are_told_as_one_but_ejections() -> None:
    few = [event("joined", str(number)) for number in range(MANY)]
    assert condensed(few) == few
    [one] = condensed([*few, event("joined", "last")])
    assert (one.peer, one.text) == ("", "0 joined; 1 joined; 2 joined; and 3 more like that.")
    many = [event("ejected", str(number)) for number in range(3 * MANY)]
    assert condensed(many) == many
    apart = [event("joined", str(number), model=str(number)) for number in range(3 * MANY)]
    assert condensed(apart) == apart


# -- the chronicle ----------------------------------------------------------------------------------------------


class Told:
    """A chronicle that is shown states in turn."""

    def __init__(self) -> None:
        self.chronicle = Chronicle()
        self.now_s = NOW_S

    def show(self, model: ModelState, after_s: float = 1.0, *, answered: bool = True, problem: str = "") -> list[str]:
        self.now_s += after_s
        if answered:
            self.answered_at = self.now_s
        state = swarm(model, at=self.now_s)
        events = self.chronicle.follow(state, answered_at=self.answered_at, problem=problem)
        return [event.kind for event in events]

    def settle(self, model: ModelState) -> None:
        for _ in range(int(SETTLE_S) + 2):
            assert self.show(model) == []


def test_nothing_is_news_while_a_page_begins_to_look() -> None:
    page = Told()
    page.answered_at = None  # type: ignore[assignment]
    assert page.show(built([], step_s=None), answered=False) == []
    assert page.show(built(without(1), step_s=None)) == []
    assert page.show(built(THREE)) == []
    page.settle(built(THREE))
    assert page.show(built(without(1), step_s=None)) == ["left", "unusable"]


def test_an_outage_is_told_once_and_what_comes_back_afterwards_is_no_news() -> None:
    page = Told()
    page.settle(built(THREE))
    down = {"answered": False, "problem": "no answer"}
    assert page.show(built(THREE), OUTAGE_S - 1, **down) == []
    assert page.show(built(THREE), 2.0, **down) == ["outage"]
    assert page.show(built(THREE), 2.0, **down) == []
    assert page.show(built(without(1), step_s=None), 2.0, **down) == ["left", "unusable"], "seen with own eyes"
    assert page.show(built([], step_s=None), 1.0) == ["outage"]
    assert page.show(built(without(0), step_s=None), SETTLE_S - 2) == []
    assert page.show(built(THREE), 3.0) == ["joined", "usable"], "what is different from before, once all is calm"


def test_a_page_that_slept_begins_anew() -> None:
    page = Told()
    page.settle(built(THREE))
    assert page.show(built([], step_s=None), GAP_S + 1) == []
    assert page.show(built(THREE), SETTLE_S + 1) == []


def test_moves_of_the_last_hour_are_counted_each() -> None:
    page = Told()
    spares = [server(number, 0, 6) for number in range(3, 3 + 2 * MANY)]
    moved = [server(number, 0, 2) for number in range(3, 3 + 2 * MANY)]
    page.settle(built([*THREE, *spares]))
    assert page.show(built([*THREE, *moved])) == ["moved"]
    assert page.chronicle.moves(MODEL, page.now_s) == 2 * MANY
    assert page.chronicle.moves("other", page.now_s) == 0
    assert page.chronicle.moves(MODEL, page.now_s + HOUR_S) == 0
    past = Chronicle([event("moved"), event("joined")])
    assert past.moves(MODEL, NOW_S + 1) == 1


def test_who_comes_and_goes_all_the_time_is_not_told_all_the_time() -> None:
    page = Told()
    page.settle(built(THREE))
    states = [built([*THREE, server(3, 0, 6)]), built(THREE)]
    kinds = [kind for turn in range(3 * BUDGET) for kind in page.show(states[turn % 2])]
    assert len(kinds) == BUDGET


def test_a_server_made_up_every_second_does_not_have_all_else_forgotten() -> None:
    page, crowd = Told(), built([*THREE, server(3, 0, 6)])
    page.settle(built(THREE))

    def with_another(number: int) -> ModelState:
        name = f"made up {number}"
        return replace(
            crowd, servers=[replace(one, peer=name) if one.peer == PEERS[3] else one for one in crowd.servers]
        )

    kinds = Counter(kind for number in range(CROWD) for kind in page.show(with_another(number)))
    assert kinds["joined"] + kinds["left"] == CROWD
    assert page.show(built(THREE[:2])) == ["unusable"], "what happens to the model is told all the same"
    caught = {PEERS[0]: Repute(strikes=2, ejected=True)}
    assert page.show(built(THREE[:2], repute=caught)) == ["struck", "ejected"], "and what this machine found"


def made_up(first: int, count: int, *, reached: bool = True) -> list[ServerState]:
    """Servers that nobody knew before."""
    [one] = [one for one in built([*THREE, server(3, 0, 6)]).servers if one.peer == PEERS[3]]
    names = [f"made up {number}" for number in range(first, first + count)]
    return [replace(one, peer=name, short=name[-8:], reached=reached or None) for name in names]


def beside(model: ModelState, *others: ServerState) -> ModelState:
    return replace(model, servers=[*model.servers, *others])


def test_what_happens_to_known_servers_is_told_whatever_newcomers_do_meanwhile() -> None:
    page, whole = Told(), built(THREE)
    page.settle(whole)
    for _ in range(int(KNOWN_S / GAP_S)):
        assert page.show(whole, GAP_S) == []
    for one in made_up(0, CROWD):
        page.show(beside(whole, one))
    lost = {one.peer: heard() for one in THREE} | {PEERS[1]: UNREACHED}
    dark = beside(built(THREE, heard=lost, step_s=None), *made_up(10**5, 50))
    assert page.show(dark) == ["silent", "unusable"]


def test_what_known_servers_do_is_not_told_among_what_a_crowd_does() -> None:
    page = Told()
    page.settle(built(THREE))
    for _ in range(int(KNOWN_S / GAP_S)):
        page.show(built(THREE), GAP_S)
    crowd = made_up(0, 2 * MANY)
    page.show(beside(built(THREE), *crowd))
    state = swarm(built(without(1), step_s=None), at=page.now_s + 1)
    told = page.chronicle.follow(state, answered_at=state.at, problem="")
    assert [(one.kind, one.peer) for one in told] == [("left", PEERS[1]), ("left", ""), ("unusable", "")]


def test_of_servers_that_never_answered_nothing_is_told() -> None:
    page, crowd = Told(), made_up(0, 3, reached=False)
    page.settle(built(THREE))
    assert page.show(beside(built(THREE), *crowd)) == []
    moved = [replace(one, start=2) for one in crowd]
    assert page.show(beside(built(THREE), *moved)) == []
    silent = [replace(one, condition="silent", reached=False) for one in moved]
    assert page.show(beside(built(THREE), *silent)) == []
    assert page.show(built(THREE)) == []
    assert page.chronicle.moves(MODEL, page.now_s) == 0
    assert page.show(beside(built(THREE), *crowd)) == []
    assert page.show(beside(built(THREE), *made_up(0, 3))) == ["joined"] * 3, "once they do"


def test_moves_of_one_server_count_up_to_what_the_rules_allow() -> None:
    page = Told()
    states = [built([*THREE, server(3, 0, 6)]), built([*THREE, server(3, 0, 2)])]
    page.settle(states[0])
    for turn in range(3 * MOVES_OF_ONE):
        page.show(states[(turn + 1) % 2])
    assert page.chronicle.moves(MODEL, page.now_s) == MOVES_OF_ONE


def test_proofs_against_newcomers_without_end_are_told_up_to_a_number() -> None:
    page, whole = Told(), built(THREE)
    page.settle(whole)
    kinds: list[str] = []
    for one in made_up(0, 2 * CROWD):
        page.show(beside(whole, one), 0.1)
        standing = replace(one.standing, ejected=True)
        kinds += page.show(beside(whole, replace(one, condition="ejected", standing=standing)), 0.1)
    assert kinds.count("ejected") == CROWD


def test_a_model_that_flaps_is_not_told_all_the_time() -> None:
    page = Told()
    page.settle(built(THREE))
    states = [built(THREE[:2]), built(THREE)]
    kinds = Counter(kind for turn in range(3 * BUDGET) for kind in page.show(states[turn % 2]))
    assert (kinds["usable"], kinds["unusable"]) == (BUDGET, BUDGET)
    for _ in range(int(BUDGET_S / GAP_S) + 1):
        assert page.show(states[1], GAP_S) == []
    assert page.show(states[0]) == ["left", "unusable"]


def test_numbers_are_those_of_whoever_keeps_them() -> None:
    chronicle = Chronicle()
    assert chronicle.newest == 0
    chronicle.keep([replace(event("joined"), number=7), replace(event("left"), number=8)])
    assert chronicle.newest == 8
