"""Which head a chain needs, and the weights of local ones: loaded once for all sessions of a client."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

from swarm.client.finding.choice import View
from swarm.client.head import Head, LoadedHead, LocalHead, RemoteHead
from swarm.client.plan import StagePlan
from swarm.models.files import ModelFiles
from swarm.models.progress import Progress
from swarm.wire.fields import Codec


class Heads:
    """One client's: ``remote`` ones need nothing, others load embeddings, norm and LM head in the chain's dtype."""

    def __init__(self, files: ModelFiles, *, remote: bool, codec: Codec, progress: Progress) -> None:
        self.remote = remote
        self._files = files
        self._codec = codec
        self._progress = progress
        self._loaded: dict[str, asyncio.Task[LoadedHead]] = {}

    async def of(self, stages: Sequence[StagePlan]) -> Head:
        """The remote head, or the local one in the last server's dtype."""
        if self.remote:
            return RemoteHead(self._files.vocab_size)
        first, last = (stage.announcement.numerics.dtype for stage in (stages[0], stages[-1]))
        return LocalHead(await self.of_dtype(last), first_dtype=first, codec=self._codec)

    async def expect(self, view: View) -> LoadedHead | None:
        """Load the local head that a chain will most likely need: no server waits so long for a first step.

        None if nobody serves the last layer.
        """
        last = [item.announcement for item in view.listings if item.announcement.end == self._files.layer_count]
        for dtype, _ in Counter(announced.numerics.dtype for announced in last).most_common(1):
            return await self.of_dtype(dtype)
        return None

    async def close(self) -> None:
        """Stop loading. Idempotent."""
        for task in self._loaded.values():
            task.cancel()
        await asyncio.gather(*self._loaded.values(), return_exceptions=True)

    async def of_dtype(self, dtype: str) -> LoadedHead:
        """The local head in ``dtype``, loaded once."""
        task = self._loaded.get(dtype)
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = asyncio.create_task(self._load(dtype))
            self._loaded[dtype] = task
        return await asyncio.shield(task)

    async def _load(self, dtype: str) -> LoadedHead:
        def load() -> LoadedHead:
            from swarm.engine.weights import load_head  # takes seconds as well, in which the loop has beats to keep

            return LoadedHead(load_head(self._files, dtype=dtype, progress=self._progress), dtype)

        return await asyncio.to_thread(load)
