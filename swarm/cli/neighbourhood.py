"""A node that runs with ``--lan``: tells others near it that it is here, and gets to know whoever it hears of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn, Protocol

from swarm.cli.output.console import Console
from swarm.core.clock import Clock
from swarm.core.errors import NetworkError
from swarm.core.ids import PeerId
from swarm.transport.lan import LOOK_S, LocalNetwork, Notice

AGAIN_S = 15.0
"""How often those who did not answer, or were lost, are tried again."""


class Acquaintances(Protocol):
    """What this room needs of a directory."""

    def known(self) -> frozenset[str]:
        """The peers that this node would ask now."""
        ...

    async def meet(self, peer: str, addresses: Sequence[str]) -> str:
        """Get to know ``peer``; empty if it answered, else why not."""
        ...


@dataclass(slots=True)
class Neighbourhood:
    """One node's part in it. Two that start at once hear of each other, so they end in one swarm whoever was first.

    Everything heard is a stranger's word: who does not answer is tried again, and is nobody that this node relies on.
    """

    network: LocalNetwork
    directory: Acquaintances
    clock: Clock
    console: Console
    _told: set[str] = field(default_factory=set)

    async def enter(self, own: Notice, *, look_s: float = LOOK_S) -> None:
        """Say that this node is here, and meet whoever is; soon after the first, or after ``look_s`` without any.

        A network where nobody can be told of this node is a warning, for others may still be heard.
        """
        told = True
        try:
            await self.network.advertise(own)
        except NetworkError as error:
            told = False
            self.console.warning(f"others on the local network do not find this server: {error}")
        if self.directory.known():
            return  # it is in a swarm already; whoever is near is met by ``follow``
        looking = asyncio.ensure_future(self.clock.sleep(look_s))
        try:
            while not await self._meet_all() and not looking.done():
                news = asyncio.ensure_future(self.network.wait_news())
                try:
                    await asyncio.wait({looking, news}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    news.cancel()
        finally:
            looking.cancel()
        if not self.directory.known():
            self.console.event(
                "alone",
                f"Nobody on the local network answered in {look_s:g} s: this server starts a new swarm."
                + (" Others with --lan will find it." if told else ""),
            )

    async def follow(self) -> NoReturn:
        """Meet whoever comes later, too. Until cancelled."""
        while True:
            await self._meet_all()
            news = asyncio.ensure_future(self.network.wait_news())
            pause = asyncio.ensure_future(self.clock.sleep(AGAIN_S))
            try:
                await asyncio.wait({news, pause}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
                pause.cancel()

    async def _meet_all(self) -> bool:
        """Try everybody who was heard and is not known; True if any of those who were heard is known."""
        known = self.directory.known()
        strangers = [notice for notice in self.network.heard() if notice.peer not in known]
        answers = await asyncio.gather(*(self.directory.meet(each.peer, each.initial_peers) for each in strangers))
        for notice, why_not in zip(strangers, answers, strict=True):
            if not why_not:
                self._tell(notice.peer, notice.addresses)
        return not known.isdisjoint(notice.peer for notice in self.network.heard()) or "" in answers

    def _tell(self, peer: PeerId, addresses: Sequence[str]) -> None:
        if peer not in self._told:
            self._told.add(peer)
            text = f"Found {peer[-8:]} on the local network, at {addresses[0]}"
            self.console.event("neighbour", text, peer=peer, addresses=list(addresses))
