"""``swarm plan``: what it prints is a plan, and known examples come out as they must."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Run = Callable[..., Any]
STRATEGIES = ("parallax", "greedy", "ring", "ring-exo", "max-flow")


def described(layers: int, capacities: tuple[int, ...], powers: tuple[float, ...] = ()) -> dict[str, Any]:
    powers = powers or (1.0,) * len(capacities)
    nodes = [
        {"id": f"n{index}", "capacity_layers": capacity, "power": power}
        for index, (capacity, power) in enumerate(zip(capacities, powers, strict=True))
    ]
    return {"layers": layers, "nodes": nodes}


@pytest.fixture(scope="session")
def planned(said: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``planned(content, *options)``: exit code and object of `plan --json`, checked to be a plan."""
    path = tmp_path_factory.mktemp("plan") / "cluster.json"

    def run(content: dict[str, Any], *options: str) -> dict[str, Any]:
        path.write_text(json.dumps(content))
        code, out, err = said("plan", "--cluster", str(path), "--json", *options)
        assert err == ""
        found: dict[str, Any] = json.loads(out)
        assert code == (0 if found["k"] else 1)
        check(found, content, within_capacity="ring-exo" not in options)
        return found

    return run


def check(found: dict[str, Any], content: dict[str, Any], *, within_capacity: bool) -> None:
    """Every pipeline tiles the model, everybody stands in one place, nobody holds more than it can."""
    capacity = {node["id"]: node["capacity_layers"] for node in content["nodes"]}
    for pipeline in found["pipelines"]:
        ends = [0, *(share["span"][1] for share in pipeline)]
        assert ends == [*(share["span"][0] for share in pipeline), content["layers"]]
    staged = [share for pipeline in found["pipelines"] for share in pipeline]
    shares = [*staged, *found["replicas"]]
    assert sorted([*(share["id"] for share in staged), *found["unused"]]) == sorted(capacity)
    assert {share["id"] for share in found["replicas"]} <= set(found["unused"])
    for share in shares if within_capacity else ():
        start, end = share["span"]
        assert 0 < end - start <= capacity[share["id"]]
    assert found["k"] == len(found["pipelines"])
    assert found["stages"] == sum(map(len, found["pipelines"]))
    assert found["score"] == found["scores"][found["score_name"]]
    assert (found["reason"] is None) == bool(found["k"])


@settings(max_examples=60)
@given(
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 30), st.floats(0.1, 100)), min_size=1, max_size=7),
    st.sampled_from(STRATEGIES),
    st.sampled_from(["k2_over_s", "paper"]),
)
def test_whatever_is_asked_a_plan_comes_out(
    planned: Run, layers: int, nodes: list[tuple[int, float]], strategy: str, score: str
) -> None:
    content = described(layers, tuple(c for c, _ in nodes), tuple(f for _, f in nodes))
    found = planned(content, "--strategy", strategy, "--score", score, "--place-gateway")
    if strategy == "parallax":
        assert bool(found["k"]) == (sum(c for c, _ in nodes) >= layers)
    if found["k"]:
        assert sorted(found["gateway"]["orders"][0]) == sorted(share["id"] for share in found["pipelines"][0])


def test_two_pipelines_of_three(planned: Run) -> None:
    found = planned(described(70, (40, 40, 20, 20, 10, 10)))
    assert (found["k"], found["stages"]) == (2, 6)
    assert found["score"] == pytest.approx(2 / 3)
    assert found["unused"] == []


def test_survivors_of_two_broken_pipelines_keep_their_layers_and_join_up(planned: Run) -> None:
    """a, b and c, d were pipelines of 30 layers; b and c have left, and the plan of the rest needs nobody to load."""
    left = {"a": [0, 15], "d": [15, 30]}
    swarm = {"layers": 30, "nodes": [{"id": name, "capacity_layers": 15, "span": span} for name, span in left.items()]}
    swarm["nodes"].reverse()  # type: ignore[attr-defined]
    found = planned(swarm, "--keep-spans")
    assert found["keep"] == ["a", "d"]
    assert [(stage["id"], stage["span"]) for stage in found["pipelines"][0]] == list(left.items())


def test_a_plan_that_may_break_capacities_keeps_nobody(said: Run, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(described(30, (15, 15))))
    code, _, err = said("plan", "--cluster", str(path), "--strategy", "ring-exo", "--keep-spans")
    assert (code, "another --strategy" in err) == (2, True)


def test_layers_are_shared_by_power(planned: Run) -> None:
    found = planned(described(46, (24, 16, 8), (100, 50, 25)))
    [pipeline] = found["pipelines"]
    held = {share["id"]: share["span"][1] - share["span"][0] for share in pipeline}
    assert held == {"n0": 24, "n1": 15, "n2": 7}  # n0 is full; the other 22 layers as 50 to 25


