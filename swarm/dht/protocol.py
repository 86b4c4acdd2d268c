"""What the rest of the house knows of the directory: signed records under a model's key, one per server."""

from __future__ import annotations

from typing import Protocol

from swarm.core.ids import ModelId
from swarm.core.records import Announcement


class Directory(Protocol):
    """Publishes one's own announcement, reads everybody's."""

    async def announce(self, record: bytes, announcement: Announcement) -> None:
        """Store ``record`` (the signed form of ``announcement``) until ``announcement.expires_s``.

        Raises ``NetworkError`` if no node stored it: nobody answered, or a record of this peer with the same or a
        later expiry is stored already (each announcement must expire later than the one before, the last, ``OFFLINE``,
        too).
        """
        ...

    async def servers(self, model: ModelId) -> list[tuple[Announcement, bytes]]:
        """Every live, valid announcement of ``model`` with its signed bytes, in order of peer id.

        Whatever is unsigned, expired, malformed, of another protocol major or signed by another peer is dropped
        here. ``OFFLINE`` records are left out. Raises ``NetworkError`` if the directory could not be asked at all.
        """
        ...

    async def close(self) -> None:
        """Leave the directory. Idempotent."""
        ...
