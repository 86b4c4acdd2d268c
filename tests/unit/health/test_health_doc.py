"""The manual names every field, route, error and metric that there is, and no metric that is not."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from health_states import BEGAN_AT, crowd
from prometheus_client.parser import text_string_to_metric_families

from swarm.health import state as states
from swarm.health.web.prometheus import CONDITIONS, EVENTS, EventCounts, ModelLabels, Scrape, text

ROOT = Path(__file__).parents[3]
DOC = (ROOT / "docs" / "health.md").read_text(encoding="utf-8")
WORDS = set(re.findall(r"`([a-z_0-9/]+)[`(?]", DOC))
STRUCTS = [one for one in vars(states).values() if isinstance(one, type) and issubclass(one, msgspec.Struct)]


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_every_field(struct: type[msgspec.Struct]) -> None:
    assert set(struct.__struct_fields__) <= WORDS


def test_every_condition_and_kind_of_event() -> None:
    assert set(CONDITIONS) | set(EVENTS) <= WORDS


def test_every_error() -> None:
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "swarm" / "health").rglob("*.py"))
    codes = set(re.findall(r'code="(\w+)"', source)) | {"streams_full", "streams_per_address_full"}
    codes |= {"malformed_request", "connections_full", "connections_per_address_full"}
    assert len(codes) > 8
    assert codes - WORDS == {"http_error"}


def test_every_metric_and_no_other() -> None:
    labels = ModelLabels()
    labels.take(crowd(3))
    scrape = Scrape(state=crowd(3), labels=labels, events=EventCounts().counts, now_s=BEGAN_AT, uptime_s=0.0, streams=0)
    made = text(scrape)
    families = text_string_to_metric_families(made.decode())
    names = {one.name + ("_total" if one.type == "counter" else "") for one in families}
    assert len(names) > 20
    assert {word for word in WORDS if word.startswith("swarm_")} == names
