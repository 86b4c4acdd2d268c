"""A cluster as arrays, ready to route many sessions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swarm.core.announcement import Reach, State
from swarm.core.errors import ConfigError, NoRouteError
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_STAGES
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.reasons import Verdict, explain
from swarm.scheduling.routing_types import Route, RouteNeeds, Stage

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class RoutingTable:
    """One view of a swarm in arrays."""

    cluster: Cluster
    hop_s: Floats

    @classmethod
    def of(cls, cluster: Cluster) -> RoutingTable:
        """The table of ``cluster``; raises ``ConfigError`` if it has no layers."""
        if cluster.layers < 1:
            raise ConfigError(f"a model of {cluster.layers} layers")
        nodes = cluster.nodes
        hop_s = np.array(
            [
                [
                    np.inf if a is b else cluster.rtt_between(a, b) / 2 + cluster.uplink_s(a, cluster.activation_bytes)
                    for b in nodes
                ]
                for a in nodes
            ]
        ).reshape(len(nodes), len(nodes))
        return cls(cluster, hop_s)

    def route(self, needs: RouteNeeds, salt: int = 0) -> Route:
        """The fastest chain that meets ``needs``; raises ``NoRouteError`` with the reason if there is none."""
        nodes = self.cluster.nodes
        verdicts = [Verdict(node, _objection(node, needs)) for node in nodes]
        usable = np.array([verdict.objection is None for verdict in verdicts], dtype=bool)
        names = np.array([str(node.numerics) for node in nodes])
        best: tuple[float, list[tuple[int, int, int]]] | None = None
        masks = [usable] if needs.numerics == "any" else [usable & (names == name) for name in sorted(set(names))]
        for mask in masks:
            found = self._fastest(mask, needs)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None:
            raise explain(verdicts, self.cluster.layers, remote_head=needs.head == "remote")
        latency_s, parts = best
        if len(parts) > MAX_STAGES:
            raise NoRouteError(
                f"the fastest chain has {len(parts)} servers, over {MAX_STAGES}", hint="let servers hold longer spans"
            )
        stages = tuple(Stage(PeerId(nodes[index].id), Span(start, end)) for index, start, end in parts)
        exact = len({names[index] for index, _, _ in parts}) == 1
        return Route(stages, latency_s, exact, (None,) * len(stages))

    def _fastest(self, mask: Bools, needs: RouteNeeds) -> tuple[float, list[tuple[int, int, int]]] | None:
        cluster, nodes, layers = self.cluster, self.cluster.nodes, self.cluster.layers
        if not mask.any():
            return None
        remote = needs.head == "remote"
        tau = np.array([node.tau_s for node in nodes])
        fixed = np.array([node.fixed_s for node in nodes])
        start = np.array([node.span.start if node.span else layers for node in nodes])
        end = np.array([min(node.span.end, layers) if node.span else 0 for node in nodes])
        entry_bytes = cluster.activation_bytes if needs.entry_bytes is None else needs.entry_bytes
        exit_bytes = cluster.activation_bytes if needs.exit_bytes is None else needs.exit_bytes
        upload_s = 0.0
        if cluster.client_uplink_mbps is not None:
            upload_s = 8.0 * entry_bytes / (cluster.client_uplink_mbps * 1e6)
        client = np.array([cluster.client_rtt(node) / 2 for node in nodes])
        leave = client + np.array([cluster.uplink_s(node, exit_bytes) for node in nodes])
        begins = mask & (start == 0) & np.array([node.embeddings or not remote for node in nodes])
        done = np.where(begins, client + upload_s + fixed + tau, np.inf)
        via = np.full((layers, len(nodes)), -1)
        for layer in range(1, layers):
            active = mask & (start <= layer) & (layer < end)
            switch = done[:, None] + self.hop_s
            chosen = np.argmin(switch, axis=0)
            switched = switch[chosen, np.arange(len(nodes))] + fixed
            stay = np.where(end > layer, done, np.inf)
            via[layer] = np.where(switched < stay, chosen, -1)
            done = np.where(active, np.minimum(stay, switched) + tau, np.inf)
        total = done + leave + np.where([node.head or not remote for node in nodes], 0.0, np.inf)
        last = int(np.argmin(total))
        if not np.isfinite(total[last]):
            return None
        return float(total[last]), _walk(via, last)


def _walk(via: NDArray[np.int_], last: int) -> list[tuple[int, int, int]]:
    layers = len(via)
    parts, current, end = [], last, layers
    for layer in range(layers - 1, 0, -1):
        if via[layer, current] >= 0:
            parts.append((current, layer, end))
            current, end = int(via[layer, current]), layer
    parts.append((current, 0, end))
    return parts[::-1]


def _objection(node: Node, needs: RouteNeeds) -> str | None:
    """Why this server cannot be in any chain of these needs; None if it can."""
    if node.state is not State.ONLINE:
        return f"are {node.state.value}"
    if node.id in needs.excluded:
        return "have just failed this client"
    if node.reach is Reach.UNREACHABLE:
        return "cannot be reached"
    if not node.live:
        return "have not been heard of lately"
    if node.kv_free_tokens is not None and node.kv_free_tokens < needs.kv_tokens:
        return f"have too little KV room (under {needs.kv_tokens} tokens)"
    if isinstance(needs.numerics, Numerics) and str(node.numerics) != str(needs.numerics):
        return f"compute in other numerics than {needs.numerics}"
    return None
