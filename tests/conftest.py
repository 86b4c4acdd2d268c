"""What several test directories share."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from swarm.models import ModelFiles, resolve

os.environ["SWARM_CONFIG"] = os.devnull  # not the options of the person who runs these tests
sys.path.insert(0, str(Path(__file__).parent))  # test folders are no packages: helpers for all of them lie here

# The same examples on every run and no wall-clock limit per example: a slow machine must not fail a law.
settings.register_profile("swarm", derandomize=True, deadline=None, database=None, max_examples=100)
settings.register_profile("long", deadline=None, max_examples=5000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "swarm"))


@pytest.fixture(scope="session")
def demo_files() -> ModelFiles:
    """The real demo model; fetched and converted once per machine (``make demo`` does the same)."""
    return resolve("demo")
