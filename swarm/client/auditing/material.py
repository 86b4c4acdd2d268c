"""What an audit needs of a stage: its inputs, its outputs and its leaves, each checked against its receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeVar

from swarm.client.auditing.fetch import Fetching, Kept, fetching
from swarm.client.auditing.rows import RowForm, by_rows, floats
from swarm.client.evidence.records import SessionRecord, StageRecord
from swarm.core.errors import BadProofError, BusyError, MisuseError, NetworkError, RefusedError, SwarmError
from swarm.core.ids import PeerId
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.transport.protocol import Transport
from swarm.verification.challenges.audits import AuditPlan
from swarm.verification.signed.leaves import Leaf, digest_rows, id_hashes, row_hashes
from swarm.verification.signed.merkle import leaf_hash, merkle_root
from swarm.verification.signed.receipts import WINDOW_ROWS, SignedReceipt, check_rows, open_leaves
from swarm.verification.verdicts.calibration import Floats

AGAIN_S = (0.25, 1.0, 3.0)
"""When a server that refused, or was busy, is asked again: it may not have read yet that the session is over."""
MOST_PATIENCE_S = 5.0
T = TypeVar("T")

Feed = Callable[[Sequence[int]], Awaitable[bytes]]
"""Token ids → the rows that a client with a local head sends for them, as the wire has them."""


@dataclass(frozen=True, eq=False, slots=True)
class Material:
    """Rows ``[0, rows)`` of one stage as it received them, and from ``first`` on what it made of them.

    ``inputs`` are the received rows one after the other in ``form``, empty where it embeds the token ids itself;
    ``outputs`` the computed ones, raw in its own dtype; ``leaves`` those of the computed rows. ``receipts`` are those
    of the windows in ``[0, rows)``. ``attested``: it signed for having received every row, and these are they.
    """

    record: SessionRecord
    stage: StageRecord
    numerics: Numerics
    form: RowForm
    first: int
    rows: int
    inputs: bytes
    outputs: bytes
    leaves: tuple[Leaf, ...]
    receipts: tuple[SignedReceipt, ...]
    attested: bool
    byte_count: int
    """That came over the network."""

    @property
    def span(self) -> Span:
        return self.stage.opening.span

    @property
    def token_ids(self) -> tuple[int, ...]:
        return self.record.token_ids[: self.rows]

    def received(self) -> Floats | None:
        """Float32 ``[rows, hidden]``, the codec undone; None where the stage embeds."""
        return floats(self.inputs, self.form) if self.inputs else None

    def computed(self) -> Floats:
        """Float32 ``[rows - first, hidden]``."""
        return floats(self.outputs, self.raw)

    @property
    def raw(self) -> RowForm:
        """How ``outputs`` are encoded."""
        return RowForm("raw", self.form.dtype, self.form.hidden)


FailureKind = Literal["refused", "contradiction", "unreachable", "no inputs", "no reference"]


@dataclass(frozen=True, slots=True)
class AuditFailure:
    """Why a stage could not be judged.

    ``refused``: ``peer``, the suspect, does not show what it kept, or what it shows is not what it signed.
    ``contradiction``: what it signed does not fit itself, or is not what the client sent it. ``unreachable``: it was
    not there, or busy. ``no inputs``: ``peer``, which fed the suspect, does not show what it sent, or not what the
    suspect signed as received; no fault of the suspect's. ``no reference``: nobody computed it again.
    """

    kind: FailureKind
    peer: PeerId
    what: str


class Unavailable(Exception):
    """The audit ends here. ``byte_count`` came over the network before."""

    def __init__(self, kind: FailureKind, peer: PeerId, what: str) -> None:
        super().__init__(what)
        self.failure = AuditFailure(kind, peer, what)
        self.byte_count = 0


async def gather(
    record: SessionRecord, stage: StageRecord, plan: AuditPlan, transport: Transport, hidden: int, feed: Feed | None
) -> Material:
    """Fetch and check what ``plan`` needs of ``stage``, whose rows have ``hidden`` values.

    Raises ``Unavailable``, and ``MisuseError`` if ``feed`` is missing where the client keeps the embeddings.
    """
    numerics = Numerics.parse(stage.opening.numerics)
    form = RowForm(record.codec, numerics.dtype, hidden)
    first = plan.judged[0] * WINDOW_ROWS
    gathering = _Gathering(record, stage, transport, form)
    try:
        leaves, outputs = await gathering.computed(first, plan)
        inputs = await gathering.received(plan.rows, feed)
        attested = gathering.attested(inputs, first, plan.rows)
    except Unavailable as error:
        error.byte_count = gathering.byte_count
        raise
    return Material(
        record=record,
        stage=stage,
        numerics=numerics,
        form=form,
        first=first,
        rows=plan.rows,
        inputs=inputs,
        outputs=outputs,
        leaves=tuple(leaves),
        receipts=gathering.receipts(0, plan.rows),
        attested=attested,
        byte_count=gathering.byte_count,
    )


@dataclass(slots=True)
class _Gathering:
    record: SessionRecord
    stage: StageRecord
    transport: Transport
    form: RowForm
    byte_count: int = 0

    def receipts(self, first: int, rows: int) -> tuple[SignedReceipt, ...]:
        """Those of the windows in ``[first, rows)``."""
        return tuple(signed for signed in self.stage.receipts if first <= signed.receipt.first < rows)

    # -- what the suspect computed --------------------------------------------------------------------------

    async def computed(self, first: int, plan: AuditPlan) -> tuple[list[Leaf], bytes]:
        """The leaves and outputs of rows ``[first, plan.rows)``, as it signed them."""
        peer, rows = self.stage.peer, plan.rows
        raw = RowForm("raw", self.form.dtype, self.form.hidden)

        async def both(stream: Fetching) -> tuple[list[bytes], bytes]:
            return await stream.leaves(first, rows), await stream.outputs(first, rows, raw)

        try:
            encoded, outputs = await self._asked(self.stage, both)
        except (BusyError, NetworkError) as error:
            raise Unavailable("unreachable", peer, error.message) from error
        except SwarmError as error:
            raise Unavailable("refused", peer, error.message) from error
        leaves = self._opened(encoded, first, rows)
        if [leaf.output for leaf in leaves] != digest_rows(rows - first, outputs):
            raise Unavailable("refused", peer, "the rows that it shows are not those that it signed")
        return leaves, outputs

    def _opened(self, encoded: Sequence[bytes], first: int, rows: int) -> list[Leaf]:
        leaves: list[Leaf] = []
        for signed in self.receipts(first, rows):
            receipt = signed.receipt
            window = encoded[receipt.first - first : receipt.last - first]
            try:
                leaves += open_leaves(receipt, window)
            except BadProofError as error:
                signed_so = merkle_root([leaf_hash(leaf) for leaf in window]) == receipt.leaf_root
                raise Unavailable(
                    "contradiction" if signed_so else "refused", self.stage.peer, error.message
                ) from error
        return leaves

    # -- what it received -----------------------------------------------------------------------------------

    async def received(self, rows: int, feed: Feed | None) -> bytes:
        """Rows ``[0, rows)`` as whoever fed it says it sent them, one after the other; nothing where ids came alone."""
        if self.stage.upstream is None:
            return await self._fed(rows, feed)
        feeder = self.record.stage(self.stage.upstream)
        if feeder is None:
            raise Unavailable("no inputs", self.stage.peer, "whoever fed it is not in the session's record")
        try:
            return await self._asked(feeder, lambda stream: stream.sent(0, rows, self.form))
        except SwarmError as error:
            raise Unavailable("no inputs", feeder.peer, error.message) from error

    async def _fed(self, rows: int, feed: Feed | None) -> bytes:
        if self.record.remote_head:
            return b""
        if feed is None:
            raise MisuseError("whoever keeps the embeddings must say what it sent", hint="give a feed")
        return by_rows(await feed(self.record.token_ids[:rows]), self.form)

    def attested(self, inputs: bytes, first: int, rows: int) -> bool:
        """True if every row is one that it signed for having received. Raises for rows ``[first, rows)`` that are not.

        Of the rows before, those from before a heal may be lost, or another's: they are computed from all the same,
        but a failure then blames nobody.
        """
        ids = self.record.token_ids[:rows] if self.record.remote_head else None
        hashes = row_hashes(digest_rows(rows, inputs), ids) if inputs else id_hashes(self.record.token_ids[:rows])
        signed_rows = 0
        for signed in self.receipts(0, rows):
            receipt = signed.receipt
            try:
                check_rows(receipt.in_root, hashes[receipt.first : receipt.last], receipt)
            except BadProofError as error:
                if receipt.first >= first:
                    raise self._unlinked(error) from error
                continue
            signed_rows += receipt.rows
        return signed_rows == rows

    def _unlinked(self, error: BadProofError) -> Unavailable:
        feeder = None if self.stage.upstream is None else self.record.stage(self.stage.upstream)
        if feeder is None:  # the client knows what it sent
            return Unavailable("contradiction", self.stage.peer, "it signed for rows that were not sent to it")
        return Unavailable("no inputs", feeder.peer, error.message)

    # -- asking ---------------------------------------------------------------------------------------------

    async def _asked(self, stage: StageRecord, work: Callable[[Fetching], Awaitable[T]]) -> T:
        """What ``work`` fetches from the server of ``stage``, which may need a moment to put the session away."""
        kept = Kept(stage.plan, self.record.session, stage.opening.stage, self.record.secret)
        waits_s = iter(AGAIN_S)
        while True:
            try:
                async with fetching(self.transport, kept) as stream:
                    try:
                        return await work(stream)
                    finally:
                        self.byte_count += stream.byte_count
            except (BusyError, RefusedError) as error:
                wait_s = next(waits_s, None)
                if wait_s is None:
                    raise
                told_s = error.retry_after_s if isinstance(error, BusyError) else 0.0
                await asyncio.sleep(max(wait_s, min(told_s, MOST_PATIENCE_S)))
