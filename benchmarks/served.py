"""``python -m benchmarks.served KIND ARGUMENTS``: ``swarm.server``, or a cheater's, that says its exit code at the end.

``KIND`` is empty for a server that does not cheat.
"""

from __future__ import annotations

import json
import os
import sys
import traceback

from benchmarks.cheaters.__main__ import main as cheat
from benchmarks.nursery import EXIT_EVENT
from swarm.cli.main import serve

_CRASHED = 70


def main(kind: str, *arguments: str) -> int:
    """Run it until it ends."""
    return cheat([kind, *arguments]) if kind else serve(arguments)


if __name__ == "__main__":
    code = _CRASHED
    try:
        code = main(*sys.argv[1:])
        print(json.dumps({"event": EXIT_EVENT, "code": code}), flush=True)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)
