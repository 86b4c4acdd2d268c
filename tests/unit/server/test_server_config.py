"""Bounds that must fit each other."""

from swarm.core.limits import MAX_STEP_ROWS
from swarm.server.config import ServerConfig


def test_no_single_step_is_longer_than_a_forward() -> None:
    assert ServerConfig().batch_tokens >= MAX_STEP_ROWS
