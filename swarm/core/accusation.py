"""The record by which a peer tells others that it holds proof against a server."""

from __future__ import annotations

from typing import Annotated, ClassVar

import msgspec

from swarm.core.announcement import Address
from swarm.core.errors import BadRecordError, BadSignatureError
from swarm.core.ids import PeerId
from swarm.core.keys import public_key_of
from swarm.core.limits import MAX_ADDRESSES, MAX_PROOF_BYTES
from swarm.core.record_base import PeerText, Record

MAX_PROOFS = 4
"""Of one subject that one peer points to at a time; two confirmed failures eject."""
MAX_EVIDENCE_BYTES = 2560
"""So that the record stays within ``MAX_RECORD_BYTES``; two receipts of the greatest size fit."""
DIGEST_BYTES = 32


class ProofRef(msgspec.Struct, frozen=True, array_like=True):
    """A fraud proof that the accuser hands out: the SHA-256 and the length of its bytes."""

    digest: Annotated[bytes, msgspec.Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_PROOF_BYTES)]


class Accusation(Record, frozen=True, kw_only=True, omit_defaults=True, tag="accusation"):
    """``peer`` has checked proof against the server ``subject`` of ``model``.

    Either ``evidence``, a proof of equivocation itself, which whoever stores the record checks on the spot; or
    ``proofs`` that are to be fetched from ``peer`` at its ``addresses``. To readers it is a pointer and no more: they
    act on what they have checked.
    """

    LIFETIME_S: ClassVar[float] = 300.0

    subject: PeerText
    evidence: Annotated[bytes, msgspec.Meta(max_length=MAX_EVIDENCE_BYTES)] = b""
    proofs: Annotated[tuple[ProofRef, ...], msgspec.Meta(max_length=MAX_PROOFS)] = ()
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_ADDRESSES)] = ()

    @property
    def subject_id(self) -> PeerId:
        return PeerId(self.subject)

    def check(self) -> None:
        """See ``Record.check``; also: about somebody else who can be, with either evidence or proofs, each once."""
        super().check()
        try:
            public_key_of(self.subject)
        except BadSignatureError as error:
            raise BadRecordError("accuses nobody", peer=self.peer) from error
        if self.subject == self.peer:
            raise BadRecordError("accuses itself", peer=self.peer)
        if bool(self.evidence) == bool(self.proofs) or (self.evidence and self.addresses):
            raise BadRecordError("an accusation brings evidence, or says where proofs are", peer=self.peer)
        if len({proof.digest for proof in self.proofs}) != len(self.proofs):
            raise BadRecordError("names one proof twice", peer=self.peer)
