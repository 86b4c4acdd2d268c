"""``swarm plan``: which node of a described cluster should hold which layers, without any network."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from swarm.cli.output.tables import folded, legend, ms, short_names, table
from swarm.cli.what_if import add_cluster_arguments, load_cluster, stages_json
from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.scheduling.allocation.plan import Plan, Share
from swarm.scheduling.allocation.repair import keep_spans, keepers
from swarm.scheduling.allocation.strategies import STRATEGIES, allocate
from swarm.scheduling.allocation.throughput import swarm_tokens_per_s, with_spans
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.cluster_file import MAX_FIGURE
from swarm.scheduling.placement import Gateway, place_gateway

SCORES = ("k2_over_s", "paper")
SAME = 1 - 1e-9
"""``tau_s * power`` below this is more than a rounding away from 1."""
HEAD = ("server", "layers", "room for", "layers/s", "a token")

EXAMPLES = """\
examples:
  python -m swarm plan --cluster swarm.json
  python -m swarm plan --cluster swarm.json --strategy ring --json
  python -m swarm plan --cluster swarm.json --keep-spans        # after somebody left: who has to move?
  python -m swarm plan --cluster swarm.json --place-gateway

The plan has k pipelines, each of which holds all layers once. k is the number with the best score, among those for
which the nodes' capacities suffice: k2_over_s is k * k / stages, paper weighs a pipeline against its hops (-v shows
both). Inside a pipeline layers are shared by power: layers/s of a server alone and unloaded, at least what it does
under its present load. "a token" is its layers at that speed; `route` adds its fixed time and counts its present load.
Present spans do not count, unless --keep-spans gives the places of the plan to whoever holds those layers already.
Exit code: 0, or 1 if no pipeline is possible.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Say which node of a described cluster should hold which layers."
    parser.epilog = EXAMPLES
    add_cluster_arguments(parser)
    parser.add_argument("--strategy", choices=tuple(STRATEGIES), default="parallax", help="how layers are "
                        "shared out (default: parallax, the best for most; the others are for comparison)")  # fmt: skip
    parser.add_argument("--score", choices=SCORES, default="k2_over_s", help="what chooses k (default: k2_over_s)")
    parser.add_argument(
        "--keep-spans", action="store_true",
        help="let as many nodes as possible keep the span they hold: those load nothing",
    )  # fmt: skip
    parser.add_argument(
        "--place-gateway", action="store_true",
        help="say beside which node a gateway should stand, and what that saves a token",
    )  # fmt: skip


def run(options: argparse.Namespace) -> int:
    cluster = unloaded(load_cluster(options.cluster))
    plan = allocate(cluster, strategy=options.strategy, score=options.score)
    if options.keep_spans:
        if options.strategy == "ring-exo":
            raise ConfigError("ring-exo may give a node more than it can hold", hint="choose another --strategy")
        plan = keep_spans(plan, cluster)
    nodes = {node.id: node for node in cluster.nodes}
    rings = [[nodes[share.id] for share in pipeline] for pipeline in plan.pipelines]
    gateway = place_gateway(cluster, rings) if options.place_gateway and rings else None
    if options.json:
        print(plan_json(cluster, plan, rings, gateway))
    else:
        print(plan_text(cluster, plan, rings, gateway))
        if plan.k and options.verbose:
            print(scores_text(plan))
    return 0 if plan.k else 1


def unloaded(cluster: Cluster) -> Cluster:
    """``cluster`` with nobody slower alone than it is at its present load.

    A server says its power once, of a short measurement at its start; a machine that was busy then looks slower than
    its later steps prove it to be.
    """
    return replace(
        cluster,
        nodes=tuple(
            replace(node, power=1 / max(node.tau_s, 1 / MAX_FIGURE)) if 0 < node.tau_s * node.power < SAME else node
            for node in cluster.nodes
        ),
    )


def plan_json(cluster: Cluster, plan: Plan, rings: Sequence[Sequence[Node]], gateway: Gateway | None) -> str:
    """One object; ``gateway`` is in it only if a place was asked for and found."""
    found: dict[str, object] = {
        "pipelines": [stages_json(_named(pipeline)) for pipeline in plan.pipelines],
        "k": plan.k,
        "stages": plan.stages,
        "score": plan.score,
        "unused": sorted([*plan.unused, *(share.id for share in plan.replicas)]),
        "replicas": stages_json(_named(plan.replicas)),
        "keep": sorted(keepers(plan, cluster)),
        "score_name": plan.score_name,
        "scores": dict(plan.scores),
        "gap": plan.gap,
        "tokens_per_s": swarm_tokens_per_s(with_spans(cluster, plan), cluster.layers),
        "reason": None if plan.k else _shortage(cluster),
    }
    if gateway is not None:
        found["gateway"] = {
            "beside": None if gateway.node is None else gateway.node.id,
            "region": None if gateway.node is None else gateway.node.region,
            "loop_s": gateway.loop_s,
            "own_loop_s": gateway.own_loop_s,
            "saves_s": gateway.saves_s,
            "exact": gateway.exact,
            "links": gateway.links,
            "assumed": gateway.assumed,
            "orders": _orders(rings, gateway),
        }
    return json.dumps(found)


