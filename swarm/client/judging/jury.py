"""Reads what others say to have proof of, checks it, and acts on what it checked itself; on nothing else.

Two receipts with one counter convict by themselves. A fraud proof is fetched from whoever has it and checked by
``verify``, where this node can: until then its subject is avoided, and audited in every window.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import NoReturn

from msgspec.structs import replace

from swarm.client.judging.accuser import Accuser
from swarm.client.judging.docket import Case, Docket
from swarm.client.judging.seat import Seat
from swarm.core.accusation import Accusation
from swarm.core.errors import BusyError, NetworkError, PeerError, RefusedError, SwarmError
from swarm.core.ids import ModelId, PeerId
from swarm.runtime.reputation import ProofKind
from swarm.transport.proofs import fetch_proof
from swarm.verification.allegation import Allegation, read_charge
from swarm.verification.standings.strikes import Policy, Standing, accused, equivocated, struck

LOOK_EVERY_S = 10.0
SUBJECTS_A_LOOK = 16
"""Servers that are asked about in one reading, a key each; in larger swarms they take turns."""
AGAIN_S = 300.0
"""After so long a proof is tried again for which nobody was found to compute it."""
ACCUSED_S = 600.0
"""How long an accusation that could not be checked has its subject avoided."""
MAX_ACCUSED_SHARE = 0.25
"""Of the servers there are. Where more stand accused, others are no suspects: so nobody can be left alone in routing
by accusing all others."""

Verify = Callable[[bytes], Awaitable[object]]
"""Computes again what a fraud proof is about. Returns if the proof holds; raises a ``PeerError`` if it proves nothing,
which is final, a ``NetworkError`` if it may be tried again, and any other ``SwarmError`` if this node cannot tell (no
weights, another calibration, auditors that do not agree)."""
Listed = Callable[[], Awaitable[Sequence[PeerId]]]
"""Which servers there are, those that matter most first."""

_log = logging.getLogger(__name__)


class Jury:
    """One node's judgement of what is said about the servers of one model.

    ``verify`` may be set at any time; ``own_weights`` is False where it asks others, whose word is no proof: what
    follows from it ends, and then the proof is judged anew, by whom the lot falls on. ``accuser`` tells others of what
    was found true; None: nobody is told.
    """

    def __init__(
        self,
        seat: Seat,
        listed: Listed,
        *,
        accuser: Accuser | None = None,
        verify: Verify | None = None,
        policy: Policy | None = None,
        chance: Random | None = None,
    ) -> None:
        self.verify = verify
        self.own_weights = True
        self._seat = seat
        self._listed = listed
        self._accuser = accuser
        self._policy = policy or Policy()
        self._random = chance or Random()
        self._docket = Docket()
        self._turn = 0
        self._judging: set[asyncio.Task[None]] = set()
        self._computing = asyncio.Lock()

    async def run(self) -> NoReturn:
        """Look every ``LOOK_EVERY_S`` from now on, until cancelled; ``close`` then."""
        while True:
            await self._seat.clock.sleep(LOOK_EVERY_S)
            try:
                await self.look()
            except NetworkError as error:
                _log.debug("could not read accusations: %s", error)
            except SwarmError as error:  # of the store: its disk may have room again
                _log.warning("could not judge accusations: %s", error)

    async def close(self) -> None:
        """Judge no more. Idempotent."""
        for task in self._judging:
            task.cancel()
        await asyncio.gather(*self._judging, return_exceptions=True)

    async def look(self) -> None:
        """Read what is said now. Evidence is judged at once, fraud proofs one after the other in the background.

        Raises ``NetworkError`` if the directory does not answer.
        """
        seat, now_s = self._seat, self._seat.clock.monotonic_s()
        listed = await self._listed()
        ejected = seat.store.ejected()
        self._docket.drop(ejected)
        self._docket.expire(now_s)
        subjects = self._whose_turn([peer for peer in listed if peer not in ejected])
        found = await seat.directory.accusations(seat.model, subjects) if subjects else []
        self._random.shuffle(found)  # no order by which one accuser could come before all others
        for record in found:
            if record.evidence:
                await self.hold("equivocation", record.evidence)
            else:
                await self._hear(record, len(listed))
        for _ in range(min(len(self._docket), self._seat.at_once - len(self._judging))):
            task = asyncio.create_task(self._judge_all(), name="jury")
            self._judging.add(task)
            task.add_done_callback(self._judging.discard)

    def _whose_turn(self, peers: Sequence[PeerId]) -> list[PeerId]:
        """Half of those at the front, and of the others as many as there is room for, in turns."""
        if len(peers) <= SUBJECTS_A_LOOK:
            return list(peers)
        front, others = peers[: SUBJECTS_A_LOOK // 2], peers[SUBJECTS_A_LOOK // 2 :]
        count = SUBJECTS_A_LOOK - len(front)
        begin, self._turn = self._turn % len(others), self._turn + count
        return [*front, *(others[(begin + place) % len(others)] for place in range(min(count, len(others))))]

    async def _hear(self, record: Accusation, servers: int) -> None:
        """Open cases for an accusation's proofs, and let their subject be avoided meanwhile."""
        store, clock = self._seat.store, self._seat.clock
        known = [proof for proof in record.proofs if self._verdict(proof.digest) is None]
        if not known:
            return
        opened = self._docket.hear(replace(record, proofs=tuple(known)), clock.monotonic_s())
        most = max(1, int(servers * MAX_ACCUSED_SHARE))
        suspects = store.accused()
        for case in opened:
            if case.subject in suspects or len(suspects) < most:
                await asyncio.to_thread(self._suspect, case)
                suspects = store.accused()

    def _suspect(self, case: Case) -> None:
        store = self._seat.store
        if store.accuse(case.subject, case.digest, self._seat.clock.wall_s() + ACCUSED_S):
            store.change(case.subject, lambda standing: accused(standing, self._policy))
            _log.info("server %s stands accused by proof %s", case.subject[-8:], case.digest.hex()[:16])

    # -- judging --------------------------------------------------------------------------------------------

    async def _judge_all(self) -> None:
        while (case := self._docket.take(self._seat.clock.monotonic_s())) is not None:
            try:
                await self._judge(case)
            except SwarmError as error:  # of the store
                self._docket.later(case, self._seat.clock.monotonic_s())
                _log.warning("could not judge proof %s: %s", case.digest.hex()[:16], error)

    async def _judge(self, case: Case) -> None:
        """Fetch one proof and come to a verdict, if one can be had."""
        data = await self._fetched(case)
        if data is None:
            return
        now_s = self._seat.clock.monotonic_s
        try:
            charge = await asyncio.to_thread(read_charge, "fraud", data)
            _check_subject(charge, case.subject, self._seat.model)
        except PeerError as error:
            _log.info("proof %s against %s proves nothing: %s", case.digest.hex()[:16], case.subject[-8:], error)
            await asyncio.to_thread(self._seat.store.judge, case.digest, proven=False)
            self._docket.false(case, now_s())
            return
        if self.verify is None:
            self._docket.set_aside(case, now_s())
            return
        try:
            async with self._computing:
                await self.verify(data)
        except PeerError as error:
            _log.info("proof %s against %s does not hold: %s", case.digest.hex()[:16], case.subject[-8:], error)
            await asyncio.to_thread(self._seat.store.judge, case.digest, proven=False)
            self._docket.false(case, now_s())
        except NetworkError as error:
            _log.debug("proof %s cannot be judged now: %s", case.digest.hex()[:16], error)
            self._docket.later(case, now_s(), AGAIN_S)
        except SwarmError as error:
            _log.debug("proof %s cannot be judged here: %s", case.digest.hex()[:16], error)
            self._docket.set_aside(case, now_s())
        else:
            await self._convict("fraud", data, charge, proven=self.own_weights)
            self._docket.proven(case)

    async def _fetched(self, case: Case) -> bytes | None:
        """The proof's bytes, known to be of the digest; None if they could not be had this time."""
        holder, now_s = self._docket.holder(case), self._seat.clock.monotonic_s
        addresses = case.holders[holder]
        try:
            return await fetch_proof(self._seat.transport, holder, case.digest, addresses=addresses, size=case.size)
        except BusyError as error:
            self._docket.later(case, now_s(), error.retry_after_s)
        except (NetworkError, RefusedError):
            self._docket.failed(case, holder, now_s())
        except PeerError as error:
            _log.info("%s does not give the proof it announced: %s", holder[-8:], error)
            self._docket.distrust(holder)
            self._docket.later(case, now_s(), 0.0)
        return None

    async def hold(self, kind: ProofKind, data: bytes, *, verified: bool = False) -> bool:
        """Check a proof that is at hand and act on it; True if it holds. One that was judged before is not again.

        A fraud proof is taken for ``verified`` or else checked by ``verify``; False where nobody can.
        """
        digest = hashlib.sha256(data).digest()
        known = self._verdict(digest)
        if known is not None:
            return known
        try:
            charge = await asyncio.to_thread(read_charge, kind, data)
            _check_subject(charge, charge.subject, self._seat.model)
            if kind == "fraud" and not verified:
                if self.verify is None:
                    return False
                await self.verify(data)
        except SwarmError as error:
            _log.info("a proof of %s does not hold: %s", kind, error)
            return False
        await self._convict(kind, data, charge, proven=kind == "equivocation" or verified or self.own_weights)
        return True

    def _verdict(self, digest: bytes) -> bool | None:
        """What stands here already. The word of others does not, for one that computes by own weights."""
        return self._seat.store.verdict(digest, own_weights=self.own_weights and self.verify is not None)

    async def _convict(self, kind: ProofKind, data: bytes, charge: Allegation, *, proven: bool) -> None:
        """What this node checked counts: in its own book, and as its own word to others."""
        if not proven and self._verdict(hashlib.sha256(data).digest()) is not None:
            return  # while others computed, the user forgave it, or another process came to its verdict
        standing = await asyncio.to_thread(self._enter, kind, data, charge, proven=proven)
        fate = f"ejected ({standing.ejected})" if standing.ejected else "struck"
        _log.warning("server %s is %s: %s", charge.subject[-8:], fate, charge.what)
        if self._accuser is not None:
            await self._accuser.accuse(charge.subject, kind, data)

    def _enter(self, kind: ProofKind, data: bytes, charge: Allegation, *, proven: bool) -> Standing:
        store, policy = self._seat.store, self._policy
        digest = store.keep_proof(charge.subject, kind, data)

        def transition(standing: Standing) -> Standing:
            if kind == "equivocation":
                return equivocated(standing)
            return struck(standing, policy, charge.session, proven=proven)

        standing = store.change(charge.subject, transition)
        store.judge(digest, proven=True, by_word=not proven)  # last: after a crash it is judged again, to no effect
        return standing


def _check_subject(charge: Allegation, subject: PeerId, model: ModelId) -> None:
    if charge.subject != subject or charge.model != str(model):
        raise PeerError("it is about somebody else, or another model")
