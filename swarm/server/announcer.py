"""Keeps the server's signed announcement alive in the directory, and notices a second process with the same key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from swarm.core.clock import Clock
from swarm.core.errors import IdentityInUseError, NetworkError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.records import Announcement, State, sign_announcement
from swarm.dht.protocol import Directory
from swarm.server.config import ServerConfig

log = logging.getLogger(__name__)


class Announcer:
    """Publishes one announcement on change and at a fixed rhythm."""

    def __init__(
        self, directory: Directory, identity: Identity, clock: Clock, base: Announcement, config: ServerConfig
    ) -> None:
        self._directory = directory
        self._identity = identity
        self._clock = clock
        self._base = base
        self._config = config

    @property
    def current(self) -> Announcement:
        """What was, or is about to be, announced."""
        return self._base

    def signed(self) -> bytes:
        """The current announcement, valid from now, without storing it anywhere."""
        return sign_announcement(self._identity, self._renewed())

    def _renewed(self) -> Announcement:
        expires_s = self._clock.wall_s() + self._config.announce_lifetime_s
        self._base = msgspec.structs.replace(self._base, sequence=self._base.sequence + 1, expires_s=expires_s)
        return self._base

    async def publish(self, **changes: object) -> Announcement:
        """Sign and store the announcement with ``changes``; it lives ``announce_lifetime_s``."""
        self._base = msgspec.structs.replace(self._base, **changes)
        await self._directory.announce(self.signed(), self._base)
        return self._base

    async def check_twin(self) -> None:
        """Raise ``IdentityInUseError`` if an earlier process with this key is still announcing.

        A record left by a process that died is told apart by its age: it was announced before we started.
        """
        for other, _ in await self._directory.servers(ModelId.parse(self._base.model)):
            if other.peer != self._base.peer or other.instance == self._base.instance:
                continue
            announced_s = other.expires_s - self._config.announce_lifetime_s
            if other.started_s < self._base.started_s < announced_s and other.state is not State.OFFLINE:
                raise IdentityInUseError(
                    "another machine already serves with this identity",
                    hint="give this server its own key with --identity, or stop the other one",
                )

    async def run(self, lost: Callable[[IdentityInUseError], Awaitable[None]]) -> None:
        """Re-announce until cancelled; ``lost`` is told if an earlier twin shows up. Outages are retried."""
        step_s = self._config.announce_every_s / 4
        since_s = 0.0
        while True:
            await self._clock.sleep(step_s)
            since_s += step_s
            try:
                async with asyncio.timeout(self._config.announce_every_s):
                    await self.check_twin()
                    if since_s >= self._config.announce_every_s - step_s / 2:
                        await self.publish()
                        since_s = 0.0
            except IdentityInUseError as error:
                await lost(error)
                return
            except (NetworkError, TimeoutError) as error:
                log.warning("could not announce, trying again: %s", error)
