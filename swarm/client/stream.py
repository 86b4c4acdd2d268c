"""An answer's text as it comes, from a task that goes on whether anybody reads or not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from swarm.client.request import Options
from swarm.client.results import GenerationResult, ProgressCallback
from swarm.core.errors import MisuseError


class Answering(Protocol):
    """A session, as a stream needs it."""

    async def run(
        self, prompt: str | None, options: Options, progress: ProgressCallback, emit: Callable[[str], None]
    ) -> GenerationResult:
        """One generation."""
        ...

    async def close(self) -> None:
        """Free what it holds."""
        ...


class AsyncTextStream:
    """An answer's text, piece by piece, from a task of its own."""

    def __init__(
        self,
        session: Answering,
        prompt: str | None,
        progress: ProgressCallback,
        options: Options,
        *,
        owns_session: bool,
    ) -> None:
        self._session = session
        self._owns_session = owns_session
        self._pieces: asyncio.Queue[str | None] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(prompt, options, progress))
        self._task.add_done_callback(lambda _: self._pieces.put_nowait(None))

    async def _run(
        self, prompt: str | None, options: Options, progress: ProgressCallback
    ) -> GenerationResult | Exception:
        """The answer, or why there is none: kept, not raised, since nobody may be there any more to hear it."""
        try:
            return await self._session.run(prompt, options, progress, self._pieces.put_nowait)
        except Exception as error:
            return error
        finally:
            if self._owns_session:
                await asyncio.shield(self._session.close())

    @property
    def result(self) -> GenerationResult:
        """The finished answer; ``MisuseError`` while it is not."""
        if not self._task.done() or self._task.cancelled():
            raise MisuseError("the answer is not finished", hint="read the stream to its end first")
        return _or_raise(self._task.result())

    async def next_piece(self) -> str | None:
        """The next piece, or None at the end. Raises what the generation raised."""
        piece = await self._pieces.get() if not (self._task.done() and self._pieces.empty()) else None
        if piece is None:
            self._pieces.put_nowait(None)  # for whoever else waits
            if self._task.cancelled():
                return None
            _or_raise(await self._task)
        return piece

    def __aiter__(self) -> AsyncTextStream:
        return self

    async def __anext__(self) -> str:
        piece = await self.next_piece()
        if piece is None:
            raise StopAsyncIteration
        return piece

    def cancel(self) -> None:
        """Ask the generation to stop."""
        self._task.cancel()

    async def ended(self, within_s: float) -> None:
        """Return once the generation has ended; it is stopped after ``within_s``."""
        await asyncio.wait({self._task}, timeout=within_s)
        await self.aclose()

    async def aclose(self) -> None:
        """Stop the generation and free its KV. Idempotent."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


def _or_raise(outcome: GenerationResult | Exception) -> GenerationResult:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
