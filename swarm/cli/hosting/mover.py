"""A serving process that moves to other layers when the swarm needs it there: drained first, with the same identity."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import NoReturn

from swarm.cli.hosting.blocks import Blocks, fields, sentence
from swarm.cli.hosting.loading import Loader
from swarm.cli.hosting.rest import draining_text
from swarm.cli.output.console import Console
from swarm.core.errors import NetworkError
from swarm.engine.opening import OpenedSpan
from swarm.scheduling.intents import Choice
from swarm.server.placing import Placement
from swarm.server.seat import facts_of
from swarm.server.service import Server

log = logging.getLogger(__name__)

Prove = Callable[[OpenedSpan], Awaitable[object]]
"""Checks that a stranger gets an answer from the span just loaded; raises ``NetworkError`` if not."""
STAY_LOOKS = 10
"""After a move that running sessions prevented, so many looks are left out: draining turns new sessions away."""
TRIES = 5
"""For each step of a move that needs the network."""


@dataclass(frozen=True, slots=True)
class Mover:
    """``every_s`` is the time between two looks at the swarm. While ``alone`` says that no other server is known, which
    is how an outage looks, nothing seen is a reason to move. ``calm`` is held by whoever changes what the server does:
    it does not move while it rests."""

    server: Server
    placement: Placement
    loader: Loader
    blocks: Blocks
    prove: Prove
    alone: Callable[[], bool]
    calm: asyncio.Lock
    every_s: float

    @property
    def _console(self) -> Console:
        return self.loader.console

    async def run(self) -> NoReturn:
        """Look, and move when it is this server's turn; until cancelled, or a span cannot be loaded."""
        while True:
            await self.placement.pause(self.every_s)
            async with self.calm:
                stayed = await self._look()
            if stayed:
                await self.placement.pause(STAY_LOOKS * self.every_s)

    async def _look(self) -> bool:
        """True if it was to move, and running sessions prevented it."""
        if self.alone():
            return False
        try:
            choice = await self.placement.look()
        except NetworkError as error:
            log.warning("could not look whether to move, trying again: %s", error)
            return False
        if choice is None:
            return False
        if self.alone():
            await self._insist(self.placement.stay)
            return False
        return not await self._move(choice)

    async def _move(self, choice: Choice) -> bool:
        """False if running sessions prevented it."""
        server = self.server
        self._console.event("moving", sentence("Moving to", choice), sessions=len(server.table), **fields(choice))
        with self._console.waiting(draining_text(server)):
            drained = await server.drain(server.config.drain_timeout_s)
        if not drained:
            server.draining = False
            self._console.event("staying", "Staying: sessions are still running.", sessions=len(server.table))
            await self._insist(self.placement.stay)
            return False
        await server.vacate()
        loaded = await self.loader.load(choice.span)
        server.parts.announcer.amend(**facts_of(loaded.opened.engine, loaded.speed))
        server.occupy(loaded.opened.engine, loaded.speed)
        await self._insist(lambda: self.prove(loaded.opened))
        await self._insist(server.appear)
        self.blocks.remembered.put(server.parts.announcer.current.model, choice.span)
        self._console.event("moved", f"READY  serving layers {choice.span}.", span=[choice.span.start, choice.span.end])
        return True

    async def _insist(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do ``work``; a network that fails for a moment ends no server that has served before."""
        for attempt in range(TRIES):
            try:
                await work()
                return
            except NetworkError as error:
                if attempt == TRIES - 1:
                    raise
                log.warning("in the middle of a move, trying again: %s", error)
                await self.placement.pause(self.every_s / TRIES)
