"""The half of a directory that reads: the same for every kind, as soon as keys can be looked up."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.core.accusation import Accusation
from swarm.core.ids import ModelId
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.dht.model_index import one_per_model
from swarm.dht.reader import Reader


class Reads:
    """What ``Directory`` says of reading, by a ``Reader``."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    async def servers(self, model: ModelId) -> list[Listing]:
        """See ``Directory.servers``."""
        return await self._reader.servers(model)

    async def server(self, model: ModelId, peer: str) -> Listing | None:
        """See ``Directory.server``."""
        return await self._reader.server(model, peer)

    async def models(self) -> list[ModelEntry]:
        """See ``Directory.models``."""
        return one_per_model(await self._reader.entries())

    async def entries(self) -> list[ModelEntry]:
        """See ``Directory.entries``."""
        return await self._reader.entries()

    async def accusations(self, model: ModelId, subjects: Sequence[str]) -> list[Accusation]:
        """See ``Directory.accusations``."""
        return await self._reader.accusations(model, subjects)

    async def shard_depth(self, model: ModelId) -> int:
        """See ``Directory.shard_depth``."""
        return self._reader.shard_depth(model)
