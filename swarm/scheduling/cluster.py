"""What the scheduler knows of a swarm: nodes, what they hold, how fast they are, and how far apart.

A cluster comes from the directory's view (``view.cluster_of``) or from a file (``cluster_file.read_cluster``); routing
and allocation know nothing else, so the same functions serve live sessions and what-if questions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from swarm.core.announcement import Coordinate, Reach, State
from swarm.core.numerics import Numerics
from swarm.core.spans import Span

PLAIN = Numerics("float32")


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One server. A decode step over n of its layers takes ``fixed_s + n * tau_s`` at its present load.

    ``span`` None: it serves nothing yet. ``capacity_layers`` is how many layers it could hold and ``power`` its speed
    in layers per second, alone and unloaded. ``uplink_mbps`` None is unmeasured. ``kv_free_tokens`` None means room
    for any session. ``step_s`` is t(b) for the b of ``metrics.BATCHES``, a step over its whole span (empty: unknown,
    taken as unbatched). ``intent`` is the span it is about to move to, since ``intent_s``.
    """

    id: str
    span: Span | None = None
    capacity_layers: int = 0
    power: float = 1.0
    region: str = ""
    tau_s: float = 0.0
    fixed_s: float = 0.0
    uplink_mbps: float | None = None
    kv_free_tokens: int | None = None
    state: State = State.ONLINE
    reach: Reach = Reach.DIRECT
    numerics: Numerics = PLAIN
    head: bool = True
    embeddings: bool = True
    live: bool = True
    """False: no metrics lately, so it is shown and not routed."""
    sessions: int = 0
    queued_steps: int = 0
    step_s: tuple[float, ...] = ()
    coordinate: Coordinate | None = None
    intent: Span | None = None
    intent_s: float = 0.0
    started_s: float | None = None
    """Wall time at which its process began, as it says; None: unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What is assumed where nothing was measured: pessimistic, so that an unknown link never looks free.

    ``region_rtt_s`` overrides ``rtt_s`` for a pair of regions (both orders are looked up).
    """

    rtt_s: float = 0.3
    client_rtt_s: float = 0.3
    uplink_mbps: float = 5.0
    region_rtt_s: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Nodes and links around one model of ``layers`` layers.

    ``activation_bytes`` is what one position's hidden state takes on the wire. ``rtt_s[a][b]`` is the measured round
    trip from a to b; where only the other direction was measured, that one counts. ``client_rtt_s`` is the client's to
    each node. ``client_uplink_mbps`` None leaves the client's sending out of the objective. ``apart`` are pairs of ids,
    the smaller first, that may not be neighbours in a chain: a round trip between them never ends.
    """

    layers: int
    nodes: tuple[Node, ...]
    activation_bytes: int = 16384
    rtt_s: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    client_rtt_s: Mapping[str, float] = field(default_factory=dict)
    client_uplink_mbps: float | None = None
    defaults: Defaults = field(default_factory=Defaults)
    apart: frozenset[tuple[str, str]] = frozenset()

    def rtt_between(self, a: Node, b: Node) -> float:
        """Round trip in seconds: measured either way, else by coordinates with a margin, else the default.

        Infinite between two that are kept apart.
        """
        if self.apart and (min(a.id, b.id), max(a.id, b.id)) in self.apart:
            return math.inf
        measured = self.rtt_s.get(a.id, {}).get(b.id)
        if measured is None:
            measured = self.rtt_s.get(b.id, {}).get(a.id)
        if measured is not None:
            return measured
        if a.coordinate is not None and b.coordinate is not None:
            return pessimistic_rtt_s(a.coordinate, b.coordinate)
        regions = self.defaults.region_rtt_s
        between = regions.get((a.region, b.region), regions.get((b.region, a.region)))
        return self.defaults.rtt_s if between is None else between

    def kept_from(self, name: str) -> frozenset[str]:
        """Who may not stand beside ``name``. O(pairs)."""
        return frozenset(b if a == name else a for a, b in self.apart if name in (a, b))

    def client_rtt(self, node: Node) -> float:
        """Round trip in seconds between the client and ``node``, the default if it was not measured."""
        return self.client_rtt_s.get(node.id, self.defaults.client_rtt_s)

    def uplink_s(self, node: Node, payload_bytes: float) -> float:
        """Seconds ``node`` takes to send ``payload_bytes``: 8·B / uplink (DESIGN 7)."""
        uplink_mbps = self.defaults.uplink_mbps if node.uplink_mbps is None else node.uplink_mbps
        return 8.0 * payload_bytes / (uplink_mbps * 1e6)


MARGIN = 1.25
"""By so much an estimated round trip is taken for longer, besides its own error: an estimate is not a measurement."""


def distance_s(a: Coordinate, b: Coordinate) -> float:
    """The round trip two Vivaldi coordinates predict: distance in the plane plus both heights."""
    return math.hypot(a.x_s - b.x_s, a.y_s - b.y_s) + a.height_s + b.height_s


def pessimistic_rtt_s(a: Coordinate, b: Coordinate) -> float:
    """``distance_s`` with ``MARGIN``, and with the larger of the two relative errors (at most doubled by it)."""
    return distance_s(a, b) * (MARGIN + min(max(a.error, b.error), 1.0))
