"""A chain of honest stages without engine or network, and the client's receipts of it.

Every computation of a row gives other bytes, as other machines and other batches do. Receipts wait in each stage's
queue, as on its control stream, until a test delivers them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from itertools import count

from msgspec.structs import replace

from swarm.client.chains.mend_plan import replays
from swarm.client.evidence.receipts import Mended, SessionNames, SessionReceipts, Signer
from swarm.client.plan import ChainPlan, StagePlan
from swarm.core.announcement import Announcement
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.numerics import Numerics
from swarm.core.sampling import SamplingParams
from swarm.core.spans import Span
from swarm.runtime.clock import VirtualClock
from swarm.verification.challenges.commitment import commit
from swarm.verification.signed.compact import pack
from swarm.verification.signed.leaves import Leaf, digest_rows, id_hashes, row_hash
from swarm.verification.signed.receipts import NO_HASH, Opening, Receipt, sign_receipt
from swarm.verification.signed.windows import WindowBuilder, counter_base
from swarm.wire.evidence import Signed
from swarm.wire.messages import Accept, Answer, Result, Step
from swarm.wire.payload import pack_ids

MODEL = ModelId.parse("tiny@main#0123456789abcdef")
CLIENT = Identity(bytes([255]) * 32)
SPANS = (Span(0, 1), Span(1, 3), Span(3, 5))
SECRET = b"r" * 32
NAMES = SessionNames(CLIENT.peer_id, b"s" * 16, b"n" * 16, commit(SECRET))
PARAMS = SamplingParams()
NOTHING = id_hashes([None])[0]


class PaperStage:
    """One honest server: its leaves, its receipts under way, and the rows as it sent them last."""

    def __init__(self, number: int, span: Span, now_s: float, *, willing: bool = True) -> None:
        self.identity = Identity(bytes([number + 1]) * 32)
        self.number = number
        self.span = span
        self.willing = willing
        self.opening = Opening(
            signer=self.identity.peer_id,
            client=NAMES.client,
            session=NAMES.session,
            nonce=NAMES.nonce,
            stage=number,
            start=span.start,
            end=span.end,
            model=str(MODEL),
            calibration=NO_HASH,
            numerics="float32",
            commitment=NAMES.commitment,
        )
        self.builder = WindowBuilder(self.opening, counter_base(now_s, 0))
        self.sent: list[bytes] = []
        self.queue: deque[Signed] = deque()

    @property
    def signer(self) -> Signer:
        announcement = Announcement(
            model=str(MODEL),
            peer=self.identity.peer_id,
            instance=1,
            sequence=0,
            expires_s=1e10,
            layer_count=5,
            start=self.span.start,
            end=self.span.end,
            numerics=Numerics("float32"),
            kv_tokens=4096,
            started_s=1.0,
        )
        return Signer(self.number, StagePlan(announcement, b"", self.span), Accept(0, 0, 4096, receipts=self.willing))

    def sign(self, receipts: Sequence[Receipt], mark: tuple[int, int]) -> None:
        """Sign them and put them on the way."""
        if self.willing:
            self.queue += (Signed(*mark, pack(sign_receipt(self.identity, receipt))) for receipt in receipts)


class PaperChain:
    """Stages that compute, roll back and heal as servers do, told of to ``receipts`` as a client's chain does."""

    def __init__(self, *, willing: Collection[int] = (0, 1, 2)) -> None:
        self.clock = VirtualClock()
        self.now_s = self.clock.wall_s()
        self.stages = [PaperStage(n, span, self.now_s, willing=n in willing) for n, span in enumerate(SPANS)]
        plan = ChainPlan(MODEL, [s.signer.plan for s in self.stages], 4096, embed=True, head=True, audit_secret=SECRET)
        self.receipts = SessionReceipts(plan, NAMES, self.clock)
        self.ids: list[int] = []
        self.mark = (0, 0)
        self._seq = 0
        self._numbers = count(len(SPANS))
        self._versions = count()
        self.receipts.seated([stage.signer for stage in self.stages], Mended(0, 0, 0))

    @property
    def expires_s(self) -> int:
        return int(self.now_s) + 86_400

    # -- what the client and its servers do -------------------------------------------------------------------

    def step(self, rows: int, *, want: int = 1, keep: int | None = None) -> None:
        """The next rows, from ``keep`` on: a rollback if that is less than there are. All stages compute them."""
        first = len(self.ids) if keep is None else keep
        if first < len(self.ids):
            self.mark, self._seq = (self.mark[0], self.mark[1] + 1), 0
        del self.ids[first:]
        ids = [(7 * position + next(self._versions)) % 1000 for position in range(first, first + rows)]
        self.ids += ids
        answer = Answer(first + rows, PARAMS) if want else None
        step = Step(*self.mark, self._seq, first, rows, want, ids=True, answer=answer)
        self._seq += 1
        self.receipts.sent(step, [pack_ids(ids)])
        tokens = tuple((token + 1) % 1000 for token in ids[rows - want :])
        self._compute(first, ids, tokens)
        self.receipts.answered(Result(*self.mark, step.seq, first + rows, tokens), b"")

    def _compute(self, first: int, ids: Sequence[int], tokens: Sequence[int]) -> None:
        received = id_hashes(ids)
        for stage in self.stages:
            stage.builder.truncate(first)
            stage.sign(stage.builder.commit(first, self.expires_s), self.mark)
            received = self._run(stage, first, ids, received, tokens, stage.builder.append)

    def _run(self, stage, first, ids, received, tokens, add):  # type: ignore[no-untyped-def]
        """One stage computes rows; the hashes of what it sends."""
        outputs = [digest_rows(1, f"{stage.number} {next(self._versions)}".encode())[0] for _ in ids]
        if stage is self.stages[-1]:
            sent = [NOTHING] * (len(ids) - len(tokens)) + id_hashes(tokens)
        else:
            sent = [row_hash(output, token) for output, token in zip(outputs, ids, strict=True)]
        del stage.sent[first:]
        stage.sent += sent
        add([Leaf(first + i, *row) for i, row in enumerate(zip(received, outputs, sent, strict=True))])
        return sent

    def heal(
        self,
        *places: int,
        logs: bool = True,
        fails: int = 0,
        lacking: Collection[int] = (),
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Newcomers take the stages at ``places``, after so many attempts that came to nothing.

        In those the stages at ``lacking`` have begun to compute again.

        Without ``logs`` nobody can replay, so the client feeds. ``meanwhile`` is done once servers have been told where
        they sign again, in each attempt.
        """
        keep = len(self.ids)
        for place in places:
            self.stages[place] = PaperStage(next(self._numbers), self.stages[place].span, self.now_s)
        for _ in range(fails):
            start = self._fence(keep)
            meanwhile()
            begun = frozenset(self.stages[place].number for place in lacking)
            self.receipts.heal_failed(Mended(self.mark[0], keep, start, begun))
        start = self._fence(keep)
        meanwhile()
        lacks = [place in (*places, *lacking) and keep > 0 for place in range(len(self.stages))]
        plan = replays(lacks, () if logs else range(len(self.stages)))
        again = [place for place, lacking in enumerate(lacks) if lacking or place <= plan.fed]
        numbers = [stage.number for stage in self.stages]
        fed = id_hashes(self.ids) if plan.fed >= 0 else []
        for place in again:
            stage = self.stages[place]
            received = fed if place == 0 else self.stages[place - 1].sent
            self._run(stage, 0, self.ids, received, (), stage.builder.replayed)
        recomputed = frozenset(numbers[place] for place in again)
        mended = Mended(self.mark[0], keep, start, recomputed, fed)
        self.receipts.seated([stage.signer for stage in self.stages], mended)

    def _fence(self, keep: int) -> int:
        """A new generation, of which all servers are told; from which row on windows are signed again."""
        start = self.receipts.whole_rows(keep)
        self.mark, self._seq = (self.mark[0] + 1, 0), 0
        for stage in self.stages:
            stage.builder.truncate(min(stage.builder.length, max(keep, start)))
            stage.builder.resume(start)
        return start

    def settle(self, keep: int | None = None) -> None:
        """The session ends."""
        keep = len(self.ids) if keep is None else keep
        del self.ids[keep:]
        self.receipts.finish(keep)
        for stage in self.stages:
            stage.sign(stage.builder.close(keep, self.expires_s), self.mark)

    # -- what travels -----------------------------------------------------------------------------------------

    def deliver(self, place: int, most: int = 1_000_000) -> None:
        """Receipts of one stage arrive."""
        stage = self.stages[place]
        for _ in range(min(most, len(stage.queue))):
            self.receipts.hear(stage.number, stage.identity.peer_id, stage.queue.popleft())

    def deliver_all(self) -> None:
        for place in range(len(self.stages)):
            self.deliver(place)

    def forged(self, place: int, receipt: Receipt, **fields: object) -> Signed:
        """The receipt as its own signer would have signed it with other ``fields``, those of the opening among them."""
        inner = {name: fields.pop(name) for name in list(fields) if name in Opening.__struct_fields__}
        false = replace(receipt, opening=replace(receipt.opening, **inner), **fields)
        return Signed(*self.mark, pack(sign_receipt(self.stages[place].identity, false)))
