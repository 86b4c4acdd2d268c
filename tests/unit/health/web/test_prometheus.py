"""The exposition: parsed by the library's own parser, and bounded whatever the swarm is like."""

from __future__ import annotations

import pytest
from health_states import BEGAN_AT, MODEL, crowd, event, model, peer_of, server, state, stats
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from swarm.health.state import ModelState, StandingState, SwarmState
from swarm.health.web.prometheus import (
    CONDITIONS,
    KEPT_S,
    MAX_LABELS,
    EventCounts,
    ModelLabels,
    Scrape,
    text,
)

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def labelled(*states: SwarmState) -> ModelLabels:
    labels = ModelLabels()
    for one in states:
        labels.take(one)
    return labels


def scraped(shown: SwarmState, counts: EventCounts | None = None, labels: ModelLabels | None = None) -> Samples:
    """Every sample by its name and labels."""
    labels = labels or labelled(shown)
    made = text(
        Scrape(
            state=shown,
            labels=labels,
            events=(counts or EventCounts()).counts,
            now_s=BEGAN_AT + 100,
            uptime_s=12.5,
            streams=3,
        )
    )
    found: Samples = {}
    for family in text_string_to_metric_families(made.decode()):
        assert family.documentation
        for sample in family.samples:
            key = (sample.name, frozenset(sample.labels.items()))
            assert key not in found, "each series once"
            found[key] = sample.value
    return found


