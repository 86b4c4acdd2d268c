"""The limit of open files, raised in a process of its own."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import resource
from swarm.runtime.files import raise_open_file_limit
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 256))
print(raise_open_file_limit(128), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
print(raise_open_file_limit(100), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
print(raise_open_file_limit(10**6), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


def test_it_rises_to_what_is_wanted_never_falls_and_never_passes_the_hard_limit() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["128 128", "128 128", "256 256"]
