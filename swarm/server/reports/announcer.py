"""Keeps the server's signed announcement alive in the directory, and notices a second process with the same key."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from swarm.core.announcement import Announcement, Reach, State
from swarm.core.clock import Clock
from swarm.core.errors import IdentityInUseError, NetworkError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.limits import MAX_ADDRESSES
from swarm.core.numerics import Numerics
from swarm.core.record_base import Record
from swarm.core.records import CLOCK_SKEW_S, sign_record
from swarm.dht.protocol import Directory
from swarm.dht.sharding import announce_interval_s, most_servers
from swarm.engine.executor import SpanEngine
from swarm.engine.speed import UNMEASURED
from swarm.runtime.bell import Bell
from swarm.server.config import ServerConfig
from swarm.server.seat import Seat, facts_of
from swarm.transport.protocol import Transport

log = logging.getLogger(__name__)

LOOKS_PER_ANNOUNCEMENT = 4
"""How often a server looks for a twin of itself between two announcements."""
TIE_CONTESTS = 3
"""After this many answers a twin that did not yield must have started together with us."""

EXPIRY_STEP_S = 0.001


def later_expiry_s(kind: type[Record], wanted_s: float, earlier_s: float, now_s: float) -> float:
    """When a record of ``kind`` should expire that is wanted until ``wanted_s`` and follows one until ``earlier_s``.

    The directory stores only what expires later than what it has. But where no clock like ours would have taken the
    earlier record, nobody has it: this machine's clock was far ahead then, and has been set right since.
    """
    later_s = max(wanted_s, earlier_s + EXPIRY_STEP_S)
    return later_s if later_s <= now_s + kind.LIFETIME_S + CLOCK_SKEW_S else wanted_s


class Announcer:
    """Publishes one announcement on change and at a fixed rhythm."""

    def __init__(
        self, directory: Directory, identity: Identity, clock: Clock, base: Announcement, config: ServerConfig
    ) -> None:
        self.directory = directory
        self.identity = identity
        self._clock = clock
        self._base = base
        self._config = config
        self.servers = 1
        """How many servers the model had when they were last counted, or the most it may have before they are; among
        many, records are written less often and live longer."""
        self._stored_until_s: float | None = None
        self._earlier: set[int] = set()
        self._contests = 0
        self._bell = Bell(clock)

    @property
    def current(self) -> Announcement:
        """What was, or is about to be, announced."""
        return self._base

    def locate(self, reach: Reach, addresses: Sequence[str]) -> bool:
        """Say from the next announcement on how others reach this server; True if that is news."""
        known = self._base
        self._base = msgspec.structs.replace(known, reach=reach, addresses=tuple(addresses[:MAX_ADDRESSES]))
        return (known.reach, set(known.addresses)) != (reach, set(self._base.addresses))

    def amend(self, **changes: object) -> None:
        """Change what the next announcement says, which is no reason to publish it before its time."""
        self._base = msgspec.structs.replace(self._base, **changes)

    def signed(self) -> bytes:
        """The current announcement, valid from now, without storing it anywhere."""
        return sign_record(self.identity, self._renewed())

    def _renewed(self) -> Announcement:
        now_s = self._clock.wall_s()
        wanted_s = now_s + self._lives * self._every_s
        expires_s = later_expiry_s(Announcement, wanted_s, self._base.expires_s, now_s)
        self._base = msgspec.structs.replace(self._base, sequence=self._base.sequence + 1, expires_s=expires_s)
        return self._base

    @property
    def _every_s(self) -> float:
        """Between two announcements; never so long that one write that fails takes us out of sight."""
        longest_s = Announcement.LIFETIME_S / self._lives
        return min(announce_interval_s(self.servers, self._config.announce_every_s), longest_s)

    @property
    def _lives(self) -> float:
        """How many intervals an announcement lives."""
        return self._config.announce_lifetime_s / self._config.announce_every_s

    async def publish(self, **changes: object) -> Announcement:
        """Sign and store the announcement with ``changes``; it lives ``announce_lifetime_s`` (large swarms: longer)."""
        depth = self._base.shard_depth
        if changes.get("state") is not State.OFFLINE:  # the last word stands where the one before does
            depth = await self.directory.shard_depth(ModelId.parse(self._base.model))
        if self._stored_until_s is None:  # what an earlier process with our key left must not outlive our first word
            self.servers = max(self.servers, most_servers(depth))
        self._base = msgspec.structs.replace(self._base, shard_depth=depth, **changes)
        record = self.signed()
        self._stored_until_s = self._base.expires_s
        await self.directory.publish(record, self._base)
        return self._base

    async def check_twin(self) -> bool:
        """Look for a second process with our key; True if it has announced since we last did, and must be answered.

        Raises ``IdentityInUseError`` if that process was there before us. No two machines' clocks are compared: the
        directory keeps one record of a peer, the one that expires last, so a twin's that outlives ours was announced
        after ours, by a process that lives; and whoever we saw before our own first announcement came before us.
        Of twins that began in the same moment and so never saw each other, the one that started later yields.
        """
        listing = await self.directory.server(ModelId.parse(self._base.model), self._base.peer)
        if listing is None or listing.announcement.instance == self._base.instance:
            return False
        ours, theirs = self._base, listing.announcement
        if self._stored_until_s is None:
            self._earlier.add(theirs.instance)
            return False
        if theirs.expires_s <= self._stored_until_s:
            return False
        self._contests += 1
        tie = self._contests >= TIE_CONTESTS
        if theirs.instance in self._earlier or (
            tie and (theirs.started_s, theirs.instance) < (ours.started_s, ours.instance)
        ):
            raise IdentityInUseError(
                "another machine already serves with this identity",
                hint="give this server its own key with --identity, or stop the other one",
            )
        return True

    def hurry(self) -> None:
        """Announce at once, not when it is due: what was stored may be gone."""
        self._bell.ring()

    async def run(self, lost: Callable[[IdentityInUseError], Awaitable[None]]) -> None:
        """Re-announce until cancelled; ``lost`` is told if an earlier twin shows up. Outages are retried, and told
        once."""
        since_s, failing = 0.0, False
        while True:
            step_s = self._every_s / LOOKS_PER_ANNOUNCEMENT
            since_s = self._every_s if await self._bell.sleep(step_s) else since_s + step_s
            try:
                async with asyncio.timeout(self._every_s):
                    contested = await self.check_twin()
                    if contested or since_s >= self._every_s - step_s / 2:
                        await self.publish()
                        since_s = 0.0
                failing = False
            except IdentityInUseError as error:
                await lost(error)
                return
            except (NetworkError, TimeoutError) as error:
                log.log(logging.DEBUG if failing else logging.WARNING, "could not announce, trying again: %s", error)
                failing = True


def first_announcement(
    model: ModelId, engine: SpanEngine, transport: Transport, now_s: float, *, instance: int, public_name: str = ""
) -> Announcement:
    """What a server that has loaded ``engine`` says of itself before it is online, as reachable as it may be.

    ``instance`` is a random number of this process, ``now_s`` wall time. What is learnt later goes to
    ``Announcer.locate``.
    """
    info = engine.info
    seat = Seat(
        model=model,
        layer_count=info.layer_count,
        span=info.span,
        peer=transport.peer_id,
        numerics=Numerics(info.dtype, info.quantization),
        capacity_layers=len(info.span),
        public_name=public_name,
        instance=instance,
    )
    facts = facts_of(engine, UNMEASURED)
    return msgspec.structs.replace(seat.announcement(now_s), addresses=transport.addresses[:MAX_ADDRESSES], **facts)
