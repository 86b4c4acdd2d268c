"""A cluster as arrays: everything about its nodes that routing reads, in order of id."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swarm.core.announcement import Reach, State
from swarm.core.errors import ConfigError
from swarm.core.numerics import DTYPE_BYTES, Numerics
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.reasons import Verdict, has_embeddings, has_head
from swarm.scheduling.routing_layers import BLOCK_CELLS, Layout, lay_out
from swarm.scheduling.routing_links import DENSE_NODES, WORST_S, Bools, Floats, Ints, Links, links_of
from swarm.scheduling.routing_price import upload_s
from swarm.scheduling.routing_search import Costs
from swarm.scheduling.routing_types import RouteNeeds

LOT_S = 1e-12
"""Every stage costs up to twice this more, by lot: among chains of one latency the shorter, then any."""


@dataclass(frozen=True, slots=True)
class Arrays:
    """All arrays are [nodes]. ``room`` is free KV in tokens, ``ready`` who takes any session at all.

    ``kind`` numbers ``classes``, the numerics there are, best precision first. ``sends_s`` is the time to send a byte.
    """

    cluster: Cluster
    nodes: tuple[Node, ...]
    number: Mapping[str, int]
    links: Links
    layout: Layout
    starts: Ints
    ends: Ints
    tau_s: Floats
    fixed_s: Floats
    client_s: Floats
    sends_s: Floats
    room: Floats
    ready: Bools
    kind: Ints
    classes: tuple[str, ...]
    begins: Bools
    finishes: Bools
    sessions: Ints
    lots: NDArray[np.uint64]

    @classmethod
    def of(cls, cluster: Cluster, dense_nodes: int = DENSE_NODES, block_cells: int = BLOCK_CELLS) -> Arrays:
        """The arrays of ``cluster``; raises ``ConfigError`` if it has no layers."""
        if cluster.layers < 1:
            raise ConfigError(f"a model of {cluster.layers} layers")
        nodes = tuple(sorted(cluster.nodes, key=lambda node: node.id))
        links = links_of(cluster, nodes, dense_nodes)
        starts = np.array([0 if node.span is None else node.span.start for node in nodes], dtype=np.intp)
        ends = np.array([0 if node.span is None else node.span.end for node in nodes], dtype=np.intp)
        classes = {str(node.numerics): node.numerics for node in nodes}  # str names the class, defaults resolved
        names = sorted(classes, key=lambda name: _precision(classes[name]))

        def times(values: list[float]) -> Floats:
            clipped: Floats = np.minimum(np.array(values, dtype=float), WORST_S)
            return clipped

        return cls(
            cluster=cluster,
            nodes=nodes,
            number={node.id: index for index, node in enumerate(nodes)},
            links=links,
            layout=lay_out(starts, ends, cluster.layers, links, block_cells),
            starts=starts,
            ends=np.minimum(ends, cluster.layers),
            tau_s=times([node.tau_s for node in nodes]),
            fixed_s=times([node.fixed_s for node in nodes]),
            client_s=times([cluster.client_rtt(node) / 2 for node in nodes]),
            sends_s=times([cluster.uplink_s(node, 1) for node in nodes]),
            room=np.array([np.inf if node.kv_free_tokens is None else node.kv_free_tokens for node in nodes], float),
            ready=np.array([node.span is not None and _never(node) is None for node in nodes], dtype=bool),
            kind=np.array([names.index(str(node.numerics)) for node in nodes], dtype=np.intp),
            classes=tuple(names),
            begins=np.array([has_embeddings(node) for node in nodes], dtype=bool),
            finishes=np.array([has_head(node, cluster.layers) for node in nodes], dtype=bool),
            sessions=np.array([node.sessions for node in nodes], dtype=np.intp),
            lots=np.array([_hash(node.id) for node in nodes], dtype=np.uint64),
        )

    @property
    def apart(self) -> bool:
        """True if some pairs may not be neighbours."""
        return bool(self.cluster.apart)

    def kept_from(self, peer: str) -> tuple[int, ...]:
        """The nodes that may not stand beside ``peer``, which need not be a node itself."""
        return tuple(self.number[name] for name in self.cluster.kept_from(peer) if name in self.number)

    def usable(self, needs: RouteNeeds) -> Bools:
        """Who may be in a chain of these needs, the numerics class aside."""
        usable: Bools = self.ready & (self.room >= needs.kv_tokens)
        for peer in needs.excluded:
            if (index := self.number.get(peer)) is not None:
                usable[index] = False
        return usable

    def groups(self, needs: RouteNeeds) -> list[Bools]:
        """Who may stand in one chain together: each class that covers the model; if classes may mix, all."""
        usable = self.usable(needs)
        if needs.numerics == "any":
            groups = [usable]
        else:
            asked = list(range(len(self.classes)))
            if isinstance(needs.numerics, Numerics):
                asked = [index for index in asked if self.classes[index] == str(needs.numerics)]
            groups = [usable & (self.kind == index) for index in asked]
        return [group for group in groups if self._covers(group)]

    def _covers(self, group: Bools) -> bool:
        size = self.cluster.layers + 1
        change = np.bincount(self.starts[group], minlength=size) - np.bincount(self.ends[group], minlength=size)
        return bool((np.cumsum(change)[:-1] > 0).all())

    def costs(self, needs: RouteNeeds, group: Bools, salt: int, spread: float) -> Costs:
        """What a session pays at each node of ``group``, with the lots that ``salt`` draws."""
        cluster, remote = self.cluster, needs.head == "remote"
        exit_bytes = cluster.activation_bytes if needs.exit_bytes is None else needs.exit_bytes
        lots = _draw(self.lots, salt)
        enter_s = self.client_s + min(upload_s(cluster, needs), WORST_S)
        leave_s = self.client_s + self.sends_s * exit_bytes
        fixed_s = self.fixed_s * (1 + spread * lots) + LOT_S * (1 + lots)
        return Costs(
            enter_s=np.where(self.begins, enter_s, np.inf) if remote else enter_s,
            leave_s=np.where(self.finishes, leave_s, np.inf) if remote else leave_s,
            fixed_s=np.where(group, fixed_s, np.inf),
            tau_s=self.tau_s * (1 + spread * lots) if spread else self.tau_s,
        )

    def verdicts(self, needs: RouteNeeds) -> list[Verdict]:
        """Why each node cannot be in any chain of these needs, if so."""
        return [Verdict(node, _objection(node, needs)) for node in self.nodes]


def _never(node: Node) -> str | None:
    """Why a node takes no session of anybody."""
    if node.state is not State.ONLINE:
        return f"are {node.state.value}"
    if node.reach is Reach.UNREACHABLE:
        return "cannot be reached"
    return None if node.live else "have not been heard of lately"


def _objection(node: Node, needs: RouteNeeds) -> str | None:
    if node.id in needs.excluded:
        return "have just failed this client"
    if (never := _never(node)) is not None:
        return never
    if node.kv_free_tokens is not None and node.kv_free_tokens < needs.kv_tokens:
        return f"have too little KV room (under {needs.kv_tokens} token{'s' * (needs.kv_tokens != 1)})"
    if isinstance(needs.numerics, Numerics) and str(node.numerics) != str(needs.numerics):
        return f"compute in {node.numerics} and not in {needs.numerics}"
    return None


def _precision(numerics: Numerics) -> tuple[bool, int, str]:
    return numerics.quantization != "none", -DTYPE_BYTES.get(numerics.dtype, 0), str(numerics)


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest())


def _draw(lots: NDArray[np.uint64], salt: int) -> Floats:
    """[nodes] in [0, 1): each node's lot, a mix of its hash with the salt's (the finaliser of splitmix64)."""
    mixed = lots ^ np.uint64(_hash(str(salt)))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    mixed ^= mixed >> np.uint64(31)
    return (mixed >> np.uint64(11)).astype(float) * 2.0**-53
