"""The swarm as it will be: every announced intent taken for done, everybody who goes or has fallen silent gone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import median

from swarm.core.announcement import State
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.view import UNKNOWN_POWER

MOST_POWER = 1000.0
"""Times the median: a large GPU beside small CPUs is within it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacingOptions:
    """How servers choose and change their spans; all servers of a swarm do best with the same values.

    ``threshold`` is the relative gain under which nobody changes its claim or leaves the span it remembers,
    ``move_threshold`` the one under which nobody moves while every layer has a server.
    ``unbalance`` is the coefficient of variation of the layers' load above which a move is thought about, ``alpha`` the
    weight of KV room in that load. ``patience`` is how many looks a server that is not the best mover waits for that
    one. A claim older than ``claim_life_s``, or a move or a first load older than ``move_life_s``, is taken for
    abandoned; both are generous, because they compare two machines' clocks. ``most_claims`` bounds what a flood of
    newcomers costs.
    """

    threshold: float = 0.1
    move_threshold: float = 0.15
    unbalance: float = 0.25
    alpha: float = 0.5
    patience: int = 3
    claim_life_s: float = 180.0
    move_life_s: float = 7200.0
    most_claims: int = 64


def priority(node: Node) -> str:
    """The hash that decides between conflicting intents: of two, the smaller wins (DESIGN 7)."""
    return hashlib.sha256(f"{node.id} {node.intent_s!r}".encode()).hexdigest()


def is_joining_claim(node: Node) -> bool:
    """True for a newcomer that has not begun to load: it may still choose another span."""
    return node.state is State.JOINING and node.intent is not None


def is_move_claim(node: Node) -> bool:
    """True for a serving node that would like to move, and has not begun to."""
    return node.state is State.ONLINE and node.intent is not None


def is_moving(node: Node) -> bool:
    """True for a node that leaves one span for another: nobody else moves meanwhile."""
    return node.state is State.DRAINING and node.intent is not None


def fresh(node: Node, options: PlacingOptions, now_s: float) -> bool:
    """False for an intent that was given up, or comes from a clock that is far off."""
    life_s = options.move_life_s if is_moving(node) else options.claim_life_s
    return abs(now_s - node.intent_s) <= life_s


def future_span(node: Node, options: PlacingOptions, now_s: float) -> Span | None:
    """What ``node`` will hold, None if nothing; a claim counts as nothing yet, its node as staying where it is."""
    if node.state is State.JOINING:
        loading = node.intent is None and (node.started_s is None or now_s - node.started_s <= options.move_life_s)
        return node.span if loading else None
    if node.state is State.DRAINING:
        return node.intent if node.intent is not None and fresh(node, options, now_s) else None
    return node.span if node.state is State.ONLINE and node.live else None


def settle(node: Node, span: Span | None) -> Node:
    """``node`` as one that holds ``span`` and wants nothing else."""
    return replace(node, span=span, intent=None, state=State.ONLINE, live=True)


def settled(cluster: Cluster, options: PlacingOptions, now_s: float) -> dict[str, Node]:
    """Every node but the newcomers that only claim yet, by id, as it will be; who will hold nothing has no span.

    A newcomer without a measured power is taken for as fast as the middle one of the others.
    """
    nodes = with_guessed_power(cluster.nodes)
    return {node.id: settle(node, future_span(node, options, now_s)) for node in nodes if not is_joining_claim(node)}


def with_guessed_power(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """``nodes``, in order of id; the power of those that did not measure theirs yet is the others' median.

    Nobody is taken for more than ``MOST_POWER`` times the median: powers are claims of strangers, and beside an absurd
    one every other figure would drown in rounding.
    """
    ordered = sorted(nodes, key=lambda node: node.id)
    known = [node.power for node in ordered if _measured(node)]
    guess = median(known) if known else UNKNOWN_POWER
    most = MOST_POWER * guess
    return tuple(replace(node, power=min(node.power, most) if _measured(node) else guess) for node in ordered)


def _measured(node: Node) -> bool:
    return node.state is not State.JOINING or node.power != UNKNOWN_POWER
