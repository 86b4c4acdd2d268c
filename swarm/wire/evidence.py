"""Messages of verification: receipts as they come, and what is asked for after a session is over."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from swarm.core.errors import MisuseError
from swarm.core.limits import COMPACT_RECEIPT_BYTES, MAX_PROOF_BYTES, MAX_STEP_ROWS
from swarm.wire.fields import Body, Counter, Digest, SessionBytes, Signature, Stage, Tokens

CompactReceipt = Annotated[bytes, msgspec.Meta(min_length=COMPACT_RECEIPT_BYTES, max_length=COMPACT_RECEIPT_BYTES)]


class Signed(Body, frozen=True, tag=17):
    """Server → client: a receipt in its compact form, in the order of signing; where the server stood when it signed.

    ``(generation, epoch)`` is that of the step whose coming committed the window, or of ``Settle``'s last step.
    """

    generation: Counter
    epoch: Counter
    receipt: CompactReceipt


class Settle(Body, frozen=True, tag=18):
    """Client → server: nothing more will come, and ``keep`` rows are accepted: sign what is left of them."""

    keep: Tokens


class Settled(Body, frozen=True, tag=19):
    """Server → client: every receipt is sent, the last one perhaps of a shorter window; ``rows`` are signed or were."""

    rows: Tokens


class Countersign(Body, frozen=True, tag=20):
    """Client → server, after ``Settled``: its signature on the hash of this stage's last receipt."""

    signature: Signature


class FetchRows(Body, frozen=True, tag=21):
    """Client → server on a fetch stream, any number of times: give back what a closed session's stage has kept.

    Rows ``[first, last)``; only that session's own client is answered, and only if ``secret`` is what its OPEN
    committed to. ``leaves`` are those that its receipts were signed over; ``outputs`` what it computed, in its own
    dtype before any codec; ``sent`` what it sent to the next server, as the wire had it.
    """

    session: SessionBytes
    stage: Stage
    secret: Digest
    first: Tokens
    last: Tokens
    want: Literal["leaves", "outputs", "sent"]

    def __post_init__(self) -> None:
        if self.first >= self.last:
            raise MisuseError(f"rows {self.first}:{self.last}")


class FetchedRows(Body, frozen=True, tag=22):
    """Server → client: rows ``[first, first + rows)`` of what was asked, in order, until all are there.

    The payload of ``leaves`` is their canonical bytes one after the other, of ``outputs`` ``[rows, hidden]`` raw, of
    ``sent`` a ``Step``'s (token ids first if ``ids``, then the tensor in the session's codec).
    """

    first: Tokens
    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEP_ROWS)]
    ids: bool = False


class FetchProof(Body, frozen=True, tag=23):
    """Anybody → holder, first on a proof stream: the proof whose SHA-256 is ``digest``."""

    digest: Digest


class ProofPart(Body, frozen=True, tag=24):
    """Holder → anybody: the next bytes of it, as payload; ``total_bytes`` is the whole proof's size."""

    total_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_PROOF_BYTES)]
