"""The exposition: parsed by the library's own parser, and bounded whatever the swarm is like."""

from __future__ import annotations

import pytest
from health_states import BEGAN_AT, MODEL, crowd, event, model, peer_of, server, state, stats
from prometheus_client.parser import text_string_to_metric_families

from swarm.health.state import StandingState, SwarmState
from swarm.health.web.prometheus import CONDITIONS, EventCounts, Scrape, text

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(shown: SwarmState, counts: EventCounts | None = None) -> Samples:
    """Every sample by its name and labels."""
    made = text(
        Scrape(
            state=shown,
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
        server(
            2, kv_tokens=100, condition="ejected", kv_free_tokens=5, standing=StandingState(strikes=2, ejected=True)
        ),
    ]
    shown = model(servers, usable=False, missing=[(0, 4), (20, 30)], tokens_per_s=None, sessions=6)
    found = scraped(state(5, [shown]))
    assert of(found, "swarm_model_usable", model=MODEL) == 0.0
    assert of(found, "swarm_layers", model=MODEL) == 30.0
    assert of(found, "swarm_layers_missing", model=MODEL) == 14.0
    assert [of(found, "swarm_servers", model=MODEL, condition=one) for one in CONDITIONS] == [1, 0, 0, 1, 1]
    assert of(found, "swarm_sessions", model=MODEL) == 6.0
    assert of(found, "swarm_predicted_tokens_per_second", model=MODEL) is None, "unknown is left out, never zero"
    assert of(found, "swarm_tokens_per_second", model=MODEL) == 12.5
    assert of(found, "swarm_step_seconds", model=MODEL, quantile="0.99") == 0.09
    assert of(found, "swarm_kv_tokens", model=MODEL) == 300.0
    assert of(found, "swarm_kv_free_tokens", model=MODEL) == 45.0
    assert of(found, "swarm_queued_steps", model=MODEL) == 2.0
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
    made = text(
        Scrape(state=state(1, [*many.models, hostile]), events=EventCounts().counts, now_s=0.0, uptime_s=0.0, streams=0)
    ).decode()
    assert "12D3KooW" not in made
    assert "evil" not in made
    found = scraped(state(1, [*many.models, hostile]))
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
