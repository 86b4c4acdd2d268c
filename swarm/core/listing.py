"""One server as a reader of the directory sees it."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.core.announcement import Announcement
from swarm.core.ids import PeerId
from swarm.core.metrics import Metrics


@dataclass(frozen=True, slots=True)
class Listing:
    """A server's announcement, the signed bytes it came in, and its live metrics.

    ``metrics`` None means it has not been heard of lately: such a server is shown, but not routed.
    """

    announcement: Announcement
    record: bytes
    metrics: Metrics | None = None

    @property
    def peer(self) -> PeerId:
        return self.announcement.peer_id
