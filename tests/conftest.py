"""What several test directories share."""

from __future__ import annotations

import pytest

from swarm.models import ModelFiles, resolve


@pytest.fixture(scope="session")
def demo_files() -> ModelFiles:
    """The real demo model; fetched and converted once per machine (``make demo`` does the same)."""
    return resolve("demo")
