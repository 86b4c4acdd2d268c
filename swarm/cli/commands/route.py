"""``swarm route``: the chain of servers a client would take through a described cluster, without any network."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from itertools import pairwise

from swarm.cli.output.tables import legend, ms, short_names, table
from swarm.cli.what_if import add_cluster_arguments, chain_lines, chain_text, load_cluster, stages_json
from swarm.core.errors import ConfigError, NoRouteError
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.routing import Route, RouteNeeds, RouteOptions, find_route, price

EXAMPLES = """\
examples:
  python -m swarm route --cluster swarm.json
  python -m swarm route --cluster swarm.json --kv-tokens 8192 --json
  python -m swarm status --initial-peers ... --save swarm.json; python -m swarm route --cluster swarm.json

The objective, in seconds a token: half of the client's round trip to the first server; for each server its fixed time
and its layers' times; for each hop half of the round trip and 8 * activation_bytes / uplink of the sender; 8 *
activation_bytes / uplink of the last server and half of its round trip to the client. The chain is the best there is;
where the file gives session counts, the one with the fewest sessions among those within 5 % of the best. With
--as-client a chain whose sessions already fill it also gives way, as clients do so that they do not all crowd together.
Exit code: 0, or 1 if there is no chain (the reason is printed).
"""

ALWAYS_NEAR = RouteOptions(rounds=0)
"""No chain gives way to one that is more than 5 % slower."""
Term = tuple[str, float]
"""A part of the objective in words, and its seconds."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Find the fastest chain of servers through a described cluster, and say what it costs."
    parser.epilog = EXAMPLES
    add_cluster_arguments(parser)
    parser.add_argument("--kv-tokens", type=int, default=1, metavar="N", help="KV room every server must have, in "
                        "tokens (default: 1)")  # fmt: skip
    parser.add_argument(
        "--numerics", default="same", metavar="CLASS",
        help='"same" (default): one class for the whole chain; "any": they may mix; or a class like bfloat16+int8',
    )  # fmt: skip
    parser.add_argument("--as-client", action="store_true", help="pass over chains that are full, as clients do")


def run(options: argparse.Namespace) -> int:
    cluster = load_cluster(options.cluster)
    needs = _needs(options)
    try:
        route = find_route(cluster, needs=needs, options=RouteOptions() if options.as_client else ALWAYS_NEAR)
    except NoRouteError as error:
        if options.json:
            nothing: dict[str, object] = {
                "chain": [],
                "latency_s": None,
                "standby": [],
                "standby_s": [],
                "exact": None,
                "terms": [],
            }
            print(json.dumps(nothing | {"reason": error.message}))
        else:
            print(f"no chain: {error}")
        return 1
    print(route_json(cluster, route, needs) if options.json else route_text(cluster, route, needs))
    return 0


def _needs(options: argparse.Namespace) -> RouteNeeds:
    if options.kv_tokens < 0:
        raise ConfigError(f"--kv-tokens {options.kv_tokens} is negative", hint="give 0 or more")
    if options.numerics in ("same", "any"):
        return RouteNeeds(kv_tokens=options.kv_tokens, numerics=options.numerics)
    return RouteNeeds(kv_tokens=options.kv_tokens, numerics=Numerics.parse(options.numerics))


def route_json(cluster: Cluster, route: Route, needs: RouteNeeds) -> str:
    """One object; ``standby`` and ``standby_s`` hold one element for each server of the chain."""
    whole = {node.id: node.id for node in cluster.nodes}
    return json.dumps(
        {
            "chain": stages_json(_named(route)),
            "latency_s": price(cluster, route.stages, needs),
            "standby": [
                [] if standby is None else stages_json((str(stage.peer), stage.span) for stage in standby.stages)
                for standby in route.standbys
            ],
            "standby_s": [None if standby is None else standby.latency_s for standby in route.standbys],
            "reason": None,
            "exact": route.exact,
            "terms": [{"what": what, "seconds": seconds} for what, seconds in cost_terms(cluster, route, whole)],
        }
    )


def route_text(cluster: Cluster, route: Route, needs: RouteNeeds) -> str:
    """The chain, each term of its cost, and who would stand in."""
    latency_s = price(cluster, route.stages, needs)
    rate = f", {1 / latency_s:.2f} tokens/s for a lone session" if latency_s > 0 else ""
    names = short_names(node.id for node in cluster.nodes)
    stages = [(names[peer], span) for peer, span in _named(route)]
    lines = [chain_lines(stages), ""]
    terms = [(what, ms(seconds)) for what, seconds in cost_terms(cluster, route, names)]
    lines += [table(("cost", "a token"), [*terms, (f"in all{rate}", ms(latency_s))]), ""]
    rows = []
    for (name, span), standby in zip(stages, route.standbys, strict=True):
        who = "nobody" if standby is None else chain_text((names[stage.peer], stage.span) for stage in standby.stages)
        rows.append((f"{name} [{span}]", who, ms(None if standby is None else standby.latency_s)))
    lines.append(table(("server", "standby", "which costs"), rows))
    if not route.exact:
        lines.append("\nThe servers differ in numerics: answers of this chain are not exact.")
    if told := legend(names):
        lines += ["", *told]
    return "\n".join(lines)


def cost_terms(cluster: Cluster, route: Route, names: Mapping[str, str]) -> list[Term]:
    """The objective of DESIGN 7 term by term, for a local head; the sum is ``price``. ``names`` are what ids are
    called."""
    nodes = {node.id: node for node in cluster.nodes}
    chain = [nodes[stage.peer] for stage in route.stages]
    first, last = chain[0], chain[-1]
    begin, end = names[first.id], names[last.id]
    terms: list[Term] = [(f"client -> {begin}: half of the round trip", cluster.client_rtt(first) / 2)]
    if cluster.client_uplink_mbps is not None:
        sending_s = 8.0 * cluster.activation_bytes / (cluster.client_uplink_mbps * 1e6)
        terms.append((f"client -> {begin}: sending", sending_s))
    stages = list(zip(chain, route.stages, strict=True))
    for (node, stage), (following, _) in pairwise(stages):
        way = f"{names[node.id]} -> {names[following.id]}"
        terms += [_stage(names[node.id], node, stage.span), *_hop(way, cluster, node, following)]
    terms.append(_stage(end, last, route.stages[-1].span))
    terms.append((f"{end} -> client: sending", cluster.uplink_s(last, cluster.activation_bytes)))
    terms.append((f"{end} -> client: half of the round trip", cluster.client_rtt(last) / 2))
    return terms


def _stage(name: str, node: Node, span: Span) -> Term:
    each = f"{ms(node.fixed_s)} + {len(span)} x {ms(node.tau_s)}"
    return f"{name}: {len(span)} layers, {each}", node.fixed_s + len(span) * node.tau_s


def _hop(way: str, cluster: Cluster, sender: Node, receiver: Node) -> list[Term]:
    return [
        (f"{way}: half of the round trip", cluster.rtt_between(sender, receiver) / 2),
        (f"{way}: sending", cluster.uplink_s(sender, cluster.activation_bytes)),
    ]


def _named(route: Route) -> list[tuple[str, Span]]:
    return [(str(stage.peer), stage.span) for stage in route.stages]