@pytest.mark.parametrize(
    ("capacities", "k", "stages"),
    [((9, 22, 22, 13), 1, 4), ((22, 34, 26, 17, 20, 8, 7), 2, None), ((29, 27, 26, 22, 21, 20), 2, None)],
)
def test_known_answers(planned: Run, capacities: tuple[int, ...], k: int, stages: int | None) -> None:
    found = planned(described(64, capacities))
    assert found["k"] == k
    assert stages in (None, found["stages"])


def test_what_cannot_be_planned_says_why(planned: Run, said: Run, tmp_path: Path) -> None:
    found = planned(described(64, (10, 20)))
    assert found["pipelines"] == []
    assert found["reason"] == "all nodes together have room for 30 layers, and the model has 64"
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(described(64, (10, 20))))
    human = said("plan", "--cluster", str(path), "--place-gateway")
    assert human.code == 1
    assert human.out == f"no pipeline: {found['reason']}\n"


def test_a_gateway_moves_to_the_servers_if_the_client_is_far(planned: Run, said: Run, tmp_path: Path) -> None:
    content = described(30, (10, 10, 10))
    for node in content["nodes"]:
        node |= {"uplink_mbps": 100, "region": "eu"}
    content["rtt_s"] = {"n0": {"n1": 0.02, "n2": 0.02}, "n1": {"n2": 0.02}}
    content["client_rtt_s"] = dict.fromkeys(("n0", "n1", "n2"), 0.2)
    gateway = planned(content, "--place-gateway")["gateway"]
    assert gateway["region"] == "eu"
    assert gateway["beside"] in ("n0", "n1", "n2")
    assert gateway["saves_s"] == pytest.approx(0.2 - 0.01)
    assert gateway["saves_s"] == pytest.approx(gateway["own_loop_s"] - gateway["loop_s"])
    assert gateway["assumed"] == 0
    assert "gateway" not in planned(content)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(content))
    out = said("plan", "--cluster", str(path), "--place-gateway").out
    assert f"gateway: stand beside {gateway['beside']} (region eu);" in out
    assert "which saves 190.00 ms." in out
    content["client_rtt_s"] = dict.fromkeys(("n0", "n1", "n2"), 0.001)
    path.write_text(json.dumps(content))
    assert "gateway: stay;" in said("plan", "--cluster", str(path), "--place-gateway").out
    del content["rtt_s"]
    path.write_text(json.dumps(content))
    assert "links compared were not measured" in said("plan", "--cluster", str(path), "--place-gateway").out


def test_who_is_quicker_under_load_than_it_said_counts_as_quick(planned: Run, said: Run, tmp_path: Path) -> None:
    """A server that measured itself on a busy machine: `plan` and `route` agree on it."""
    content = described(20, (10, 10), (2.0, 20.0))
    for node, span in zip(content["nodes"], ([0, 10], [10, 20]), strict=True):
        node |= {"tau_s": 0.1, "span": span}  # the second is loaded: alone it is twice as fast
    assert planned(content)["tokens_per_s"] == pytest.approx(1.0)
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(content))
    rows = sorted(line.split() for line in said("plan", "--cluster", str(path)).out.splitlines()[2:4])
    assert [(row[0], *row[2:]) for row in rows] == [
        ("n0", "10", "10", "1000.00", "ms"),
        ("n1", "10", "20", "500.00", "ms"),
    ]
    assert "n0: 10 layers, 0.00 ms + 10 x 100.00 ms" in said("route", "--cluster", str(path)).out


def test_peer_ids_are_shown_by_their_endings(said: Run, tmp_path: Path) -> None:
    content = described(100, (10,) * 10)
    for index, node in enumerate(content["nodes"]):
        node |= {"id": f"12D3KooW{'x' * 43}{'ABCDEFGHJK'[index]}", "span": [10 * index, 10 * index + 10]}
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(content))
    for command in (("plan", "--place-gateway"), ("route",)):
        out = said(*command, "--cluster", str(path)).out
        assert "12D3KooW" not in out
        assert "xxxxxxxK" in out
        assert "last 8 characters" in out
        assert max(map(len, out.splitlines())) <= 100
        assert content["nodes"][0]["id"] in said(*command, "--cluster", str(path), "--json").out


def test_for_a_person_the_leftovers_are_shown_and_scores_only_if_asked(said: Run, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(described(70, (40, 40, 20, 20, 10, 10, 3, 0))))
    code, out, _ = said("plan", "--cluster", str(path))
    assert code == 0
    assert "pipeline 1: " in out
    assert "pipeline 2: " in out
    assert "2 pipelines of 6 servers in all" in out
    assert "score" not in out
    assert "k2_over_s" not in out
    detailed = said("plan", "--cluster", str(path), "-v").out
    assert "score: k2_over_s 0.6667, paper " in detailed
    assert "(chosen by k2_over_s)" in detailed
    for index in range(8):
        assert f"n{index}" in out


def test_an_unknown_strategy_is_told_by_the_parser(said: Run) -> None:
    with pytest.raises(SystemExit) as ended:
        said("plan", "--cluster", "x", "--strategy", "best")
    assert ended.value.code == 2
