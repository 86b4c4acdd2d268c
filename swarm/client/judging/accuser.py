"""Tells others of the proofs that this node has checked, again and again while it lives, and hands them out."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from random import Random
from typing import NoReturn

from swarm.client.judging.seat import Seat
from swarm.core.accusation import MAX_EVIDENCE_BYTES, MAX_PROOFS, Accusation, ProofRef
from swarm.core.errors import NetworkError, SwarmError
from swarm.core.ids import PeerId, rank_of
from swarm.core.keys import Identity
from swarm.core.limits import MAX_ADDRESS_CHARS, MAX_ADDRESSES
from swarm.core.records import sign_record
from swarm.runtime.reputation import KeptProof, ProofKind
from swarm.transport.proofs import ProofServer
from swarm.verification.allegation import read_charge

AGAIN_S = 60.0
JITTER = (0.7, 1.3)
MAX_ACCUSED = 64
"""Servers that one node tells of, those it has the latest proofs against."""
ENOUGH = 8
"""Holders of one proof: whoever sees so many others leaves it to those whose ids' hashes come first."""

_log = logging.getLogger(__name__)


class Accuser:
    """One node's voice about servers of one model. It says only what is in its store, which holds what it checked."""

    def __init__(self, seat: Seat, identity: Identity) -> None:
        self._seat = seat
        self._identity = identity
        self._instance = secrets.randbits(63)
        self._sequence = 0
        self._random = Random(self._instance)
        self._models: dict[bytes, str] = {}

    async def serve(self) -> None:
        """Hand out the store's proofs to whoever asks, from now on."""
        await ProofServer(self._seat.store.proof, self._seat.clock).listen(self._seat.transport)

    async def accuse(self, subject: PeerId, kind: ProofKind, data: bytes) -> None:
        """Keep a proof that was checked, and tell of it now; it is told again by ``run`` if this fails."""
        await asyncio.to_thread(self._seat.store.keep_proof, subject, kind, data)
        try:
            await self._announce(subject, await self._proofs(subject))
        except NetworkError as error:
            _log.debug("could not tell of a proof against %s: %s", subject[-8:], error)

    async def run(self) -> NoReturn:
        """Tell again of all that are still there, until cancelled."""
        while True:
            try:
                await self.tell()
            except SwarmError as error:
                _log.debug("could not tell of proofs: %s", error)
            await self._seat.clock.sleep(AGAIN_S * self._random.uniform(*JITTER))

    async def tell(self) -> None:
        """One round: whoever is still announced, and not told of by enough others. Raises as the directory does."""
        seat = self._seat
        accused = list(dict.fromkeys(proof.subject for proof in seat.store.proofs()))
        if not accused:
            return
        listed = {listing.peer for listing in await seat.directory.servers(seat.model)}
        subjects = [subject for subject in accused if subject in listed][:MAX_ACCUSED]
        told = await seat.directory.accusations(seat.model, subjects) if subjects else []
        for subject in subjects:
            proofs = await self._proofs(subject)
            about = [record for record in told if record.subject == subject and record.peer != self._identity.peer_id]
            if proofs and not self._enough(proofs, about):
                await self._announce(subject, proofs)

    def _enough(self, proofs: Sequence[KeptProof], others: Sequence[Accusation]) -> bool:
        """True if each proof is told of by ``ENOUGH`` others that come before this node."""
        own = rank_of(self._identity.peer_id)
        for proof in proofs:
            holders = [record.peer for record in others if _names(record, proof)]
            if sum(rank_of(holder) < own for holder in holders) < ENOUGH:
                return False
        return True

    async def _proofs(self, subject: PeerId) -> list[KeptProof]:
        """What to tell about ``subject`` in this model: a proof of equivocation alone, or the latest others."""
        store, found = self._seat.store, []
        for kept in store.proofs():
            if kept.subject == subject and await self._model_of(kept) == str(self._seat.model):
                found.append(kept)
        told = [kept for kept in found if kept.kind == "equivocation" and kept.size <= MAX_EVIDENCE_BYTES][:1]
        return told or [kept for kept in found if kept.kind == "fraud"][:MAX_PROOFS]

    async def _model_of(self, kept: KeptProof) -> str:
        if kept.digest not in self._models:
            data = self._seat.store.proof(kept.digest)
            try:
                charge = await asyncio.to_thread(read_charge, kept.kind, data or b"")
                self._models[kept.digest] = charge.model
            except SwarmError:  # from another version of the package
                self._models[kept.digest] = ""
        return self._models[kept.digest]

    async def _announce(self, subject: PeerId, proofs: Sequence[KeptProof]) -> None:
        if not proofs:
            return
        seat = self._seat
        evidence, refs = b"", tuple(ProofRef(proof.digest, proof.size) for proof in proofs)
        addresses = tuple(one for one in seat.transport.addresses if len(one) <= MAX_ADDRESS_CHARS)[:MAX_ADDRESSES]
        if proofs[0].kind == "equivocation":
            evidence, refs, addresses = seat.store.proof(proofs[0].digest) or b"", (), ()
        self._sequence += 1
        record = Accusation(
            model=str(seat.model),
            peer=self._identity.peer_id,
            instance=self._instance,
            sequence=self._sequence,
            expires_s=seat.clock.wall_s() + Accusation.LIFETIME_S,
            subject=subject,
            evidence=evidence,
            proofs=refs,
            addresses=addresses,
        )
        await seat.directory.publish(sign_record(self._identity, record), record)


def _names(record: Accusation, proof: KeptProof) -> bool:
    if record.evidence:
        return proof.kind == "equivocation"  # one such proof is as good as another
    return any(ref.digest == proof.digest for ref in record.proofs)
