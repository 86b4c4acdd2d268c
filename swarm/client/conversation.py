"""The tokens one chain holds KV for, and the steps that add to them or roll them back, over whatever breaks it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from swarm.client.chains.chain import Feed, StagePlan
from swarm.client.chains.member import Member
from swarm.client.chains.settling import settle
from swarm.client.head import Head, LocalHead, Logits
from swarm.client.recovery.healing import Healer
from swarm.client.traced import of_heal
from swarm.core.errors import MisuseError, PeerLostError, PromptTooLongError, ProtocolViolation, SwarmError
from swarm.core.ids import PeerId
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import Choice
from swarm.runtime.tracing import span
from swarm.wire.fields import DECODE_LANE, PREFILL_LANE
from swarm.wire.frames import Frame
from swarm.wire.messages import Answer, Result, Step

PREFILL_CHUNK_ROWS = 128

HeadFor = Callable[[Sequence[StagePlan]], Awaitable[Head]]
"""The head that fits a chain of these stages."""
Told = Callable[[int, int], None]
"""Rows that the whole chain holds, of how many."""


Hear = Callable[[Frame, int], Awaitable[None]]
"""Takes a result with the answers to so many rows; ``ProtocolViolation`` if it does not hold them."""


@dataclass(slots=True)
class _Rows:
    """What steps are to add to the ``start`` rows that are held, and who hears the answers to the last ``want``."""

    new_ids: Sequence[int]
    start: int
    prefill: bool
    told: Told
    want: int
    hear: Hear
    owed: int = field(init=False)
    """The first row whose answer has not been heard."""

    def __post_init__(self) -> None:
        self.owed = self.total - self.want

    @property
    def total(self) -> int:
        """Rows that are to be held in the end."""
        return self.start + len(self.new_ids)


class Conversation:
    """One open chain with what it has been fed. Not for concurrent use.

    A chain that breaks is mended by ``healer``, and what it had not answered is sent again: nobody notices but by the
    pause. Only what cannot be mended raises. ``table_tokens`` is the length up to which a long-rope model uses its
    short rotary table (None: it has one table). A text that outgrows it, or shrinks back below, is computed anew from
    its first token, as transformers' generate does.
    """

    def __init__(
        self,
        healer: Healer,
        head: Head,
        head_for: HeadFor,
        *,
        step_timeout_s: float,
        table_tokens: int | None = None,
        chunk_rows: int = PREFILL_CHUNK_ROWS,
    ) -> None:
        self.healer = healer
        self.chain = healer.chain
        self._head = head
        self._head_for = head_for
        self._step_timeout_s = step_timeout_s
        self._table_tokens = table_tokens
        self._chunk_rows = chunk_rows
        self._history = History(answer_start=0)
        self._params = SamplingParams()
        self._generation = self.chain.generation
        self._epoch = 0
        self._seq = 0
        self._stale = False
        self._answer_due = True
        self._horizon = 0
        """The length of the text that the rows now held were computed as part of."""
        self._last_ids: tuple[int, ...] = ()

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

    async def prefill(self, token_ids: Sequence[int], params: SamplingParams, progress: Told | None = None) -> Choice:
        """Make the chain hold exactly ``token_ids`` and return the token that follows them.

        The longest common beginning with what is held already is kept. Chunks are in flight one per stage and one
        more, so that stages work on different chunks at once while the bytes under way stay bounded.
        """
        total = len(token_ids)
        if not token_ids:
            raise MisuseError("the prompt is empty", hint="give at least one token")
        if total > self.capacity:
            raise PromptTooLongError(f"{total} tokens do not fit the {self.capacity} reserved")
        kept = min(self._common_prefix(token_ids), total - 1)
        self.truncate(0 if self._long(self._horizon) != self._long(total) else kept)
        self._params = params
        self._history = History(self._history.token_ids, answer_start=total)
        self._answer_due = True
        return await self._choose(token_ids[self.position :], prefill=True, told=progress or _nobody)

    async def decode(self, token_id: int) -> Choice:
        """Append one token and return the next."""
        new_ids, anew = self._grown([token_id])
        return await self._choose(new_ids, prefill=anew, told=_nobody)

    async def feed(self, token_ids: Sequence[int], *, want: int) -> list[Logits]:
        """Append ``token_ids``, and return the logits after the last ``want`` of them: arrays ``[n, vocab]``, in order.

        For whoever keeps the head and chooses tokens by himself: ``MisuseError`` with a remote head. Raises
        ``BadLogitsError`` for rows that make no numbers.
        """
        if not token_ids or not 0 <= want <= len(token_ids):
            raise MisuseError(f"the logits of {want} of {len(token_ids)} tokens")
        heard: list[Logits] = []

        async def hear(frame: Frame, rows: int) -> None:
            if not isinstance(self._head, LocalHead):
                raise MisuseError("the last server keeps its logits", hint='connect with head="local"')
            heard.append(await self._head.logits(frame, rows))

        new_ids, anew = self._grown(token_ids)
        prefill = anew or len(new_ids) > 1
        await self._reach(_Rows(new_ids, self.position, prefill=prefill, told=_nobody, want=want, hear=hear))
        return heard

    def _grown(self, token_ids: Sequence[int]) -> tuple[Sequence[int], bool]:
        """What must be fed to append ``token_ids``; all tokens, and True, where the text outgrows a rotary table."""
        total = self.position + len(token_ids)
        if total > self.capacity:
            raise PromptTooLongError(f"{total} tokens do not fit the {self.capacity} reserved")
        if self._long(self._horizon) == self._long(total):
            return token_ids, False
        new_ids, answer_start = [*self._history.token_ids, *token_ids], self._history.answer_start
        self.truncate(0)
        self._history = History(answer_start=answer_start)
        self._answer_due = True
        return new_ids, True

    async def mend(self, *, patience_s: float | None = None) -> None:
        """Make a broken chain whole again, with what is held; see ``Healer.heal``."""
        with span("swarm.heal", {"swarm.rows": self.position}) as seen:
            await self.healer.heal(self.position, self._feed_for, patience_s=patience_s)
            seen.set(of_heal(self.healer.heals[-1]))
        self._restart()

    async def revived(self) -> bool:
        """Mend an idle chain, unless nothing of it is left; False if it has to be given up."""
        if len(self.chain.lost) == len(self.chain.stages):
            return False
        try:
            await self.mend(patience_s=0.0)
        except SwarmError:
            return False
        return True

    async def close(self) -> None:
        """End the session at every server, once those who sign have signed what is left of it. Idempotent."""
        await self.healer.close(self._settle)
        last_ids, self._last_ids = self._last_ids, ()
        if last_ids:
            self.chain.witness.settled(self.chain.receipts.record(last_ids, self._horizon))

    async def _settle(self, members: Sequence[Member]) -> None:
        self._last_ids = self._history.token_ids
        if self._last_ids:
            await settle(members, self.chain.receipts, len(self._last_ids), self.chain.witness.identity)

    # -- steps, sent again after a heal ---------------------------------------------------------------------

    async def _choose(self, new_ids: Sequence[int], *, prefill: bool, told: Told) -> Choice:
        """Append these and return the token that follows."""
        choices: list[Choice] = []

        async def hear(frame: Frame, _: int) -> None:
            choices.append(await self._head.choice(frame, self._history, self._params))

        await self._reach(_Rows(new_ids, self.position, prefill=prefill, told=told, want=1, hear=hear))
        return choices[-1]

    async def _reach(self, rows: _Rows) -> None:
        """Send what is not held yet until all of it is, and all answers are heard, over any number of broken chains."""
        if rows.prefill:
            with span("swarm.prefill", {"swarm.rows": len(rows.new_ids), "swarm.rows_kept": rows.start}):
                await self._reach_end(rows)
        else:
            await self._reach_end(rows)

    async def _reach_end(self, rows: _Rows) -> None:
        self.healer.decoding = not rows.prefill
        while True:
            try:
                return await self._send_all(rows)
            except SwarmError as error:
                self._stale = True
                if not self.chain.broken:
                    if not isinstance(error, ProtocolViolation):
                        raise
                    self.healer.blame_tail(error)
            if self.position > rows.owed:
                self.truncate(rows.owed)  # its rows are held, but what came of them is worth nothing
            await self.mend()

    async def _send_all(self, rows: _Rows) -> None:
        """One try: chunk after chunk from where the chain is, with a window of them in flight."""
        total = self._horizon = rows.total
        flying: deque[tuple[Sequence[int], asyncio.Future[Frame]]] = deque()
        window = len(self.chain.stages) + 1
        for begin, end in pairwise([*range(self.position, total, self._chunk_rows), total]):
            chunk = rows.new_ids[begin - rows.start : end - rows.start]
            flying.append((chunk, await self._send(begin, chunk, rows)))
            while len(flying) > (window if end < total else 0):
                frame = await self._commit(*flying.popleft())
                rows.told(self.position - rows.start, total - rows.start)
                self._answer_due = self._answer_due and self.position < total
                if self.position > rows.owed:
                    await self._hear(frame, rows)
                self.healer.progressed()  # not before: a server that answers nonsense time and again is no progress

    async def _hear(self, frame: Frame, rows: _Rows) -> None:
        try:
            await rows.hear(frame, self.position - rows.owed)
        except ProtocolViolation as error:
            raise ProtocolViolation(error.message, peer=self._tail) from error
        rows.owed = self.position

    @property
    def _tail(self) -> PeerId:
        return self.chain.stages[-1].peer

    def _common_prefix(self, token_ids: Sequence[int]) -> int:
        held = self._history.token_ids
        return next(
            (i for i, (a, b) in enumerate(zip(held, token_ids, strict=False)) if a != b), min(len(held), len(token_ids))
        )

    def _long(self, horizon: int) -> bool:
        """True if rows of a text of this length are computed with the long rotary table."""
        return self._table_tokens is not None and horizon > self._table_tokens

    async def _send(self, keep: int, token_ids: Sequence[int], rows: _Rows) -> asyncio.Future[Frame]:
        last = keep + len(token_ids) == rows.total
        if self._stale:  # what is in flight, or was, is void from here on
            self._stale = False
            self._epoch += 1
            self._seq = 0
            self.chain.forget()
        answer = Answer(self._history.answer_start, self._params) if last and self._answer_due else None
        step = Step(
            generation=self._generation,
            epoch=self._epoch,
            seq=self._seq,
            keep=keep,
            rows=len(token_ids),
            want=max(0, keep + len(token_ids) - max(keep, rows.owed)),
            ids=self._head.remote,
            horizon=rows.total if rows.prefill else 0,
            answer=answer if self._head.remote else None,
        )
        self._seq += 1
        lane = PREFILL_LANE if rows.prefill and len(token_ids) > 1 else DECODE_LANE
        try:
            return await self.chain.send(step, self._head.payload(token_ids), lane)
        except BaseException:
            self._stale = True
            raise

    async def _commit(self, token_ids: Sequence[int], future: asyncio.Future[Frame]) -> Frame:
        """Wait for a step's result and count its rows as held."""
        try:
            async with asyncio.timeout(self._step_timeout_s):
                frame = await future
        except TimeoutError as error:
            self._stale = True
            self.healer.late(self._step_timeout_s)
            raise PeerLostError(f"no answer to a step within {self._step_timeout_s:g} s") from error
        except BaseException:
            self._stale = True
            raise
        held = self.position + len(token_ids)
        if not isinstance(frame.message, Result) or frame.message.kv_length != held:
            self._stale = True
            raise ProtocolViolation("the last server counts other rows than this client", peer=self._tail)
        self._history.extend(token_ids)
        return frame

    # -- healing --------------------------------------------------------------------------------------------

    async def _feed_for(self, stages: Sequence[StagePlan]) -> Feed:
        """What is held, as these stages take it."""
        self._head = await self._head_for(stages)
        held = self._history.token_ids
        return Feed(lambda first, end: self._head.payload(held[first:end]), self._head.remote, self._horizon)

    def _restart(self) -> None:
        """The chain is whole, in a generation of its own, and a new last server has not heard how to sample."""
        self._generation = self.chain.generation
        self._epoch = self._seq = 0
        self._stale = False
        self._answer_due = True


def _nobody(_done: int, _total: int) -> None:
    """Nobody wants to know."""
