"""A store of reputations of its own for a test, and a change that may be made in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from swarm.core.ids import PeerId
from swarm.runtime.clock import VirtualClock
from swarm.runtime.reputation import ReputationStore
from swarm.verification.standings.strikes import Standing, traffic_asked

ALICE, BOB = PeerId("12D3KooWAlice"), PeerId("12D3KooWBob")


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def store(tmp_path: Path, clock: VirtualClock) -> Iterator[ReputationStore]:
    with ReputationStore(tmp_path / "deep" / "reputation.sqlite", clock) as opened:
        yield opened


def asked(standing: Standing) -> Standing:
    return traffic_asked(standing, answered=True)
