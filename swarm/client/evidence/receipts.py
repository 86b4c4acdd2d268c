"""One session's receipts as they come: checked against what the client knows, kept over rollbacks and heals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from swarm.client.evidence.known import KnownRows
from swarm.client.evidence.records import ProblemKind, ReceiptProblem, SessionRecord, StageRecord, Verification
from swarm.client.plan import ChainPlan, StagePlan
from swarm.core.clock import Clock
from swarm.core.errors import (
    BrokenLinkError,
    EquivocationError,
    ExpiredReceiptError,
    PeerError,
    ProtocolViolation,
)
from swarm.core.ids import PeerId
from swarm.verification.signed.book import Mark, ReceiptBook
from swarm.verification.signed.coverage import CoveredWindow, Known
from swarm.verification.signed.lineage import Lineage
from swarm.verification.signed.receipts import NO_HASH, WINDOW_ROWS, Opening, Receipt
from swarm.wire.evidence import Signed
from swarm.wire.messages import Accept, Result, Step
from swarm.wire.tensors import Buffer

SPARE_RECEIPTS = 4
"""Beyond one for each window that was ever sent or taken back."""


@dataclass(frozen=True, slots=True)
class SessionNames:
    """What all stages of a session are told alike, and all of its receipts repeat."""

    client: PeerId
    session: bytes
    nonce: bytes
    commitment: bytes


@dataclass(frozen=True, slots=True)
class Signer:
    """A stage as it was opened: its number, its server, and what that one said when it accepted."""

    number: int
    plan: StagePlan
    accept: Accept


@dataclass(frozen=True, slots=True)
class Mended:
    """What an opening or a heal did to the rows: the first ``keep`` of them are held by all, in ``generation``.

    All were told that windows below ``signed_rows`` stay as they were signed. The stages ``recomputed`` took in all
    ``keep`` rows again, newcomers among them. ``fed`` are the hashes of the rows that the client fed to the first
    stage, if it did.
    """

    generation: int
    keep: int
    signed_rows: int
    recomputed: frozenset[int] = frozenset()
    fed: Sequence[bytes] = ()


class SessionReceipts:
    """Collects and checks. Whoever sends steps says so, else receipts seem to be for rows that were never sent."""

    def __init__(self, plan: ChainPlan, names: SessionNames, clock: Clock) -> None:
        self._plan = plan
        self._names = names
        self._clock = clock
        self._layer_count = plan.stages[-1].span.end
        self._book = ReceiptBook(self._layer_count)
        self._rows = KnownRows(plan.codec)
        self._signers: dict[int, Signer] = {}
        self._openings: dict[int, Opening] = {}
        self._upstream: dict[int, int | None] = {}
        self._lineage = Lineage()
        self._order: tuple[int, ...] = ()
        self._mark: Mark = (0, 0)
        self._came: defaultdict[int, int] = defaultdict(int)
        self._again = 0
        self._covered: dict[int, CoveredWindow] = {}
        self._problems: dict[tuple[ProblemKind, tuple[PeerId, ...]], ReceiptProblem] = {}
        self._final_rows: int | None = None
        self._half_healed = False
        """The last heal came to nothing: nobody knows which servers were told of it, and sign again what is void."""

    # -- what the chain does --------------------------------------------------------------------------------

    def seated(self, signers: Sequence[Signer], mended: Mended) -> None:
        """These stages are the chain now, for the first time or after a heal."""
        known = set(self._openings)
        self._half_healed = False
        self._mark = (mended.generation, 0)
        self._seat(signers)
        openings = [self._openings[signer.number] for signer in signers]
        if not known:
            self._book.layout(openings)
            return
        keep, start = mended.keep, mended.signed_rows
        self._book.heal(openings, self._mark, signed_rows=start)
        self._lineage.truncate(keep)
        self._lineage.recompute(mended.recomputed, keep, start, mended.generation)
        self._forget_windows(start)
        self._again += keep - start + WINDOW_ROWS
        self._rows.truncate(keep)
        first, last = signers[0].number, signers[-1].number
        if first in mended.recomputed and mended.fed:
            self._rows.refeed(mended.fed, start if first in known else 0)
        if last in mended.recomputed:
            self._rows.unanswer(start if last in known else 0)

    def heal_failed(self, mended: Mended) -> None:
        """A heal came to nothing, after servers were told of it; ``recomputed`` may have begun to."""
        self._half_healed = True
        self._mark, start = (mended.generation, 0), mended.signed_rows
        self._book.void(start, self._mark)
        self._forget_windows(start)
        self._again += self._rows.most - start + WINDOW_ROWS
        self._lineage.lose(mended.recomputed, mended.generation)

    def whole_rows(self, keep: int) -> int:
        """Of the first ``keep`` rows, those in windows that every stage has signed."""
        return self._book.whole_rows(keep)

    def sent(self, step: Step, payload: Sequence[Buffer]) -> None:
        """A step is on its way."""
        mark = (step.generation, step.epoch)
        if mark > self._mark:
            self._mark = mark
            self._book.truncate(step.keep, mark)
            self._cut(step.keep)
        self._rows.send(step, payload)
        self._lineage.truncate(step.keep)
        self._lineage.compute(step.keep + step.rows)

    def answered(self, result: Result, payload: Buffer) -> None:
        """The result of a step that was waited for. ``ProtocolViolation`` for rows that cannot be."""
        self._rows.hear(result, payload)

    # -- what servers sign ----------------------------------------------------------------------------------

    def hear(self, stage: int, peer: PeerId, message: Signed) -> None:
        """A receipt has come from ``peer``, the stage's server.

        Raises a ``PeerError`` that names the liar if no honest server sends it, or if it completes a window in which
        some server contradicts what the client knows; the proof, if there is one, is kept. A link that does not hold
        is kept as well, and raises nothing.
        """
        try:
            self._count(stage)
            now_s, mark = self._clock.wall_s(), (message.generation, message.epoch)
            window = self._book.receive(stage, message.receipt, now_s=now_s, sent_rows=self._rows.most, mark=mark)
            self._forget_above(stage)
            if window is not None:
                self._verify(window, now_s)
        except PeerError as error:
            liar = PeerId(error.peer or peer)
            if isinstance(error, EquivocationError):
                self.note("equivocation", (liar,), error.message, error.proof)
            else:
                self.note("lie", (liar,), error.message)
            raise

    def note(self, kind: ProblemKind, peers: tuple[PeerId, ...], what: str, proof: bytes = b"") -> None:
        """Keep a problem; of several of one kind with the same peers the first."""
        self._problems.setdefault((kind, peers), ReceiptProblem(kind, peers, what, proof))

    # -- the end --------------------------------------------------------------------------------------------

    @property
    def willing(self) -> tuple[Signer, ...]:
        """The stages of the chain that said they sign."""
        return tuple(self._signers[number] for number in self._order if self._signers[number].accept.receipts)

    def finish(self, keep: int) -> None:
        """``keep`` rows are accepted in the end; servers are about to be asked to sign the rest."""
        self._final_rows = keep
        self._book.finish(keep)
        self._cut(keep)

    def missing(self, stages: Iterable[int]) -> None:
        """Note which of these stages have not signed all that they should have by now."""
        if self._half_healed:
            return
        asked = set(stages)
        owed = self._book.owed(-(-(self._final_rows or 0) // WINDOW_ROWS) * WINDOW_ROWS)
        for window, number in owed:
            if number in asked:
                first, last = self._positions(window)
                self.note("missing", (self._signers[number].plan.peer,), f"no receipt for rows {first}:{last}")

    def linked(self) -> dict[int, Receipt]:
        """By stage the receipt to be counter-signed: the last one, if it and all before it are in covered windows."""
        found = {}
        for number in self._order:
            last, counting = self._book.last_of(number), self._book.receipts_of(number)
            whole = all(signed.receipt.window in self._covered for signed in counting)
            if last is not None and counting[-1:] == [last] and whole:
                found[number] = last.receipt
        return found

    @property
    def verification(self) -> Verification:
        """What is known by now."""
        covered = self._contiguous()
        signers = dict.fromkeys(PeerId(signed.receipt.signer) for window in covered for signed in window.receipts)
        rows = sum(window.rows for window in covered)
        return Verification(len(covered), rows, tuple(signers), tuple(self._problems.values()))

    def record(self, token_ids: tuple[int, ...], horizon: int) -> SessionRecord:
        """All that is left of the session; ``token_ids`` are the accepted rows."""
        earlier = [number for number in self._openings if number not in self._order and self._book.receipts_of(number)]
        return SessionRecord(
            model=self._plan.model,
            layer_count=self._layer_count,
            session=self._names.session,
            secret=self._plan.audit_secret,
            token_ids=token_ids,
            answers=self._rows.answers,
            params=self._rows.params,
            codec=self._plan.codec,
            remote_head=self._plan.head,
            horizon=horizon,
            stages=tuple(self._stage(number) for number in (*self._order, *earlier)),
            covered_rows=self.verification.rows,
            problems=tuple(self._problems.values()),
        )

    # -- inside ---------------------------------------------------------------------------------------------

    def _seat(self, signers: Sequence[Signer]) -> None:
        before: int | None = None
        for signer in signers:
            self._signers[signer.number] = signer
            self._openings.setdefault(signer.number, self._opening(signer))
            self._upstream[signer.number], before = before, signer.number
            if not signer.accept.receipts:
                self.note("unwilling", (signer.plan.peer,), f"it signs nothing for layers {signer.plan.span}")
        self._order = tuple(signer.number for signer in signers)
        self._lineage.seat(self._order)

    def _opening(self, signer: Signer) -> Opening:
        plan, names = signer.plan, self._names
        return Opening(
            signer=plan.peer,
            client=names.client,
            session=names.session,
            nonce=names.nonce,
            stage=signer.number,
            start=plan.span.start,
            end=plan.span.end,
            model=str(self._plan.model),
            calibration=signer.accept.calibration or NO_HASH,
            numerics=str(plan.announcement.numerics),
            commitment=names.commitment,
        )

    def _stage(self, number: int) -> StageRecord:
        upstream = self._upstream[number]
        return StageRecord(
            self._openings[number],
            self._signers[number].plan,
            tuple(self._book.receipts_of(number)),
            upstream,
            self._lineage.judged_from(number),
            0 if upstream is None else self._lineage.linked_from(upstream, number),
        )

    def _count(self, stage: int) -> None:
        """A stage signs a window once, and again when it was taken back: whoever signs more only keeps us busy."""
        self._came[stage] += 1
        if self._came[stage] > (self._rows.work + self._again) // WINDOW_ROWS + SPARE_RECEIPTS:
            raise ProtocolViolation("more receipts than there was anything to sign")

    def _verify(self, window: int, now_s: float) -> None:
        first, last = positions = self._positions(window)
        rows, seams = self._rows, self._lineage.seams(first, last)
        known = Known(positions, rows.entry_root(first, last), rows.exit_root(first, last), seams)
        try:
            self._covered[window] = self._book.verify(window, now_s=now_s, known=known)
        except BrokenLinkError as error:
            self.note("broken link", (PeerId(error.peers[0]), PeerId(error.peers[1])), error.message)
        except ExpiredReceiptError:
            return  # nobody lied: the window was so long in coming
        except PeerError as error:
            self._book.reject(error.peer, window)
            raise

    def _positions(self, window: int) -> tuple[int, int]:
        first, end = window * WINDOW_ROWS, self._final_rows
        return first, first + WINDOW_ROWS if end is None else min(first + WINDOW_ROWS, end)

    def _cut(self, keep: int) -> None:
        """The session went back to ``keep`` rows."""
        self._forget_windows(keep)
        self._again += WINDOW_ROWS
        self._rows.truncate(keep)
        self._lineage.truncate(keep)

    def _forget_windows(self, keep: int) -> None:
        """What reaches beyond row ``keep`` is signed again; a window that ends there stays."""
        self._covered = {
            window: covered for window, covered in self._covered.items() if covered.receipts[0].receipt.last <= keep
        }

    def _forget_above(self, stage: int) -> None:
        """A stage's receipt voids those that it signed before for windows above."""
        last = self._book.last_of(stage)
        if last is not None and max(self._covered, default=-1) > last.receipt.window:
            self._forget_windows(last.receipt.last)

    def _contiguous(self) -> list[CoveredWindow]:
        found: list[CoveredWindow] = []
        while len(found) in self._covered:
            found.append(self._covered[len(found)])
        return found
