"""How long phase 1 (allocation) and phase 2 (routing) of the scheduler take, by the number of nodes, and how well.

64 layers; capacities of 8 to 34 layers, powers within a factor of 20, uplinks from 10 to 1000 Mbit/s, nodes on a plane
in four regions. Up to 1024 nodes every pair has a measured round trip; above, each node has measured 16 neighbours and
the rest is a default by pair of regions. Phase 1 plans from the view, all in one territory; phase 2 routes over a table
that is already built: ``phase2_ms`` is the chain alone, as the published routers answer, ``phase2_standbys_ms`` with a
standby for each stage. ``cpu`` is the processor's time in the same runs, which a busy machine does not stretch. No
network, no model; every figure is a median over seeds.

Growth laws. Phase 1: n log n for the order, and k·d operations on L-bit numbers to fill k pipelines from d distinct
capacities, so about n. Phase 2: L·h² at worst for h holders of a layer (each looks at every pair once); where a bound
from the regions' least round trips rules most pairs out, about L·(regions·n + measured pairs that beat them).
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from swarm.core.spans import Span
from swarm.scheduling.allocation.strategies import STRATEGIES, allocate
from swarm.scheduling.allocation.throughput import swarm_tokens_per_s, with_spans
from swarm.scheduling.cluster import Cluster, Defaults, Node
from swarm.scheduling.routing_table import RoutingTable
from swarm.scheduling.routing_types import RouteNeeds, RouteOptions

LAYERS = 64
PHASE1_NODES = (4, 16, 64, 256, 1024)
PHASE2_NODES = (4, 16, 64, 256, 1024, 10_000)
COMPARED_NODES = (64, 256)
ALL_PAIRS_UP_TO = 1024
NEIGHBOURS = 16
REGIONS = {"east": (0.0, 0.0), "west": (60.0, 0.0), "north": (0.0, 45.0), "south": (70.0, 60.0)}
"""Centres on the plane; a unit is a millisecond of round trip."""

FIGURES = (
    "phase1_ms",
    "phase1_cpu_ms",
    "pipelines_share",
    "pipelines_share_least",
    "phase2_ms",
    "phase2_cpu_ms",
    "phase2_standbys_ms",
    "phase2_standbys_cpu_ms",
    "strategies",
)

PUBLISHED = {
    "claimed": {"phase1_ms": {"256": 8.55}, "phase2_ms": {"256": 6.63}},
    "measured": {
        "phase1_ms": {"256": [22, 35], "1024": [330, 370]},
        "phase2_ms": {"256": [7, 88], "1024": [85, 1380]},
        "pipelines_share": [0.83, 1.0],
    },
}
"""Parallax: what its paper claims, and its scheduler run on a machine of this kind."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--seeds", type=int, default=3, help="clusters of each size (default: 3)")
    parser.add_argument("--repeats", type=int, default=5, help="runs on each cluster (default: 5)")
    parser.add_argument("--quick", action="store_true", help="one seed, at most 64 nodes")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures by name, each by the number of nodes."""
    largest = 64 if options.quick else math.inf
    seeds = range(1 if options.quick else options.seeds)
    figures: dict[str, dict[str, Any]] = {name: {} for name in FIGURES}

    def note(nodes: int, runs: Sequence[Mapping[str, float]]) -> None:
        for name in runs[0]:
            figures[name][str(nodes)] = statistics.median(run[name] for run in runs)
        _say(f"{nodes} nodes: " + ", ".join(f"{name} {figures[name][str(nodes)]:.4g}" for name in runs[0]))

    for nodes in (count for count in PHASE1_NODES if count <= largest):
        runs = [_allocation(cluster_of(nodes, seed, regions=False), options.repeats) for seed in seeds]
        figures["pipelines_share_least"][str(nodes)] = min(run["pipelines_share"] for run in runs)
        note(nodes, runs)
    for nodes in (count for count in PHASE2_NODES if count <= largest):
        note(nodes, [_routing(cluster_of(nodes, seed, regions=True), options.repeats) for seed in seeds])
    for nodes in (count for count in COMPARED_NODES if count <= largest):
        clusters = [cluster_of(nodes, seed, regions=False) for seed in seeds]
        figures["strategies"][str(nodes)] = {name: _strategy(name, clusters) for name in STRATEGIES}
    return {**figures, "published": PUBLISHED, "layers": LAYERS, "seeds": len(seeds)}


def cluster_of(count: int, seed: int, *, regions: bool) -> Cluster:
    """A mixed swarm whose spans cover the model; the same for the same arguments.

    ``regions`` False puts all nodes into one territory, with the same links.
    """
    random = Random(f"{count}/{seed}")
    capacities = [0]
    while sum(capacities) < LAYERS:
        capacities = [random.randint(8, 34) for _ in range(count)]
    homes = [random.choice(sorted(REGIONS)) for _ in range(count)]
    places = [(REGIONS[home][0] + random.gauss(0, 8), REGIONS[home][1] + random.gauss(0, 8)) for home in homes]
    nodes = _covering_nodes(capacities, homes if regions else [""] * count, random)
    between = {
        (a, b): (10.0 + 1.3 * math.dist(REGIONS[a], REGIONS[b])) / 1e3 for a in REGIONS for b in REGIONS if a <= b
    }
    return Cluster(
        layers=LAYERS,
        nodes=nodes,
        rtt_s=_round_trips([node.id for node in nodes], places, random),
        client_rtt_s={node.id: (5.0 + math.hypot(*place)) / 1e3 for node, place in zip(nodes, places, strict=True)},
        defaults=Defaults(region_rtt_s=between),
    )


def _covering_nodes(capacities: Sequence[int], regions: Sequence[str], random: Random) -> tuple[Node, ...]:
    """One tiling first, so that there is a chain; the others lie anywhere and overlap."""
    nodes, reached = [], 0
    for index, (capacity, region) in enumerate(zip(capacities, regions, strict=True)):
        start = reached if reached < LAYERS else random.randint(0, LAYERS - capacity)
        end = min(start + capacity, LAYERS)
        reached = max(reached, end)
        power = 20.0 ** random.uniform(1, 2)
        nodes.append(
            Node(
                id=f"node{index:05}",
                span=Span(start, end),
                capacity_layers=capacity,
                power=power,
                region=region,
                tau_s=1 / power,
                fixed_s=random.uniform(0.0, 0.004),
                uplink_mbps=10.0 ** random.uniform(1, 3),
            )
        )
    return tuple(nodes)


def _round_trips(ids: list[str], places: list[tuple[float, float]], random: Random) -> dict[str, dict[str, float]]:
    """Seconds by pair: all of them, or the nearest of a sample of neighbours where there are many nodes."""
    measured: dict[str, dict[str, float]] = {}
    everybody = range(len(ids))
    for a in everybody:
        others: Sequence[int] = everybody
        if len(ids) > ALL_PAIRS_UP_TO:
            sample = random.sample(everybody, 8 * NEIGHBOURS)
            others = sorted(sample, key=lambda b: math.dist(places[a], places[b]))[:NEIGHBOURS]
        measured[ids[a]] = {
            ids[b]: (2.0 + math.dist(places[a], places[b]) * random.uniform(0.9, 1.4)) / 1e3 for b in others if b != a
        }
    return measured


def _allocation(cluster: Cluster, repeats: int) -> dict[str, float]:
    """How long a plan takes, and its pipelines as a share of ``floor(sum(c) / L)``."""
    plan = allocate(cluster)
    possible = sum(node.capacity_layers for node in cluster.nodes) // cluster.layers
    wall_ms, cpu_ms = _median_ms(partial(allocate, cluster), repeats)
    return {"phase1_ms": wall_ms, "phase1_cpu_ms": cpu_ms, "pipelines_share": plan.k / possible}


def _routing(cluster: Cluster, repeats: int) -> dict[str, float]:
    """How long a route takes over a table that is already built: the chain alone, and with a standby a stage."""
    table, needs = RoutingTable.of(cluster), RouteNeeds()
    table.route(needs)
    wall_ms, cpu_ms = _median_ms(partial(table.route, needs, options=RouteOptions(standbys=False)), repeats)
    standbys_ms, standbys_cpu_ms = _median_ms(partial(table.route, needs), repeats)
    return {
        "phase2_ms": wall_ms,
        "phase2_cpu_ms": cpu_ms,
        "phase2_standbys_ms": standbys_ms,
        "phase2_standbys_cpu_ms": standbys_cpu_ms,
    }


def _strategy(name: str, clusters: list[Cluster]) -> dict[str, float]:
    """One strategy over the same clusters as the others."""
    plans = [allocate(cluster, strategy=name) for cluster in clusters]
    served = [
        swarm_tokens_per_s(with_spans(cluster, plan), cluster.layers)
        for cluster, plan in zip(clusters, plans, strict=True)
    ]
    return {
        "ms": statistics.median(_median_ms(partial(allocate, cluster, strategy=name), 1)[0] for cluster in clusters),
        "k": statistics.median(plan.k for plan in plans),
        "stages": statistics.median(plan.stages for plan in plans),
        "tokens_per_s": statistics.median(served),
        "plans_with_a_gap": sum(bool(plan.gap) for plan in plans),
    }


def _median_ms(run: Callable[[], object], repeats: int) -> tuple[float, float]:
    """Medians of the time that passed and of the processor time used, in milliseconds."""
    wall, cpu = [], []
    for _ in range(repeats):
        began_s, cpu_began_s = time.perf_counter(), time.process_time()
        run()
        wall.append((time.perf_counter() - began_s) * 1e3)
        cpu.append((time.process_time() - cpu_began_s) * 1e3)
    return statistics.median(wall), statistics.median(cpu)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