def plan_text(cluster: Cluster, plan: Plan, rings: Sequence[Sequence[Node]], gateway: Gateway | None) -> str:
    """The pipelines, what is left over, what all that yields, and where a gateway should stand."""
    if not plan.k:
        return f"no pipeline: {_shortage(cluster)}"
    nodes = {node.id: node for node in cluster.nodes}
    names = short_names(nodes)
    lines = []
    for index, pipeline in enumerate(plan.pipelines, start=1):
        slowest = max(len(share.span) / nodes[share.id].power for share in pipeline)
        lines += [f"pipeline {index}: its slowest server takes {ms(slowest)} a token"]
        lines += [_table(pipeline, nodes, names), ""]
    if plan.replicas:
        lines += ["left over, and put where the swarm is slowest:", _table(plan.replicas, nodes, names), ""]
    if plan.unused:
        lines += [_listed("left over, and of no use", plan.unused, names), ""]
    if staying := sorted(keepers(plan, cluster)):
        lines += [_listed("these keep the layers they hold", staying, names), ""]
    lines += [_yield_text(cluster, plan)]
    if gateway is not None:
        lines += ["", gateway_text(rings, gateway, names)]
    if told := legend(names):
        lines += ["", *told]
    return "\n".join(lines)


def scores_text(plan: Plan) -> str:
    """By what the number of pipelines was chosen, for who asked for details."""
    scores = ", ".join(f"{name} {value:.4f}" for name, value in plan.scores)
    return f"\nscore: {scores} (chosen by {plan.score_name})"


def _yield_text(cluster: Cluster, plan: Plan) -> str:
    rate = swarm_tokens_per_s(with_spans(cluster, plan), cluster.layers)
    each = "it holds the whole model" if plan.k == 1 else "each holds the whole model"
    sure = f"not proven: these are {plan.gap}" if plan.gap else "yes, proven"
    return (
        f"{_count(plan.k, 'pipeline')} of {_count(plan.stages, 'server')} in all; {each}\n"
        f"all conversations together: {rate:.2f} tokens/s, if no server computes several at once\n"
        "times are of layers alone, on idle servers; `route` adds fixed times and counts the present load\n"
        f"is that the best number of pipelines? {sure}"
    )


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}" + "s" * (number != 1)


def gateway_text(rings: Sequence[Sequence[Node]], gateway: Gateway, names: Mapping[str, str]) -> str:
    """Where it should stand, what that saves, and in which order the stages then serve it best."""
    own = f"links cost {ms(gateway.own_loop_s)} a token from where the client is"
    if gateway.node is None:
        place = f"gateway: stay; {own}, and no node's place is better"
    else:
        region = f" (region {gateway.node.region})" if gateway.node.region else ""
        place = (
            f"gateway: stand beside {names[gateway.node.id]}{region};\n"
            f"  {own} and {ms(gateway.loop_s)} from there,\n"
            f"  which saves {ms(gateway.saves_s)}. A person far from it waits the extra way once an answer."
        )
    surely = "" if gateway.exact else " (good, not proven the best)"
    orders = [folded([names[name] for name in order], " -> ", begin="  ") for order in _orders(rings, gateway)]
    lines = [place, f"best order of servers for it{surely}:", *orders]
    if gateway.assumed:
        lines.append(
            f"  {gateway.assumed} of the {gateway.links} links compared were not measured: they count as assumed"
        )
    return "\n".join(lines)


def _orders(rings: Sequence[Sequence[Node]], gateway: Gateway) -> list[list[str]]:
    return [[ring[index].id for index in loop.order] for ring, loop in zip(rings, gateway.loops, strict=True)]


def _table(shares: Iterable[Share], nodes: Mapping[str, Node], names: Mapping[str, str]) -> str:
    return table(HEAD, [_row(names[share.id], share, nodes[share.id]) for share in shares])


def _row(name: str, share: Share, node: Node) -> tuple[str, ...]:
    stage_s = len(share.span) / node.power
    return name, str(share.span), str(node.capacity_layers), f"{node.power:g}", ms(stage_s)


def _listed(what: str, ids: Iterable[str], names: Mapping[str, str]) -> str:
    return folded([names[name] for name in ids], ", ", begin=f"{what}: ")


def _shortage(cluster: Cluster) -> str:
    room = sum(node.capacity_layers for node in cluster.nodes)
    if room < cluster.layers:
        return f"all nodes together have room for {room} layers, and the model has {cluster.layers}"
    return f"the nodes that may serve cannot hold {cluster.layers} layers between them"


def _named(shares: Sequence[Share]) -> list[tuple[str, Span]]:
    return [(share.id, share.span) for share in shares]
