"""What a client with a calibration does to check others: proofs that it hears of, and, if asked to, its own traffic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from swarm.client.auditing.accusing import convict
from swarm.client.auditing.auditors import Auditing, delegated
from swarm.client.auditing.budget import Budget
from swarm.client.auditing.material import Feed
from swarm.client.auditing.own_traffic import TrafficAuditor, TrafficParts
from swarm.client.evidence.records import SessionRecord
from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.verification.verdicts.calibration import Calibration
from swarm.verification.verdicts.verdict import thresholds_for

if TYPE_CHECKING:
    from swarm.client.model import AsyncSwarmModel

MB = 1_000_000


def check_proofs(model: AsyncSwarmModel, calibration: Calibration) -> None:
    """From now on ``model``'s jury has fraud proofs computed again, by two servers that cover the accused layers."""
    files, ground = model.parts.files, model.ground
    references = delegated(_auditing(model), lambda: _listings(model), lambda: _distrusted(model), ground.random)
    thresholds = thresholds_for(experts=files.has_experts)

    async def verify(data: bytes) -> object:
        return await convict(data, references, calibration, thresholds, length_matters=files.length_matters)

    model.jury.verify, model.jury.own_weights = verify, False


def audit_traffic(model: AsyncSwarmModel, calibration: Calibration, *, mb_per_h: float) -> TrafficAuditor:
    """From now on ``model``'s own sessions are audited by other servers, which see their rows.

    At most ``mb_per_h`` megabytes an hour travel for it, or a little more. It ends when the model is closed.
    """
    thresholds = thresholds_for(experts=model.parts.files.has_experts)
    parts = TrafficParts(
        auditing=_auditing(model),
        store=model.reputation,
        clock=model.parts.clock,
        calibration=calibration,
        listings=lambda: _listings(model),
        feed=lambda record: _feed(model, record),
        thresholds=thresholds,
        random=model.ground.random,
    )
    auditor = TrafficAuditor(parts, Budget(mb_per_h * MB))
    model.witness.on_settled.append(auditor.settled)
    model.on_close.append(auditor.finish)
    return auditor


def _auditing(model: AsyncSwarmModel) -> Auditing:
    return Auditing(model.parts.files.model_id, model.parts.transport, model.ground.pulse)


async def _listings(model: AsyncSwarmModel) -> list[Listing]:
    return list((await model.ground.view.look()).listings)


def _distrusted(model: AsyncSwarmModel) -> frozenset[PeerId]:
    return model.reputation.ejected() | model.reputation.accused()


async def _feed(model: AsyncSwarmModel, record: SessionRecord) -> Feed:
    """What this client's local head sent for ids: it is made again, and hashes to the same if it is."""
    last = max(record.stages, key=lambda stage: stage.opening.end)
    first = min(record.stages, key=lambda stage: stage.opening.start)
    head = await model.heads.of([first.plan, last.plan])

    async def feed(token_ids: Sequence[int]) -> bytes:
        return b"".join(head.payload(token_ids))

    return feed
