"""A patch tells all that changed, and nothing that did not."""

from __future__ import annotations

from typing import Any

import msgspec
from health_states import BEGAN_AT, crowd, event, link, model, peer_of, server, state
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from swarm.health.state import MAX_EVENTS, ModelState, Patch, SwarmState
from swarm.health.web.patches import apply, difference

NUMBERS = st.integers(0, 5)
SERVERS = {(number, sessions): server(number, sessions=sessions) for number in range(6) for sessions in range(3)}
LOG = [event(number) for number in range(1, 2 * MAX_EVENTS + 11)]


def ordered(one: SwarmState) -> SwarmState:
    """With models, servers and links in an order of their own: a state's says nothing."""
    models = [
        replace(
            model,
            servers=sorted(model.servers, key=lambda server: server.peer),
            links=sorted(model.links, key=lambda link: (link.source, link.target)),
        )
        for model in one.models
    ]
    return replace(one, models=sorted(models, key=lambda model: model.model))


@st.composite
def models(draw: st.DrawFn) -> list[ModelState]:
    found = []
    for name in draw(st.sets(st.sampled_from("abc"))):
        numbers = draw(st.permutations(sorted(draw(st.sets(NUMBERS)))))
        servers = [SERVERS[one, draw(st.integers(0, 2))] for one in numbers]
        pairs = draw(st.sets(st.tuples(NUMBERS, NUMBERS)))
        links = [link(*pair, rtt_s=draw(st.sampled_from([0.01, 0.02]))) for pair in pairs]
        found.append(model(servers, model=name, links=links, sessions=draw(st.integers(0, 1))))
    return found


@st.composite
def successive(draw: st.DrawFn) -> tuple[SwarmState, SwarmState]:
    """Two states of one watch, the later one second."""
    before, between = draw(st.integers(0, MAX_EVENTS + 5)), draw(st.integers(0, MAX_EVENTS + 5))
    old = state(3, draw(models()), events=LOG[:before][-MAX_EVENTS:])
    return old, state(4 + between, draw(models()), events=LOG[: before + between][-MAX_EVENTS:])


@given(successive())
def test_an_old_state_and_a_patch_make_the_new_one(pair: tuple[SwarmState, SwarmState]) -> None:
    old, new = pair
    patch = difference(old, new)
    assert (patch.base, patch.revision) == (old.revision, new.revision)
    assert ordered(apply(old, patch)) == ordered(new)
    assert msgspec.json.decode(msgspec.json.encode(patch), type=Patch) == patch


@given(models())
def test_nothing_is_told_where_nothing_changed(found: list[ModelState]) -> None:
    patch = difference(state(1, found, events=[event(1)]), state(2, found, events=[event(1)]))
    assert (patch.models, patch.removed, patch.events) == ([], [], [])


def test_only_what_changed_of_many() -> None:
    old = crowd(500)
    [one] = old.models
    servers = [replace(one.servers[0], sessions=9), *one.servers[1:-1]]
    links = [replace(one.links[0], rtt_s=1.0), *one.links[1:-1]]
    [told] = difference(old, replace(old, revision=2, models=[replace(one, servers=servers, links=links)])).models
    assert told.model.servers == servers[:1]
    assert told.model.links == links[:1]
    assert told.gone == [peer_of(499)]
    assert told.links_gone == [(one.links[-1].source, one.links[-1].target)]


def test_a_model_that_is_new_is_told_whole() -> None:
    new: Any = model([server(1)], links=[link(1, 2)])
    patch = difference(state(1), state(2, [new], at=BEGAN_AT))
    assert [one.model for one in patch.models] == [new]
