"""The end of a session: its servers sign what is left, the client counter-signs, and nobody who asked waits for it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from swarm.client.chains.member import Member
from swarm.client.evidence.receipts import SessionReceipts
from swarm.core.errors import SwarmError
from swarm.core.keys import Identity
from swarm.verification.signed.receipts import countersign

SETTLE_S = 2.0
"""So long servers have to sign what is left; only what they kept back is noted then."""
COUNTERSIGN_S = 0.5
"""And so long to read the client's signature."""
ROOM_WAIT_S = 0.25
"""How long the next session waits for those that end, whose places at the servers it may need."""
ENDING_S = 10.0
"""However its servers behave, a session has ended by then."""

_log = logging.getLogger(__name__)


async def settle(members: Sequence[Member], receipts: SessionReceipts, keep: int, identity: Identity | None) -> None:
    """Have the servers of a session that ends with ``keep`` accepted rows sign what is left, and counter-sign it.

    Takes a round trip, and ``SETTLE_S + COUNTERSIGN_S`` at most. What is still missing from whoever was there to sign
    it is noted. Raises nothing.
    """
    receipts.finish(keep)
    willing = {signer.number for signer in receipts.willing}
    asked = [member for member in members if member.number in willing and not member.parted]
    there = await asyncio.gather(*(_signs(member, keep) for member in asked))
    receipts.missing(member.number for member, signed in zip(asked, there, strict=True) if signed)
    if identity is not None:
        by_stage = {member.number: member for member in asked}
        signed = [(by_stage[number], receipt) for number, receipt in receipts.linked().items() if number in by_stage]
        await asyncio.gather(*(_thank(member, countersign(identity, receipt)) for member, receipt in signed))


async def _signs(member: Member, keep: int) -> bool:
    """Ask one server; False if it is gone, and so owes nothing."""
    try:
        async with asyncio.timeout(SETTLE_S):
            await member.settle(keep)
    except TimeoutError:
        return True
    except SwarmError:
        return False
    return True


async def _thank(member: Member, signature: bytes) -> None:
    try:
        async with asyncio.timeout(COUNTERSIGN_S):
            await member.countersign(signature)
    except (SwarmError, TimeoutError):
        return  # it does without


class Settlements:
    """Sessions that are over for whoever asked, and not yet at their servers."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def begin(self, ending: Coroutine[Any, Any, None]) -> None:
        """End a session in the background."""
        task = asyncio.create_task(ending, name="settle a session")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def wait(self, within_s: float) -> None:
        """Return once those that were begun so far have ended, or after ``within_s``."""
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=within_s)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a session did not end well", exc_info=error)
