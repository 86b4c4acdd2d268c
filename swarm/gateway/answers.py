"""One request's answers: computed side by side, each over a chain of its own, told as events as they come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from swarm.client.model import AsyncSwarmModel
from swarm.client.request import Options
from swarm.client.results import ChainStage, GenerationResult, Progress, TokenLogprob


@dataclass(frozen=True, slots=True)
class Question:
    """One answer to compute. ``options`` hold the prompt's ids too; ``kv_tokens`` is what both may take."""

    options: Options
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Began:
    """The first token of answer ``index`` came, over this chain."""

    index: int
    chain: tuple[ChainStage, ...]


@dataclass(frozen=True, slots=True)
class Piece:
    """More text of answer ``index``, with the log probabilities of the tokens that brought it, if asked for."""

    index: int
    text: str
    logprobs: tuple[TokenLogprob, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """Answer ``index`` is whole. ``logprobs`` are those of tokens that showed no text of their own."""

    index: int
    result: GenerationResult
    logprobs: tuple[TokenLogprob, ...]


Event = Began | Piece | Ended


class Answers:
    """The answers of one request, under way. For each index comes one ``Began``, any ``Piece``, one ``Ended``."""

    def __init__(self, model: AsyncSwarmModel, count: int) -> None:
        self._model = model
        self._left = count
        self._events: asyncio.Queue[Event | Exception] = asyncio.Queue()

    async def next(self, within_s: float | None = None) -> Event | None:
        """The next event, None once all answers are whole.

        Raises ``TimeoutError`` after ``within_s`` without one, and what an answer raised: the others are then of no
        use any more.
        """
        if not self._left:
            return None
        async with asyncio.timeout(within_s):
            event = await self._events.get()
        if isinstance(event, Exception):
            raise event
        self._left -= isinstance(event, Ended)
        return event

    def abort(self, error: Exception) -> None:
        """End them all: ``next`` raises ``error`` after what has come."""
        self._events.put_nowait(error)

    async def answer(self, index: int, question: Question) -> None:
        """Compute one of them; its KV is freed whatever happens."""
        session = self._model.session(max_tokens=question.kv_tokens)
        ends = self._model.parts.files.eos_token_ids
        pending: list[TokenLogprob] = []

        def taken() -> tuple[TokenLogprob, ...]:
            tokens = tuple(pending)
            pending.clear()
            return tokens

        def progressed(progress: Progress) -> None:
            if progress.phase != "decode":
                return
            if progress.done == 1:
                self._events.put_nowait(Began(index, session.chain))
            if progress.token is not None and progress.token.token_id not in ends:
                pending.append(progress.token)

        def emit(text: str) -> None:
            self._events.put_nowait(Piece(index, text, taken()))

        try:
            result = await session.run(None, question.options, progressed, emit)
            self._events.put_nowait(Ended(index, result, taken()))
        except Exception as error:
            self.abort(error)
        finally:
            await asyncio.shield(session.close())


@asynccontextmanager
async def answering(model: AsyncSwarmModel, questions: Sequence[Question]) -> AsyncIterator[Answers]:
    """Compute the answers while the block lasts; whatever is unfinished at its end is stopped, and its KV freed."""
    answers = Answers(model, len(questions))
    tasks = [
        asyncio.create_task(answers.answer(index, question), name=f"answer {index}")
        for index, question in enumerate(questions)
    ]
    try:
        yield answers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.shield(asyncio.gather(*tasks, return_exceptions=True))
