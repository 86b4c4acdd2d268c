"""What counts as a change."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from msgspec.structs import replace
from sights import NOW_S, PEERS, UNREACHED, built, few, heard, report, server, sights, swarm

from swarm.health.picture.building import NO_PREDICTION, build
from swarm.health.sight import Seen, Sight
from swarm.health.state import EventState, ModelState
from swarm.health.watching.quiet import AGE_S, carried, changed

THREE = [server(0, 0, 2), server(1, 2, 4), server(2, 4, 6)]


def later(seconds: float, servers: list[Seen] | None = None, **changes: Any) -> ModelState:
    """The same servers, heard of again."""
    there = [Seen(one.listing, one.seen_at + seconds) for one in servers or THREE]
    answer = report(uptime_s=1000.0 + seconds)
    told = {one.peer: heard(answer, report_at=NOW_S + seconds, heard_at=NOW_S + seconds) for one in there}
    return built(there, at=NOW_S + seconds, as_of=NOW_S, heard=told | changes)


def test_who_was_only_heard_of_again_is_the_same_until_that_is_old() -> None:
    first = carried(None, later(0))
    for seconds in (1.0, 2.0, AGE_S - 1):
        assert carried(first, later(seconds)) is first
    aged = carried(first, later(AGE_S))
    assert aged is not first
    assert aged.servers[0].seen_at == NOW_S + AGE_S
    assert aged.servers[0].since_at == first.servers[0].since_at


def test_a_figure_that_changed_is_shown_at_once_and_the_others_stay() -> None:
    first = carried(None, later(0))
    busy = [server(0, 0, 2, measured={"sessions": 1}), *THREE[1:]]
    second = carried(first, later(2.0, busy))
    assert [one is other for one, other in zip(second.servers, first.servers, strict=True)] == [False, True, True]
    assert second.servers[0].sessions == 1


def test_since_when_a_server_is_what_it_is() -> None:
    first = carried(None, later(0))
    assert {one.since_at for one in first.servers} == {NOW_S}
    lost = carried(first, later(5.0, **{PEERS[1]: UNREACHED}))
    assert [one.since_at for one in lost.servers] == [NOW_S, NOW_S + 5, NOW_S]
    still = carried(lost, later(20.0, **{PEERS[1]: UNREACHED}))
    assert still.servers[1].since_at == NOW_S + 5
    back = carried(still, later(25.0))
    assert [one.since_at for one in back.servers] == [NOW_S, NOW_S + 25, NOW_S]


@few
@given(sights())
def test_a_model_carried_to_itself_is_itself(seen: Sight) -> None:
    first = carried(None, build(seen, NO_PREDICTION))
    assert carried(first, build(seen, NO_PREDICTION)) is first


def test_a_reader_is_told_of_models_observer_and_events_but_not_of_ages() -> None:
    model = later(0)
    state = swarm(model)
    assert not changed(state, [model], state.observer, 0)
    assert not changed(state, [replace(model)], replace(state.observer, directory_at=NOW_S + AGE_S - 1), 0)
    assert changed(state, [model], replace(state.observer, directory_at=NOW_S + AGE_S), 0)
    assert changed(state, [model], replace(state.observer, problem="none answers"), 0)
    assert changed(state, [], state.observer, 0)
    assert changed(state, [replace(model, sessions=7)], state.observer, 0)
    assert changed(state, [model], state.observer, 1)
    event = EventState(number=4, at=NOW_S, kind="joined", model="m", peer="p", text="t")
    assert not changed(swarm(model, events=[event]), [model], state.observer, 4)


@pytest.mark.parametrize("order", [(1, 0), (0, 1)])
def test_models_are_told_by_their_names_not_by_their_places(order: tuple[int, int]) -> None:
    models = [later(0), replace(later(0), model="other")]
    state = swarm(*models)
    assert changed(state, [models[place] for place in order], state.observer, 0) == (order == (1, 0))
