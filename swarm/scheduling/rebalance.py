"""When a serving node should move, and where to: rarely, one at a time, and only for a gain that is worth a reload."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from swarm.core.announcement import State
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.intents import Choice, reason_for
from swarm.scheduling.intents_future import (
    PlacingOptions,
    fresh,
    is_joining_claim,
    is_move_claim,
    is_moving,
    priority,
    settle,
    settled,
)
from swarm.scheduling.intents_windows import Quality, Rates, best_window, quality, rates_of

MOST_COMPARED = 32
"""Nodes whose moves a node compares with its own: those that are missed least where they are."""


def layer_loads(nodes: Iterable[Node], layers: int, *, alpha: float) -> Rates:
    """What the nodes have put to each layer, shape ``[layers]``, in units of an even share (so its mean is 1).

    ``alpha`` times the layer's share of free KV room plus ``1 - alpha`` times its share of compute (DESIGN 7); a node
    gives each of its layers power / span and all of its KV tokens. Every token passes every layer, so the demand is the
    same everywhere, and the layers with the least are the bottleneck. A node's part goes with it, at once. O(nodes ·
    layers).
    """
    holders = sorted((node for node in nodes if node.span is not None), key=lambda node: node.id)
    room = np.zeros(layers)
    for node in holders:
        if node.span is not None:
            room[node.span.start : node.span.end] += _ROOM if node.kv_free_tokens is None else node.kv_free_tokens
    return np.asarray(alpha * _even(room) + (1 - alpha) * _even(rates_of(holders, layers)))


_ROOM = 1_000_000
"""KV tokens of a node that has room for any session."""


def _even(amounts: Rates) -> Rates:
    mean = float(amounts.mean()) if len(amounts) else 0.0
    return np.asarray(amounts / mean) if mean > 0 else np.ones(len(amounts))


def unbalance(loads: Rates) -> float:
    """The coefficient of variation of the layers' loads: their standard deviation over their mean; 0 is even."""
    mean = float(loads.mean())
    return float(loads.std()) / mean if mean > 0 else 0.0


def choose_move(
    cluster: Cluster,
    self_id: str,
    options: PlacingOptions,
    *,
    now_s: float,
    waited_looks: int = 0,
    held_up: bool = False,
) -> Choice | None:
    """Where ``self_id`` should move by this view, None if it should stay. Its own claim in the view is disregarded.

    It should move if some layer has no server, or the layers' load varies by more than ``options.unbalance``; if nobody
    else is moving, or claims to with the smaller hash; if the swarm gains more than ``options.move_threshold`` by it
    and no layer loses its last server; if it would not merely give up a part of what it holds; and if nobody else's
    move gains more, unless that one has not come forward for ``options.patience`` looks. Every move improves
    ``Quality`` by a fixed share and makes nothing before it worse, so a swarm that nobody joins or leaves comes to
    rest. ``held_up`` says that others have been about to move for too long: then nobody waits for them where a layer
    has no server even once they are where they mean to go.
    O(MOST_COMPARED · layers · capacity + nodes · layers).
    """
    me = next((node for node in cluster.nodes if node.id == self_id), None)
    if me is None or me.state is not State.ONLINE or me.span is None:
        return None
    if not held_up and _must_wait(cluster, me, options, now_s):
        return None
    nodes = _holders_to_be(cluster, me, options, now_s)
    rates = rates_of(nodes, cluster.layers)
    uneven = unbalance(layer_loads(nodes, cluster.layers, alpha=options.alpha))
    covered = bool((rates > 0).all())
    if covered and (held_up or uneven <= options.unbalance):
        return None
    found = _best_move(rates, me, options)
    if found is None:
        return None
    span, worth = found
    if waited_looks < options.patience and _outdone(worth, rates, _rivals(nodes, rates, self_id), options):
        return None
    return Choice(span, reason_for(rates, span), float(rates.min(initial=np.inf)), worth.tokens_per_s)


def is_wanted(cluster: Cluster, self_id: str, options: PlacingOptions, *, now_s: float) -> bool:
    """True if some move of ``self_id`` would be worth it, whoever else might come forward first."""
    return choose_move(cluster, self_id, options, now_s=now_s, waited_looks=options.patience) is not None


def _goes_first(other: Node, me: Node) -> bool:
    return me.intent is None or priority(other) < priority(me)


def _must_wait(cluster: Cluster, me: Node, options: PlacingOptions, now_s: float) -> bool:
    """True if another node is moving, or has a claim to move that goes first."""
    return any(
        node.id != me.id
        and fresh(node, options, now_s)
        and (is_moving(node) or (is_move_claim(node) and node.live and _goes_first(node, me)))
        for node in cluster.nodes
    )


def _holders_to_be(cluster: Cluster, me: Node, options: PlacingOptions, now_s: float) -> list[Node]:
    """Who holds what once everybody is where it means to go, and ``me`` where it is; by id."""
    future = settled(cluster, options, now_s)
    future[me.id] = settle(me, me.span)
    for node in cluster.nodes:  # a newcomer's claim with the smaller hash goes first, so it counts as there
        if is_joining_claim(node) and fresh(node, options, now_s) and _goes_first(node, me):
            future[node.id] = settle(node, node.intent)
    return sorted((node for node in future.values() if node.span is not None), key=lambda node: node.id)


def _outdone(worth: Quality, rates: Rates, rivals: Iterable[Node], options: PlacingOptions) -> bool:
    """True if some rival's best move gains more."""
    moves = (_best_move(rates, node, options) for node in rivals)
    return any(move and move[1].better_than(worth, options.threshold) for move in moves)


def _best_move(rates: Rates, node: Node, options: PlacingOptions) -> tuple[Span, Quality] | None:
    """The best other span for ``node``, and the quality of the swarm by it, if that gains more than the threshold."""
    if node.span is None:
        return None
    without = _without(rates, node, node.span)
    span = best_window(without, max(node.capacity_layers, 1), node.power)
    if node.span.covers(span):
        return None  # where it is, or less of it: the others that hold the rest may be here for a minute only
    without[span.start : span.end] += node.power / len(span)
    moved = quality(without)
    return (span, moved) if moved.better_than(quality(rates), options.move_threshold) else None


def _without(rates: Rates, node: Node, span: Span) -> Rates:
    """``rates`` once ``node`` is gone; what is left of a sum by rounding alone is nothing."""
    left = rates.copy()
    held = slice(span.start, span.end)
    rest = left[held] - node.power / len(span)
    left[held] = np.where(rest > left[held] * 1e-9, rest, 0.0)
    return left


def _rivals(nodes: Sequence[Node], rates: Rates, self_id: str) -> list[Node]:
    """The other nodes that are missed least: those with the largest part of their layers' rate held by others."""

    def missed(node: Node) -> tuple[float, str]:
        if node.span is None:
            return 0.0, node.id
        return float((node.power / len(node.span) / rates[node.span.start : node.span.end]).max()), node.id

    return sorted((node for node in nodes if node.id != self_id), key=missed)[:MOST_COMPARED]
