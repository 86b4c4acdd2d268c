"""The fastest chain that has one stage given: for whoever wants to know what a certain server answers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from swarm.core.errors import NoRouteError
from swarm.core.limits import MAX_STAGES
from swarm.core.spans import Span
from swarm.scheduling.cluster import Node
from swarm.scheduling.reasons import has_embeddings, has_head, layers_text
from swarm.scheduling.routing_arrays import Arrays
from swarm.scheduling.routing_price import chain_s
from swarm.scheduling.routing_types import Route, RouteNeeds, Stage
from swarm.scheduling.standby import replacement, standbys_of


def route_through(arrays: Arrays, stage: Stage, needs: RouteNeeds, salt: int = 0) -> Route:
    """The fastest chain in which ``stage.peer`` computes ``stage.span``, and standbys for its stages.

    The layers before and after it are filled as ``replacement`` does, each exactly; so the whole is the optimum. The
    server itself may serve other layers as well, but not those beside its stage. Sessions of others and knees count no
    more than in the servers' times: who is wanted is wanted. Raises ``NoRouteError`` if the server may not take part,
    does not hold the span, or nobody in its numerics class holds the rest.
    """
    layers = arrays.cluster.layers
    node = _node(arrays, stage)
    if needs.numerics == "same":
        needs = replace(needs, numerics=node.numerics)
    _check(arrays, node, stage.span, needs)
    around = [Span(0, stage.span.start)] if stage.span.start else []
    places = [*(Stage(stage.peer, span) for span in around), stage]
    if stage.span.end < layers:
        places.append(Stage(stage.peer, Span(stage.span.end, layers)))
    stages: list[Stage] = []
    for place, part in enumerate(places):
        found = [part] if part is stage else replacement(arrays, places, range(place, place + 1), needs, salt).stages
        stages.extend(found)
    if len(stages) > MAX_STAGES:
        raise NoRouteError(f"a chain through it has over {MAX_STAGES} servers", hint="let servers hold longer spans")
    nodes = [arrays.nodes[arrays.number[part.peer]] for part in stages]
    latency_s = chain_s(arrays.cluster, [(n, len(part.span)) for n, part in zip(nodes, stages, strict=True)], needs)
    return Route(tuple(stages), latency_s, _one_class(nodes), standbys_of(arrays, stages, needs, salt))


def _node(arrays: Arrays, stage: Stage) -> Node:
    number = arrays.number.get(stage.peer)
    if number is None:
        raise NoRouteError(f"server {stage.peer[-8:]} is not in this swarm", hint="see `python -m swarm status`")
    return arrays.nodes[number]


def _check(arrays: Arrays, node: Node, span: Span, needs: RouteNeeds) -> None:
    """Raise ``NoRouteError`` unless the server itself can stand where it is wanted."""
    (verdict,) = (verdict for verdict in arrays.verdicts(needs) if verdict.server is node)
    why = None if verdict.objection is None else f"is one of those that {verdict.objection}"
    if node.span is None or not (node.span.start <= span.start and span.end <= node.span.end):
        why = f"does not hold {layers_text([span])}"
    elif needs.head == "remote" and span.start == 0 and not has_embeddings(node):
        why = "holds no embeddings"
    elif needs.head == "remote" and span.end >= arrays.cluster.layers and not has_head(node, arrays.cluster.layers):
        why = "holds no LM head"
    if why is not None:
        raise NoRouteError(f"server {node.id[-8:]} {why}", hint="try later, or ask for other layers")


def _one_class(nodes: Iterable[Node]) -> bool:
    return len({str(node.numerics) for node in nodes}) == 1
