"""Sessions of whole swarms that are to be audited: how they are had, and whom one may ask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from harness import Node, Swarm, until

from swarm.client.auditing.auditors import Auditing, ServerReference, covering
from swarm.client.auditing.own_traffic import neighbours
from swarm.client.evidence.records import SessionRecord, StageRecord
from swarm.client.finding.search import ORDINARY, Wish
from swarm.client.model import AsyncSwarmModel
from swarm.core.numerics import Numerics
from swarm.engine.work import Output
from swarm.verification.challenges.challenge import Table

PROMPT = [int(token) for token in np.random.default_rng(21).integers(4, 250, 70)]
TABLE = Table(tuple(int(token) for token in np.random.default_rng(22).integers(4, 250, 300)))
SEED = bytes(range(100, 132))


def turned(outputs: list[Output]) -> None:
    """Each row answers with the values of its neighbour channel: of the right size, and wrong."""
    for output in outputs:
        if output.hidden:
            rows = np.frombuffer(output.hidden, np.float32).reshape(-1, 32)
            output.hidden = np.roll(rows, 1, axis=1).tobytes()


async def talked(
    swarm: Swarm, prompt: Sequence[int] = PROMPT, *, wish: Wish = ORDINARY, model: AsyncSwarmModel | None = None
) -> tuple[AsyncSwarmModel, SessionRecord]:
    """One answer, and the record of its session once it is settled."""
    model = model or swarm.client()
    records: list[SessionRecord] = []
    model.witness.on_settled.append(records.append)
    session = model.session(max_tokens=120, wish=wish)
    await session.generate(input_ids=list(prompt), max_new_tokens=12, ignore_eos=True)
    await session.close()
    await until(lambda: records)
    model.witness.on_settled.remove(records.append)
    return model, records[0]


def stage_of(record: SessionRecord, node: Node) -> StageRecord:
    return next(stage for stage in record.stages if stage.peer == node.peer)


async def auditors_of(model: AsyncSwarmModel, record: SessionRecord, stage: StageRecord) -> list[ServerReference]:
    listings = await model.parts.directory.servers(record.model)
    numerics = Numerics.parse(stage.opening.numerics)
    found = covering(listings, stage.opening.span, numerics, excluded=neighbours(record, stage))
    auditing = Auditing(record.model, model.parts.transport)
    return [ServerReference(plan, auditing) for plan in found]
