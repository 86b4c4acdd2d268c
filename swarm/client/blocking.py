"""The public door for Python programs: blocking calls, with async twins, over one background event loop.

The loop lives in a thread of its own, so a ``SwarmModel`` works the same in a script, in a thread pool, in a notebook
and inside a running event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from swarm.client.loop_thread import LoopThread
from swarm.client.model import AsyncSession, AsyncSwarmModel
from swarm.client.request import Options
from swarm.client.results import GenerationResult, ProgressCallback
from swarm.client.stream import AsyncTextStream
from swarm.core.errors import MisuseError
from swarm.wire.fields import Priority

if TYPE_CHECKING:
    from swarm.client.connect import FurtherOptions, JoinOptions

Prompt = str | None


class TextStream(Iterator[str], AsyncIterator[str]):
    """Pieces of text as they come, for ``for`` and for ``async for``. Leaving the loop early cancels the generation.

    ``result`` holds the ``GenerationResult`` once the last piece has come.
    """

    def __init__(self, inner: AsyncTextStream, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    @property
    def result(self) -> GenerationResult:
        return self._inner.result

    def __iter__(self) -> TextStream:
        return self

    def __next__(self) -> str:
        piece = self._loop.run(self._inner.next_piece())
        if piece is None:
            raise StopIteration
        return piece

    def __aiter__(self) -> TextStream:
        return self

    async def __anext__(self) -> str:
        piece = await self._loop.bridge(self._inner.next_piece())
        if piece is None:
            raise StopAsyncIteration
        return piece

    def close(self) -> None:
        """Cancel what is still running; servers free its KV at once. Idempotent."""
        if not self._loop.closed:
            self._loop.run(self._inner.aclose())

    async def aclose(self) -> None:
        """The async form of ``close``."""
        if not self._loop.closed:
            await self._loop.bridge(self._inner.aclose())

    def __enter__(self) -> TextStream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._loop.call_soon(self._inner.cancel)


class Session:
    """A conversation whose KV stays at the servers between calls. Use it in a ``with`` block."""

    def __init__(self, inner: AsyncSession, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    @property
    def position(self) -> int:
        """Tokens of the conversation so far, the last answer included."""
        return self._inner.position

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The conversation's tokens."""
        return self._inner.token_ids

    def truncate(self, position: int) -> None:
        """Go back to an earlier ``position``; ``MisuseError`` if it is ahead."""
        self._inner.truncate(position)

    def generate(
        self, prompt: Prompt = None, *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> GenerationResult:
        """Append ``prompt`` (or ``input_ids``), or make the conversation ``messages``, and answer."""
        return self._loop.run(self._inner.generate(prompt, progress=progress, **options))

    def stream(
        self, prompt: Prompt = None, *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> TextStream:
        """Like ``generate``, piece by piece."""
        return TextStream(self._loop.run(self._inner.stream(prompt, progress=progress, **options)), self._loop)

    async def generate_async(
        self, prompt: Prompt = None, *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> GenerationResult:
        """The async form of ``generate``."""
        return await self._loop.bridge(self._inner.generate(prompt, progress=progress, **options))

    async def stream_async(
        self, prompt: Prompt = None, *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> TextStream:
        """The async form of ``stream``: iterate it with ``async for``."""
        return TextStream(await self._loop.bridge(self._inner.stream(prompt, progress=progress, **options)), self._loop)

    def close(self) -> None:
        """Free the KV at every server; the tokens stay, and a later call opens a new chain. Idempotent."""
        if not self._loop.closed:
            self._loop.run(self._inner.close())

    async def close_async(self) -> None:
        """The async form of ``close``."""
        if not self._loop.closed:
            await self._loop.bridge(self._inner.close())

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Session:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()


class SwarmModel:
    """A model that a swarm serves. Create it with ``connect``; close it, or use it in a ``with`` block."""

    def __init__(self, inner: AsyncSwarmModel, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop

    @classmethod
    def connect(
        cls,
        model: str,
        *,
        initial_peers: Sequence[str] = (),
        head: Literal["auto", "local", "remote"] = "auto",
        revision: str | None = None,
        identity: Path | None = None,
        **options: Unpack[FurtherOptions],
    ) -> SwarmModel:
        """Join the swarm that serves ``model``: ``demo``, a folder, or a Hugging Face id.

        ``initial_peers`` are addresses that servers print; ``lan=True`` finds some on the local network.
        ``head="remote"`` (what ``auto`` means) loads no weights here; ``local`` keeps embeddings, LM head and sampling
        on this machine. Further options are those of ``swarm.client.connect.ConnectOptions``. Raises ``ConfigError``,
        ``ModelError`` or ``PeerUnreachableError``.
        """
        joining = _join(
            model, {"initial_peers": initial_peers, "head": head, "revision": revision, "identity": identity, **options}
        )
        loop = LoopThread()
        try:
            return cls(loop.run(joining), loop)
        except BaseException:
            loop.stop()
            raise

    @classmethod
    async def connect_async(cls, model: str, **options: Unpack[JoinOptions]) -> SwarmModel:
        """The async form of ``connect``; use the model in an ``async with`` block."""
        joining = _join(model, options)
        loop = LoopThread()
        try:
            return cls(await loop.bridge(joining), loop)
        except BaseException:
            await asyncio.to_thread(loop.stop)
            raise

    @overload
    def generate(
        self,
        prompt: str | None = None,
        *,
        stream: Literal[False] = False,
        progress: ProgressCallback | None = None,
        **options: Unpack[Options],
    ) -> GenerationResult: ...

    @overload
    def generate(
        self,
        prompt: list[str] | tuple[str, ...],
        *,
        stream: Literal[False] = False,
        progress: ProgressCallback | None = None,
        **options: Unpack[Options],
    ) -> list[GenerationResult]: ...

    @overload
    def generate(
        self,
        prompt: str | None = None,
        *,
        stream: Literal[True],
        progress: ProgressCallback | None = None,
        **options: Unpack[Options],
    ) -> TextStream: ...

    def generate(
        self,
        prompt: str | list[str] | tuple[str, ...] | None = None,
        *,
        stream: bool = False,
        progress: ProgressCallback | None = None,
        **options: Unpack[Options],
    ) -> GenerationResult | list[GenerationResult] | TextStream:
        """Answer a prompt (or ``messages``, or ``input_ids``); a list of prompts is answered side by side.

        Options are those of ``swarm.client.request.Options``. With ``stream=True`` a ``TextStream`` of text pieces.
        ``progress`` is called while the chain is chosen and the prompt computed. Raises ``NoRouteError`` that names
        missing layers, ``BusyError``, ``PromptTooLongError``, or ``GenerationInterruptedError``, which holds the
        valid part of an answer that could not be finished.
        """
        if stream:
            if not (prompt is None or isinstance(prompt, str)):
                raise MisuseError("a stream answers one prompt", hint="stream each prompt on its own")
            return TextStream(self._loop.run(self._inner.stream(prompt, progress=progress, **options)), self._loop)
        if prompt is None or isinstance(prompt, str):
            return self._loop.run(self._inner.generate(prompt, progress=progress, **options))
        return self._loop.run(self._inner.generate_many(prompt, progress=progress, **options))

    @overload
    async def generate_async(
        self, prompt: str | None = None, *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> GenerationResult: ...

    @overload
    async def generate_async(
        self,
        prompt: list[str] | tuple[str, ...],
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[Options],
    ) -> list[GenerationResult]: ...

    async def generate_async(
        self,
        prompt: str | list[str] | tuple[str, ...] | None = None,
        *,
        progress: ProgressCallback | None = None,
        **options: Unpack[Options],
    ) -> GenerationResult | list[GenerationResult]:
        """The async form of ``generate``, for any running event loop."""
        if prompt is None or isinstance(prompt, str):
            return await self._loop.bridge(self._inner.generate(prompt, progress=progress, **options))
        return await self._loop.bridge(self._inner.generate_many(prompt, progress=progress, **options))

    async def stream_async(
        self, prompt: str | None = None, *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> TextStream:
        """The async form of ``generate(stream=True)``: iterate it with ``async for``."""
        inner = await self._loop.bridge(self._inner.stream(prompt, progress=progress, **options))
        return TextStream(inner, self._loop)

    @property
    def has_chat_template(self) -> bool:
        """True if ``messages`` can be given."""
        return self._inner.parts.tokenizer.has_chat_template

    def session(self, *, max_tokens: int | None = None, priority: Priority = "interactive") -> Session:
        """A conversation that keeps its KV between calls; ``max_tokens`` is what it may hold in all.

        ``priority`` "batch" leaves busy servers to those who wait for every token.
        """
        return Session(self._inner.session(max_tokens=max_tokens, priority=priority), self._loop)

    def inside(self) -> tuple[AsyncSwarmModel, LoopThread]:
        """The async client and the loop it lives in, for another door to the same."""
        return self._inner, self._loop

    def close(self) -> None:
        """Leave the swarm and free everything. Idempotent."""
        if not self._loop.closed:
            try:
                self._loop.run(self._inner.close())
            finally:
                self._loop.stop()

    async def close_async(self) -> None:
        """The async form of ``close``."""
        await asyncio.to_thread(self.close)

    def __enter__(self) -> SwarmModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> SwarmModel:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def __repr__(self) -> str:
        state = "closed" if self._loop.closed else f"{len(self._inner.sessions)} open sessions"
        head = "remote" if self._inner.options.remote_head else "local"
        return f"<SwarmModel {self._inner.parts.files.name}, {head} head, {state}>"


def _join(model: str, options: JoinOptions) -> Coroutine[Any, Any, AsyncSwarmModel]:
    """Checked at once, joined when it is awaited."""
    from swarm.client.connect import ConnectOptions, connect

    try:
        return connect(model, ConnectOptions(**options))
    except TypeError as error:
        raise MisuseError(f"connect: {error}") from error
