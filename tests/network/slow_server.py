"""Run by ``test_live_routing``: ``python -m swarm.server`` whose forwards take longer, by as much as a file says.

Usage: ``slow_server.py DELAY_FILE [arguments of swarm.server]``; the file holds seconds and is read at every forward.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from swarm.cli.main import serve
from swarm.engine.executor import SpanEngine


def main(delay_file: str, *arguments: str) -> int:
    run = SpanEngine.run

    def slow_run(engine: SpanEngine, batch: Any) -> Any:
        time.sleep(float(Path(delay_file).read_text()))
        return run(engine, batch)

    SpanEngine.run = slow_run  # type: ignore[method-assign]
    return serve(list(arguments))


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
