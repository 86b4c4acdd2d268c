"""Whoever listens is told, and one that fails keeps nobody else from hearing."""

from __future__ import annotations

import logging

import pytest

from swarm.client.evidence.records import SessionRecord
from swarm.client.evidence.witness import Witness
from swarm.core.ids import ModelId, PeerId
from swarm.runtime.clock import VirtualClock

RECORD = SessionRecord(
    model=ModelId.parse("tiny@main#0123456789abcdef"),
    layer_count=5,
    session=bytes(16),
    secret=bytes(32),
    token_ids=(1,),
    answers=(),
    params=(),
    codec="raw",
    remote_head=True,
    horizon=1,
    stages=(),
    covered_rows=0,
)


def test_all_hear_though_one_fails(caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("full")

    witness, heard = Witness(VirtualClock()), list[object]()
    witness.on_settled += [fail, heard.append]
    witness.on_asked += [fail, lambda peer, answered: heard.append((peer, answered))]
    with caplog.at_level(logging.ERROR, logger="swarm"):
        witness.settled(RECORD)
        witness.asked(PeerId("somebody"), False)
    assert heard == [RECORD, ("somebody", False)]
    assert len(caplog.records) == 2
