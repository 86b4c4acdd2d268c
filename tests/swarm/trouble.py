"""Trouble in the middle of an answer: when it comes, whom it hits, and what must be true afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from harness import Node, Swarm

from swarm.client.model import AsyncSession, AsyncSwarmModel
from swarm.client.results import GenerationResult, Progress

PROMPT = "The swarm answers whatever happens to it"
NEW_TOKENS = 24
HOP_S = 0.005

Trouble = Callable[[list[Node]], Awaitable[object]]
"""Called with the servers of the answer's chain, in order."""


def chain_of(swarm: Swarm, asked: AsyncSwarmModel | AsyncSession) -> list[Node]:
    """Who serves the one answer, or the session, that is under way."""
    session = asked if isinstance(asked, AsyncSession) else next(iter(asked.sessions))
    conversation = session._conversation
    assert conversation is not None
    nodes = {node.peer: node for node in swarm.nodes}
    return [nodes[stage.peer] for stage in conversation.chain.stages]


class Moment:
    """A progress callback that tells when an answer has come to some point. ``seen`` is all that was told."""

    def __init__(self, phase: str = "decode", done: int = 6) -> None:
        self._waiting: list[tuple[str, int, asyncio.Event]] = []
        self._first = self._expect(phase, done)
        self.seen: list[Progress] = []

    def __call__(self, progress: Progress) -> None:
        self.seen.append(progress)
        for phase, done, event in self._waiting:
            if progress.phase == phase and progress.done >= done:
                event.set()

    async def come(self) -> None:
        await self._first.wait()

    async def healing(self) -> None:
        """From now on a heal has begun."""
        await self._expect("healing", 0).wait()

    async def healed(self) -> None:
        """And then a token has come."""
        await self.healing()
        await self._expect("decode", 0).wait()

    def _expect(self, phase: str, done: int) -> asyncio.Event:
        event = asyncio.Event()
        self._waiting.append((phase, done, event))
        return event

    def details(self, phase: str = "healing") -> str:
        return "\n".join(progress.detail for progress in self.seen if progress.phase == phase)


async def ask(
    swarm: Swarm,
    asked: AsyncSwarmModel | AsyncSession,
    trouble: Trouble,
    *,
    moment: Moment | None = None,
    prompt: str = PROMPT,
    **options: Any,
) -> GenerationResult:
    """An answer, with ``trouble`` once it has come to ``moment`` (six tokens). Hops take time, so it comes mid-step."""
    moment = moment or Moment()
    options = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True} | options
    swarm.delay(HOP_S)
    task = asyncio.create_task(asked.generate(prompt, progress=moment, **options))
    try:
        waiting = asyncio.create_task(moment.come())
        await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        assert not task.done(), f"over before the trouble began: {task}"
        await trouble(chain_of(swarm, asked))
        return await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def greedy(swarm: Swarm, prompt: str = PROMPT, new_tokens: int = NEW_TOKENS, **options: Any) -> list[int]:
    return swarm.reference.greedy(prompt, new_tokens, eos_token_id=None, **options)


def forget_rows(nodes: Sequence[Node]) -> None:
    for node in nodes:
        node.rows.clear()
