"""One audit of one stage: what its server kept, computed again, judged window by window."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from swarm.client.auditing.material import Material
from swarm.client.auditing.reference import Reference
from swarm.client.records import SessionRecord, StageRecord
from swarm.core.ids import PeerId
from swarm.transport.protocol import Transport
from swarm.verification.audits import AuditPlan
from swarm.verification.calibration import Calibration
from swarm.verification.verdict import DENSE, Outcome, Thresholds
from swarm.verification.whitening import Comparison

Feed = Callable[[Sequence[int]], Awaitable[bytes]]
"""Token ids → the rows that a client with a local head sends for them, as the wire has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditMeans:
    """What an audit works with. ``calibration`` is the model's; ``thresholds`` those of its spans.

    ``feed`` is needed where the client keeps embeddings and head itself.
    """

    transport: Transport
    calibration: Calibration
    thresholds: Thresholds = DENSE
    feed: Feed | None = None


@dataclass(frozen=True, slots=True)
class TokenTally:
    """How the answers of one window look, given the rows that the tail's head read."""

    passed: int = 0
    soft: int = 0
    hard: int = 0
    uncounted: int = 0


@dataclass(frozen=True, slots=True)
class AuditedWindow:
    """Window number ``window``: how its rows compare, and what that and its tokens mean.

    ``sketches`` is False if the sketches in its leaves are not those of its rows; None if it has none.
    """

    window: int
    found: Comparison
    rows: Outcome
    tokens: TokenTally
    sketches: bool | None

    @property
    def outcome(self) -> Outcome:
        """Hard if the rows or any token are."""
        return Outcome.HARD if self.tokens.hard else self.rows


FailureKind = Literal["refused", "contradiction", "unreachable", "no inputs", "no reference"]


@dataclass(frozen=True, slots=True)
class AuditFailure:
    """Why a stage could not be judged.

    ``refused``: ``peer``, the suspect, does not show what it kept, or what it shows is not what it signed.
    ``contradiction``: its own leaves do not fit its own receipt. ``unreachable``: it was not there, or busy.
    ``no inputs``: ``peer``, which fed the suspect, does not show what it sent, or not what the suspect received; no
    fault of the suspect's. ``no reference``: nobody computed it again.
    """

    kind: FailureKind
    peer: PeerId
    what: str


@dataclass(frozen=True, slots=True)
class StageAudit:
    """What an audit of one stage came to.

    ``plan`` is None if the lottery drew no window: then nothing was asked. ``windows`` are those judged, in order,
    empty if ``failure`` says why. ``reference`` is ``strikes.TRUSTED`` or an auditor's peer id, ``ceiling`` what an
    honest server's e may reach against it (``window_audited`` takes both). ``attested``: the rows before the judged
    ones are those that the suspect signed for; if not, a hard failure blames nobody. ``fetched_bytes`` came over the
    network.
    """

    stage: StageRecord
    plan: AuditPlan | None
    windows: tuple[AuditedWindow, ...] = ()
    failure: AuditFailure | None = None
    reference: str = ""
    ceiling: float | None = None
    attested: bool = True
    material: Material | None = None
    fetched_bytes: int = 0

    @property
    def hard(self) -> tuple[AuditedWindow, ...]:
        """The windows that failed."""
        return tuple(window for window in self.windows if window.outcome is Outcome.HARD)


async def audit_stage(
    record: SessionRecord, stage: StageRecord, reference: Reference, means: AuditMeans, *, rate: float = 1.0
) -> StageAudit:
    """Audit ``stage`` of a closed session at ``rate`` q: ``gather`` what was kept, ``judge`` it by ``reference``.

    Reveals the session's secret to the suspect and to who fed it. Whatever others do ends up in ``failure``; raises
    ``MisuseError`` only for a reference of another quantization than the suspect declares, or other misuse.
    """
    raise NotImplementedError


async def judge(material: Material, plan: AuditPlan, reference: Reference, means: AuditMeans) -> StageAudit:
    """The second half: what was gathered, judged by one more reference. Nothing is fetched."""
    raise NotImplementedError
