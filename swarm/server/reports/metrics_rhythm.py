"""When a server says how it is. Pure: time and figures come in, the time of the next record goes out."""

from __future__ import annotations

from collections.abc import Iterable

from swarm.core.metrics import Metrics
from swarm.dht.sharding import metrics_interval_s, metrics_lifetime_s
from swarm.server.config import ServerConfig

CHANGE = 0.10
"""A figure that differs by more than this share is news."""
RETRY_S = 1.0
"""After a record that was not stored."""


class Rhythm:
    """The times of one server's metrics records.

    At once when a session opens or closes, but never two within ``metrics_gap_s``; under load every
    ``metrics_busy_s`` while figures change, else every ``metrics_steady_s``; idle every ``metrics_idle_s``. In a large
    swarm all of these stretch (``metrics_interval_s``). A change that comes too soon is told when its time has come,
    so the last one is never lost.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._said: Metrics | None = None
        self._said_s = 0.0
        self._urgent = True

    def changed(self) -> None:
        """A session has opened or closed."""
        self._urgent = True

    def due_s(self, metrics: Metrics, servers: int) -> float:
        """When to publish, if ``metrics`` are what there is to say and the model has so many servers."""
        said, config = self._said, self._config
        if said is None:
            return self._said_s
        if self._urgent:
            base_s = config.metrics_gap_s
        elif idle(metrics):
            base_s = config.metrics_idle_s
        else:
            base_s = config.metrics_busy_s if differ(_figures(said), _figures(metrics)) else config.metrics_steady_s
        return self._said_s + metrics_interval_s(servers, base_s)

    def look_s(self, metrics: Metrics) -> float:
        """How long figures may go unlooked at: idle, nothing but a session changes them, and that is told."""
        return self._config.metrics_idle_s if idle(metrics) else self._config.metrics_busy_s

    def lifetime_s(self, servers: int) -> float:
        """How long a record lives: some idle intervals, so that one write may fail."""
        return metrics_lifetime_s(metrics_interval_s(servers, self._config.metrics_idle_s))

    def said(self, metrics: Metrics, now_s: float) -> None:
        """``metrics`` are on their way; what changes from now on is not in them."""
        self._said, self._said_s, self._urgent = metrics, now_s, False

    def failed(self, now_s: float) -> None:
        """They did not arrive."""
        self._said, self._said_s = None, now_s + RETRY_S


def idle(metrics: Metrics) -> bool:
    """True if the server has nothing to do."""
    return not metrics.sessions and not metrics.queued_steps


def differ(before: Iterable[float], after: Iterable[float]) -> bool:
    """True if one figure is more than ``CHANGE`` of the larger value away from its earlier one."""
    return any(abs(a - b) > CHANGE * max(abs(a), abs(b)) for a, b in zip(before, after, strict=True))


def _figures(metrics: Metrics) -> tuple[float, ...]:
    return metrics.tau_s, metrics.fixed_s, float(metrics.kv_free_tokens)
