"""The tokens one chain holds KV for, and the steps that add to them or roll them back."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise

from swarm.client.chain import Chain
from swarm.client.head import Head
from swarm.core.errors import MisuseError, PeerLostError, PromptTooLongError, ProtocolViolation
from swarm.core.ids import PeerId
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import Choice
from swarm.wire.frames import Frame
from swarm.wire.messages import DECODE_LANE, PREFILL_LANE, Answer, Result, Step

PREFILL_CHUNK_ROWS = 128
STEP_TIMEOUT_S = 300.0
"""A step that takes longer ends the session: its server computes, but nobody can wait for that."""


class Conversation:
    """One open chain with what it has been fed. Not for concurrent use.

    ``table_tokens`` is the length up to which a long-rope model uses its short rotary table (None: it has one table).
    A text that outgrows it is computed anew from its first token, as transformers' generate does.
    """

    def __init__(
        self, chain: Chain, head: Head, *, table_tokens: int | None = None, chunk_rows: int = PREFILL_CHUNK_ROWS
    ) -> None:
        self.chain = chain
        self._head = head
        self._table_tokens = table_tokens
        self._chunk_rows = chunk_rows
        self._history = History(answer_start=0)
        self._params = SamplingParams()
        self._epoch = 0
        self._seq = 0
        self._stale = False

    @property
    def position(self) -> int:
        """Rows the chain is known to hold."""
        return len(self._history)

    @property
    def capacity(self) -> int:
        """Rows it may hold: what was reserved at open."""
        return self.chain.plan.kv_tokens

    def truncate(self, position: int) -> None:
        """Forget everything from ``position`` on; ``MisuseError`` if that much is not held."""
        if not 0 <= position <= self.position:
            raise MisuseError(f"cannot go back to position {position} of {self.position}")
        if position < self.position:
            self._history.truncate(position)
            self._stale = True

    async def prefill(
        self, token_ids: Sequence[int], params: SamplingParams, progress: Callable[[int, int], None] | None = None
    ) -> Choice:
        """Make the chain hold exactly ``token_ids`` and return the token that follows them.

        The longest common beginning with what is held already is kept. Chunks are in flight one per stage and one
        more, so that stages work on different chunks at once while the bytes under way stay bounded.
        """
        if not token_ids:
            raise MisuseError("the prompt is empty", hint="give at least one token")
        if len(token_ids) > self.capacity:
            raise PromptTooLongError(f"{len(token_ids)} tokens do not fit the {self.capacity} reserved")
        kept = min(self._common_prefix(token_ids), len(token_ids) - 1)
        crosses = self._table_tokens is not None and kept <= self._table_tokens < len(token_ids)
        self.truncate(0 if crosses else kept)
        self._params = params
        self._history = History(self._history.token_ids, answer_start=len(token_ids))
        return await self._feed(token_ids, progress)

    async def _feed(self, token_ids: Sequence[int], progress: Callable[[int, int], None] | None) -> Choice:
        """Send what of ``token_ids`` is not held yet, in chunks; the token that follows them."""
        start, total = self.position, len(token_ids)
        begins = Answer(self._history.answer_start, self._params)
        flying: deque[tuple[Sequence[int], asyncio.Future[Frame]]] = deque()
        window = len(self.chain.plan.stages) + 1
        choice: Choice | None = None
        cuts = [*range(start, total, self._chunk_rows), total]
        for begin, end in pairwise(cuts):
            chunk = token_ids[begin:end]
            answer = begins if end == total else None
            flying.append((chunk, await self._send(begin, chunk, answer=answer, horizon=total)))
            while len(flying) > (window if end < total else 0):
                frame = await self._commit(*flying.popleft())
                if progress is not None:
                    progress(self.position - start, total - start)
                if self.position == total:
                    choice = await self._choice(frame)
        if choice is None:
            raise PeerLostError("the chain gave no answer to the prompt")
        return choice

    async def decode(self, token_id: int) -> Choice:
        """Append one token and return the next."""
        if self.position >= self.capacity:
            raise PromptTooLongError(f"all {self.capacity} reserved tokens are used")
        if self.position == self._table_tokens:
            tokens, answer_start = [*self._history.token_ids, token_id], self._history.answer_start
            self.truncate(0)
            self._history = History(answer_start=answer_start)
            return await self._feed(tokens, None)
        future = await self._send(self.position, [token_id])
        frame = await self._commit([token_id], future)
        return await self._choice(frame)

    async def _choice(self, frame: Frame) -> Choice:
        try:
            return await self._head.choice(frame, self._history, self._params)
        except ProtocolViolation as error:
            raise ProtocolViolation(error.message, peer=self._tail) from error

    @property
    def _tail(self) -> PeerId:
        return self.chain.plan.stages[-1].peer

    def _common_prefix(self, token_ids: Sequence[int]) -> int:
        held = self._history.token_ids
        return next(
            (i for i, (a, b) in enumerate(zip(held, token_ids, strict=False)) if a != b), min(len(held), len(token_ids))
        )

    async def _send(
        self, keep: int, token_ids: Sequence[int], *, answer: Answer | None = None, horizon: int = 0
    ) -> asyncio.Future[Frame]:
        if self._stale:  # what is in flight, or was, is void from here on
            self._stale = False
            self._epoch += 1
            self._seq = 0
            self.chain.forget()
        prefill = horizon != 0
        step = Step(
            generation=0,
            epoch=self._epoch,
            seq=self._seq,
            keep=keep,
            rows=len(token_ids),
            want=1 if answer is not None or not prefill else 0,
            ids=self._head.remote,
            horizon=horizon,
            answer=answer if self._head.remote else None,
        )
        self._seq += 1
        lane = PREFILL_LANE if prefill and len(token_ids) > 1 else DECODE_LANE
        try:
            return await self.chain.send(step, self._head.payload(token_ids), lane)
        except BaseException:
            self._stale = True
            raise

    async def _commit(self, token_ids: Sequence[int], future: asyncio.Future[Frame]) -> Frame:
        """Wait for a step's result and count its rows as held."""
        try:
            async with asyncio.timeout(STEP_TIMEOUT_S):
                frame = await future
        except TimeoutError as error:
            self._stale = self.chain.unanswered = True
            raise PeerLostError(f"no answer to a step within {STEP_TIMEOUT_S:g} s") from error
        except BaseException:
            self._stale = True
            raise
        self._history.extend(token_ids)
        if not isinstance(frame.message, Result) or frame.message.kv_length != self.position:
            self._stale = True
            raise ProtocolViolation("the last server counts other rows than this client", peer=self._tail)
        return frame
