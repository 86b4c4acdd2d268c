"""The scheduling benchmark: its quick form prints what it promises, and its clusters are what it says."""

from __future__ import annotations

import json
import sys

import pytest

from benchmarks.__main__ import main, show
from benchmarks.scheduling import LAYERS, cluster_of
from swarm.core.spans import missing_layers
from swarm.scheduling.allocation.strategies import STRATEGIES


def test_the_quick_form_prints_every_figure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "scheduling", "--quick", "--repeats", "1", "--json"])
    assert main() == 0
    figures = json.loads(capsys.readouterr().out)
    for name in ("phase1_ms", "phase2_ms", "phase2_standbys_ms", "pipelines_share"):
        assert list(figures[name]) == ["4", "16", "64"]
        assert all(value > 0 for value in figures[name].values())
    assert set(figures["strategies"]["64"]) == set(STRATEGIES)
    assert figures["published"]["claimed"] == {"phase1_ms": {"256": 8.55}, "phase2_ms": {"256": 6.63}}
    assert figures["pipelines_share"]["64"] <= 1


def test_figures_are_shown_to_people_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    show({"phase1_ms": {"4": 0.51234, "16": 2}, "seeds": 1})
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["phase1_ms"],
        ["4", "0.5123"],
        ["16", "2"],
        ["seeds", "1"],
    ]


@pytest.mark.parametrize("count", [4, 16, 300])
def test_clusters_are_fixed_by_their_seed_and_cover_the_model(count: int) -> None:
    cluster = cluster_of(count, 1, regions=True)
    assert cluster == cluster_of(count, 1, regions=True)
    assert cluster != cluster_of(count, 2, regions=True)
    spans = [node.span for node in cluster.nodes if node.span is not None]
    assert len(spans) == count
    assert missing_layers(spans, LAYERS) == []
    assert all(8 <= node.capacity_layers <= 34 for node in cluster.nodes)
    assert all(len(span) <= node.capacity_layers for span, node in zip(spans, cluster.nodes, strict=True))
