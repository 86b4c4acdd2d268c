"""What a client knows of a session once it is settled: enough to audit it, credit it, and to accuse nobody wrongly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swarm.client.plan import StagePlan
from swarm.core.ids import ModelId, PeerId
from swarm.core.sampling import SamplingParams
from swarm.verification.signed.receipts import Opening, SignedReceipt
from swarm.wire.fields import Codec

ProblemKind = Literal["equivocation", "lie", "broken link", "missing", "unwilling"]


@dataclass(frozen=True, slots=True)
class ReceiptProblem:
    """Something that is wrong with the receipts of a session.

    ``equivocation``: two receipts with one counter; ``proof`` is an ``EquivocationProof`` for anybody. ``lie``: a
    receipt that no honest server sends (its signature, its place in the chain, its rows, its layers); it shows nothing
    to others. ``broken link``: what one of the two ``peers`` says it sent is not what the other received, the client
    may be one of them; neither is to blame. ``missing``: a receipt that never came, from whoever was there to sign.
    ``unwilling``: a server that said at the opening that it signs nothing.
    """

    kind: ProblemKind
    peers: tuple[PeerId, ...]
    what: str
    proof: bytes = b""


@dataclass(frozen=True, slots=True)
class StageRecord:
    """One stage of a session and its receipts that count, by window.

    ``upstream`` is the number of the stage that fed it last, None for the client. From row ``judged_from`` on it holds
    what it signed for: 0, unless a heal fed it again rows that it had signed before. From row ``linked_from`` on
    ``upstream`` holds what came to it: 0, unless a heal came between.
    """

    opening: Opening
    plan: StagePlan
    receipts: tuple[SignedReceipt, ...]
    upstream: int | None
    judged_from: int = 0
    linked_from: int = 0

    @property
    def peer(self) -> PeerId:
        return PeerId(self.opening.signer)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A closed session of one client, with its receipts as they ended.

    ``secret`` is what ``Opening.commitment`` commits to: whoever sees it knows which windows are audited.
    ``token_ids`` are all accepted rows; ``answers`` are ``(position of a row, token chosen after it)``, ``params`` from
    which answer start on which parameters chose. ``horizon`` is the length of the text that the rows were computed as
    part of. ``stages`` are those that answered at the end, in the order of their layers, and after them earlier ones
    that hold receipts that count. Of the first ``covered_rows`` every layer is answered for, in full windows and
    perhaps one last shorter one, and every link that could be compared holds.
    """

    model: ModelId
    layer_count: int
    session: bytes
    secret: bytes
    token_ids: tuple[int, ...]
    answers: tuple[tuple[int, int], ...]
    params: tuple[tuple[int, SamplingParams], ...]
    codec: Codec
    remote_head: bool
    horizon: int
    stages: tuple[StageRecord, ...]
    covered_rows: int
    problems: tuple[ReceiptProblem, ...] = ()

    def stage(self, number: int) -> StageRecord | None:
        """The stage of that number, if it is in here."""
        return next((stage for stage in self.stages if stage.opening.stage == number), None)


@dataclass(frozen=True, slots=True)
class Verification:
    """What receipts show of an answer when it ends; the last window's may still be on their way.

    For the first ``rows`` rows of the session, ``windows`` windows of positions, every layer is answered for by one of
    ``signers``, and no two of them contradict each other. That says who answered, never that it was computed right.
    """

    windows: int
    rows: int
    signers: tuple[PeerId, ...]
    problems: tuple[ReceiptProblem, ...] = ()


NOTHING_SIGNED = Verification(0, 0, ())
