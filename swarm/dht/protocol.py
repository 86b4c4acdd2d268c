"""What the rest of the house knows of the directory: signed records, one of each kind per server and model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from swarm.core.accusation import Accusation
from swarm.core.ids import ModelId
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.core.records import AnyRecord


class Directory(Protocol):
    """Publishes one's own records, reads everybody's."""

    async def publish(self, signed: bytes, record: AnyRecord) -> None:
        """Store ``signed`` (the signed form of ``record``) until ``record.expires_s``, under ``key_of(record)``.

        Raises ``NetworkError`` if no node stored it: nobody answered, or a record of this kind and peer with the same
        or a later expiry is stored already (each must expire later than the one before, an ``OFFLINE`` announcement,
        too).
        """
        ...

    async def servers(self, model: ModelId) -> list[Listing]:
        """Every live, valid announcement of ``model`` with its metrics if it has live ones, in order of peer id.

        Whatever is unsigned, expired, malformed, of another protocol major or signed by another peer is dropped
        here. ``OFFLINE`` announcements are left out, and so are metrics of another instance than the announced one.
        What was read once counts until it expires, so nobody is taken back to a record older than one already seen.
        Raises ``NetworkError`` if the directory could not be asked at all.
        """
        ...

    async def server(self, model: ModelId, peer: str) -> Listing | None:
        """One server as ``servers`` has it, None if it is not there; reads a few keys, however many servers there are.

        Raises as ``servers`` does.
        """
        ...

    async def models(self) -> list[ModelEntry]:
        """The models of this swarm, one entry each, in order of model id. Raises as ``servers`` does."""
        ...

    async def entries(self) -> list[ModelEntry]:
        """The whole model index, several entries for one model, in order of peer id (for ``model_index.should_list``).

        Raises as ``servers`` does.
        """
        ...

    async def accusations(self, model: ModelId, subjects: Sequence[str]) -> list[Accusation]:
        """What others say to have proof of against ``subjects``, servers of ``model``: valid records, newest of each.

        Evidence of equivocation has been checked; everything else is a stranger's word. Reads one key for each subject;
        of many accusations of one subject a random ``MAX_ACCUSERS`` are told. Raises as ``servers`` does.
        """
        ...

    async def shard_depth(self, model: ModelId) -> int:
        """Over 2^depth keys a writer should spread its records of ``model``, from what was last read. Asks nobody."""
        ...

    async def close(self) -> None:
        """Leave the directory. Idempotent."""
        ...
