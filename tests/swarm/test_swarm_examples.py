"""The one-process example runs as a user would run it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import swarm

ROOT = Path(swarm.__file__).parents[1]


def test_one_process_swarm() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", str(ROOT / "examples" / "one_process_swarm.py")],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "gives the same tokens" in done.stdout
    assert len(re.search(r"answer +(.+)", done.stdout).group(1).split()) == 16  # type: ignore[union-attr]
    assert done.stdout.count("[") == 3, "three servers"
