"""``python -m swarm.server``: short for ``python -m swarm server``."""

import sys

from swarm.cli.main import serve

if __name__ == "__main__":
    raise SystemExit(serve(sys.argv[1:]))
