"""``swarm route``: the chain it prints costs what it says, and no other costs less."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

Run = Callable[..., Any]
SLOW_OR_TWO = {
    "layers": 64,
    "nodes": [
        {"id": "slow", "span": [0, 64], "tau_s": 0.003, "uplink_mbps": 1000},
        {"id": "a", "span": [0, 32], "tau_s": 0.001, "uplink_mbps": 1000},
        {"id": "b", "span": [32, 64], "tau_s": 0.001, "uplink_mbps": 1000},
    ],
    "rtt_s": {"slow": {"a": 0.01, "b": 0.01}, "a": {"b": 0.01}},
    "client_rtt_s": {"slow": 0.01, "a": 0.01, "b": 0.01},
}


@pytest.fixture(scope="session")
def routed(said: Run, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """``routed(content, *options)``: the exit code and the object that `route --json` prints for a cluster file."""
    path = tmp_path_factory.mktemp("route") / "cluster.json"

    def run(content: dict[str, Any], *options: str) -> tuple[int, dict[str, Any]]:
        path.write_text(json.dumps(content))
        code, out, err = said("route", "--cluster", str(path), "--json", *options)
        assert err == ""
        return code, json.loads(out)

    return run


def cost_s(content: dict[str, Any], chain: list[tuple[str, int, int]]) -> float:
    """The documented objective, straight from the file."""
    nodes = {node["id"]: node for node in content["nodes"]}
    assumed = {"rtt_s": 0.3, "uplink_mbps": 5.0, **content.get("defaults", {})}
    rtt_s, client_rtt_s = content.get("rtt_s", {}), content.get("client_rtt_s", {})

    def sending_s(uplink_mbps: float | None) -> float:
        return 8 * 16384 / float((uplink_mbps or assumed["uplink_mbps"]) * 1e6)

    def client_s(name: str) -> float:
        return float(client_rtt_s.get(name, assumed.get("client_rtt_s", assumed["rtt_s"]))) / 2

    def hop_s(a: str, b: str) -> float:
        rtt = rtt_s.get(a, {}).get(b, rtt_s.get(b, {}).get(a, assumed["rtt_s"]))
        return float(rtt) / 2 + sending_s(nodes[a].get("uplink_mbps"))

    total: float = client_s(chain[0][0]) + client_s(chain[-1][0]) + sending_s(nodes[chain[-1][0]].get("uplink_mbps"))
    if "client_uplink_mbps" in content:
        total += sending_s(content["client_uplink_mbps"])
    for name, start, end in chain:
        total += nodes[name].get("fixed_s", 0) + (end - start) * nodes[name]["tau_s"]
    return total + sum(hop_s(a[0], b[0]) for a, b in pairwise(chain))


def every_chain(content: dict[str, Any]) -> Iterator[list[tuple[str, int, int]]]:
    """Every way to give each layer to a node that holds it."""
    able = [
        [n["id"] for n in content["nodes"] if n.get("span") and n["span"][0] <= layer < n["span"][1]]
        for layer in range(content["layers"])
    ]
    for names in product(*able):
        cuts = [0, *(i for i in range(1, len(names)) if names[i] != names[i - 1]), len(names)]
        yield [(names[start], start, end) for start, end in pairwise(cuts)]


def printed(found: dict[str, Any]) -> list[tuple[str, int, int]]:
    return [(stage["id"], *stage["span"]) for stage in found["chain"]]


@st.composite
def files(draw: st.DrawFn) -> dict[str, Any]:
    layers, count = draw(st.integers(1, 5)), draw(st.integers(1, 4))
    names = [f"n{index}" for index in range(count)]
    seconds = st.sampled_from([0, 0.001, 0.02, 0.5]) | st.floats(0, 1)
    nodes = []
    for name in names:
        start = draw(st.integers(0, layers - 1))
        node = {"id": name, "span": [start, draw(st.integers(start + 1, layers))], "tau_s": draw(seconds)}
        node |= {"fixed_s": draw(seconds)} if draw(st.booleans()) else {}
        node |= {"uplink_mbps": draw(st.floats(0.1, 1000))} if draw(st.booleans()) else {}
        nodes.append(node)
    content: dict[str, Any] = {"layers": layers, "nodes": nodes}
    pairs = [(a, b) for a in names for b in names if a != b and draw(st.booleans())]
    content["rtt_s"] = {a: {b: draw(seconds) for c, b in pairs if c == a} for a, _ in pairs}
    content["client_rtt_s"] = {name: draw(seconds) for name in names if draw(st.booleans())}
    content |= {"client_uplink_mbps": draw(st.floats(0.1, 100))} if draw(st.booleans()) else {}
    content |= {"defaults": {"rtt_s": draw(seconds)}} if draw(st.booleans()) else {}
    return content


@settings(max_examples=80)
@given(files())
def test_the_printed_chain_costs_what_it_says_and_no_other_costs_less(routed: Run, content: dict[str, Any]) -> None:
    code, found = routed(content)
    costs = [cost_s(content, chain) for chain in every_chain(content)]
    if not costs:
        assert (code, found["chain"], found["latency_s"]) == (1, [], None)
        assert found["reason"].startswith("no server holds layer")
        return
    assert code == 0
    assert found["reason"] is None
    chain = printed(found)
    spans = [(start, end) for _, start, end in chain]
    assert [0, *(end for _, end in spans)] == [*(start for start, _ in spans), content["layers"]]
    assert found["latency_s"] == pytest.approx(cost_s(content, chain), rel=1e-9, abs=1e-12)
    assert found["latency_s"] == pytest.approx(min(costs), rel=1e-9, abs=1e-12)
    assert sum(term["seconds"] for term in found["terms"]) == pytest.approx(found["latency_s"], rel=1e-9, abs=1e-12)
    for stage, standby in zip(found["chain"], found["standby"], strict=True):
        assert not {one["id"] for one in standby} & {one["id"] for one in found["chain"]}
        assert not standby or (standby[0]["span"][0], standby[-1]["span"][1]) == tuple(stage["span"])


def test_two_quick_halves_beat_one_slow_server(routed: Run) -> None:
    code, found = routed(SLOW_OR_TWO)
    assert code == 0
    assert printed(found) == [("a", 0, 32), ("b", 32, 64)]
    sending_s = 8 * 16384 / 1e9
    assert found["latency_s"] == pytest.approx(0.005 + 0.032 + 0.005 + sending_s + 0.032 + sending_s + 0.005)


def test_a_span_is_entered_in_its_middle(routed: Run) -> None:
    nodes = [{"id": "x", "span": [0, 40], "tau_s": 0.001}, {"id": "y", "span": [24, 64], "tau_s": 0.002}]
    code, found = routed({"layers": 64, "nodes": nodes})
    assert code == 0
    assert printed(found) == [("x", 0, 40), ("y", 40, 64)]


def test_sessions_decide_within_five_percent_and_nowhere_else(routed: Run) -> None:
    def choice(tau_s: float, *options: str, **changes: Any) -> str:
        quick = {"id": "quick", "span": [0, 64], "tau_s": 0.01, **changes}
        other = {"id": "other", "span": [0, 64], "tau_s": tau_s}
        _, found = routed({"layers": 64, "nodes": [quick, other], "client_rtt_s": {"quick": 0, "other": 0}}, *options)
        return str(found["chain"][0]["id"])

    assert choice(0.0102) == "quick"
    assert choice(0.0102, sessions=3) == "other"
    assert choice(0.0102, state="draining") == "other"
    assert choice(0.012, sessions=30) == "quick"
    assert choice(0.012, "--as-client", sessions=30) == "other"
    assert choice(0.012, "--as-client") == "quick"


@pytest.mark.parametrize(
    ("changes", "options", "reason"),
    [
        ({"span": [40, 64]}, (), "no server holds layers 32 to 39"),
        ({"span": None}, (), "no server holds layers 32 to 63"),
        ({"state": "draining"}, (), "draining"),
        ({"kv_free_tokens": 100}, ("--kv-tokens", "200"), "too little KV room (under 200 tokens)"),
        ({"kv_free_tokens": 0}, (), "too little KV room (under 1 token)"),
        ({"numerics": "bfloat16"}, (), "no one numerics class covers the model"),
        ({"numerics": "bfloat16"}, ("--numerics", "float32"), "compute in bfloat16 and not in float32"),
        ({"live": False}, (), "not been heard of lately"),
    ],
)
def test_no_chain_has_a_reason(
    routed: Run, said: Run, tmp_path: Path, changes: dict[str, Any], options: tuple[str, ...], reason: str
) -> None:
    a, b = SLOW_OR_TWO["nodes"][1:]  # type: ignore[index]
    content = {"layers": 64, "nodes": [a, {**b, **changes}]}
    code, found = routed(content, *options)
    assert (code, found["chain"], found["latency_s"], found["standby"]) == (1, [], None, [])
    assert reason in found["reason"]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(content))
    human = said("route", "--cluster", str(path), *options)
    assert human.code == 1
    assert human.out.startswith(f"no chain: {found['reason']} (")


def test_classes_may_mix_if_asked(routed: Run) -> None:
    a, b = SLOW_OR_TWO["nodes"][1:]  # type: ignore[index]
    code, found = routed({"layers": 64, "nodes": [a, {**b, "numerics": "bfloat16"}]}, "--numerics", "any")
    assert code == 0
    assert found["exact"] is False


def test_for_a_person_every_term_is_shown(said: Run, tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({**SLOW_OR_TWO, "client_uplink_mbps": 100}))
    code, out, _ = said("route", "--cluster", str(path))
    assert code == 0
    assert out.startswith("a [0:32] -> b [32:64]\n")
    costs = out.split("\n\n")[1].splitlines()
    assert costs[0].split() == ["cost", "a", "token"]
    *terms, total = [float(line.removesuffix(" ms").split()[-1]) for line in costs[1:]]
    assert len(terms) == 8
    assert sum(terms) == pytest.approx(total, abs=9 * 0.005)  # each is rounded to a hundredth
    assert "tokens/s for a lone session" in out
    assert "standby" in out


def test_from_standard_input(said: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps(SLOW_OR_TWO).encode())))
    code, out, _ = said("route", "--cluster", "-", "--json")
    assert code == 0
    assert len(json.loads(out)["chain"]) == 2


@pytest.mark.parametrize(
    ("content", "options", "error"),
    [
        (
            '{"layers": 64, "nodes": [{"id": "a", "tau_s": NaN}]}',
            (),
            "error: nodes[0].tau_s: expected a number",
        ),
        ("{", (), "error: cluster file: is no JSON"),
        (json.dumps(SLOW_OR_TWO), ("--kv-tokens", "-1"), "error: --kv-tokens -1 is negative"),
        (json.dumps(SLOW_OR_TWO), ("--numerics", "int4"), "error: unknown numerics 'int4' (write float32 or"),
    ],
)
def test_mistakes_are_one_line(said: Run, tmp_path: Path, content: str, options: tuple[str, ...], error: str) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(content)
    code, out, err = said("route", "--cluster", str(path), "--json", *options)
    assert (code, out) == (2, "")
    assert err.startswith(error)
    assert err.count("\n") == 1


@pytest.mark.parametrize("name", ["nothing.json", ".", "a\0b"])
def test_a_file_that_cannot_be_read_is_named(said: Run, name: str) -> None:
    code, out, err = said("route", "--cluster", name)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: --cluster: cannot read {name!r}: ")


def test_what_if_questions_load_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps(SLOW_OR_TWO))
    program = (
        "import sys; from swarm.cli.main import main\n"
        f"codes = [main([command, '--cluster', {str(path)!r}]) for command in ('route', 'plan')]\n"
        "heavy = {'torch', 'hivemind', 'transformers', 'aiohttp', 'networkx'} & set(sys.modules)\n"
        "sys.exit(f'{codes} {heavy}' if heavy or any(codes) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