def of(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


def test_a_swarm_in_figures() -> None:
    servers = [
        server(0, kv_tokens=100, kv_free_tokens=40, stats=stats()),
        server(1, kv_tokens=100, kv_free_tokens=None, condition="silent", queued_steps=2),
        server(3, kv_tokens=100, kv_free_tokens=30, condition="draining", queued_steps=4),
        server(
            2, kv_tokens=100, condition="ejected", kv_free_tokens=5, standing=StandingState(strikes=2, ejected=True)
        ),
    ]
    shown = model(servers, usable=False, missing=[(0, 4), (20, 30)], tokens_per_s=None, sessions=6)
    found = scraped(state(5, [shown]))
    assert of(found, "swarm_model_usable", model=MODEL) == 0.0
    assert of(found, "swarm_layers", model=MODEL) == 30.0
    assert of(found, "swarm_layers_missing", model=MODEL) == 14.0
    assert [of(found, "swarm_servers", model=MODEL, condition=one) for one in CONDITIONS] == [1, 0, 1, 1, 1]
    assert of(found, "swarm_sessions", model=MODEL) == 6.0
    assert of(found, "swarm_predicted_tokens_per_second", model=MODEL) is None, "unknown is left out, never zero"
    assert of(found, "swarm_tokens_per_second", model=MODEL) == 12.5
    assert of(found, "swarm_step_seconds", model=MODEL, quantile="0.99") == 0.09
    assert of(found, "swarm_kv_tokens", model=MODEL) == 100.0, "what cannot be had is no room"
    assert of(found, "swarm_kv_free_tokens", model=MODEL) == 40.0
    assert of(found, "swarm_queued_steps", model=MODEL) == 6.0
    assert of(found, "swarm_strikes", model=MODEL) == 2.0
    assert of(found, "swarm_health_uptime_seconds") == 12.5
    assert of(found, "swarm_health_streams") == 3.0
    assert of(found, "swarm_directory_age_seconds") == 100.0
    assert of(found, "swarm_state_age_seconds") == 95.0


def test_events_are_counted_from_the_start_and_each_once() -> None:
    counts = EventCounts()
    counts.take(state(1, events=[event(1, "ejected"), event(2, "left")]))
    counts.take(state(2, events=[event(2, "left"), event(3, "ejected"), event(4, "moved")]))
    counts.take(state(3, events=[event(3, "ejected"), event(4, "moved"), event(5, "ejected")]))
    counts.take(state(4, events=[]))
    counts.take(state(5, events=[event(6, "of a newer kind")]))
    found = scraped(state(5), counts)
    kinds = {dict(labels)["kind"]: value for (name, labels), value in found.items() if name == "swarm_events_total"}
    assert {kind: value for kind, value in kinds.items() if value} == {"ejected": 2.0, "moved": 1.0, "other": 1.0}
    assert kinds["struck"] == 0.0, "a rate needs the zero before the first"


def test_nothing_grows_with_the_servers_and_no_stranger_names_a_series() -> None:
    few = scraped(crowd(3))
    many = crowd(500)
    hostile = model(
        [server(1, name='evil"} 1\nswarm_layers{model="x"} 9', region="\n", condition=f"c{peer_of(7)}")],
        model='a"b\\c\nd',
        sentence="# TYPE swarm_layers counter",
    )
    shown, events = state(1, [*many.models, hostile]), EventCounts().counts
    scrape = Scrape(state=shown, labels=labelled(shown), events=events, now_s=0.0, uptime_s=0.0, streams=0)
    made = text(scrape).decode()
    assert "12D3KooW" not in made
    assert "evil" not in made
    found = scraped(shown)
    assert of(found, "swarm_layers", model='a"b\\c\nd') == 30.0, "a model's name is escaped, and comes back as it was"
    per_model = sum(("model", MODEL) in labels for _, labels in few)
    assert len(found) == len(few) + per_model


def test_an_empty_swarm() -> None:
    found = scraped(state())
    assert of(found, "swarm_models") == 0.0
    assert not [labels for _, labels in found if dict(labels).get("model")]


@pytest.mark.parametrize("strange", ["resting", ""])
def test_a_condition_that_is_not_known_makes_no_new_label(strange: str) -> None:
    found = scraped(state(1, [model([server(1, condition=strange)])]))
    assert of(found, "swarm_servers", model=MODEL, condition="other") == 1.0


def models_in(samples: Samples) -> set[str]:
    return {dict(labels)["model"] for name, labels in samples if name == "swarm_model_usable"}


def made_up(first: int, count: int) -> list[ModelState]:
    return [model(model=f"a{number:06}@main#0123456789abcdef", since_at=1.0) for number in range(first, first + count)]


def test_names_made_up_for_a_day_make_no_series_without_end_and_take_none_away() -> None:
    real, labels, told = model(since_at=5.0), ModelLabels(), set()
    labels.take(state(1, [real]))
    for minute in range(24 * 60 - 1):
        shown = state(2, [real, *made_up(63 * minute, 63)], at=BEGAN_AT + 60.0 * minute)
        labels.take(shown)
        told |= {one.model for one in labels.told(shown.models)}
    assert len(told) == MAX_LABELS
    assert MODEL in told
    late = state(3, [real, *made_up(10**5, 63)], at=shown.at)
    labels.take(late)
    found = scraped(late, labels=labels)
    assert models_in(found) == {MODEL}
    assert of(found, "swarm_models_left_out") == 63.0
    assert of(found, "swarm_models") == 64.0
    labels.take(state(4, [real, *made_up(10**5, 63)], at=shown.at + KEPT_S))
    assert len(labels.told(late.models)) == 64, "a day later there is room again"


def test_a_model_that_breaks_keeps_its_series() -> None:
    labels = labelled(state(1, [model(since_at=5.0)]), state(2, made_up(0, MAX_LABELS - 1)))
    broken = state(3, [model([], usable=False, since_at=5.0), *made_up(MAX_LABELS, 9)])
    labels.take(broken)
    found = scraped(broken, labels=labels)
    assert of(found, "swarm_model_usable", model=MODEL) == 0.0
    assert models_in(found) == {MODEL}


def test_of_many_at_once_the_usable_ones_come_first_then_the_oldest() -> None:
    crowd_of = [replace(one, usable=False, since_at=0.0) for one in made_up(0, 2 * MAX_LABELS)]
    found = scraped(state(1, [*crowd_of, model(since_at=9.0)]))
    assert MODEL in models_in(found)
    assert len(models_in(found)) == MAX_LABELS
    found = scraped(state(1, [*made_up(0, 2 * MAX_LABELS), model(since_at=0.5)]))
    assert MODEL in models_in(found)
