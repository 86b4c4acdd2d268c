"""``python -m swarm.server``: short for ``python -m swarm server``."""

import sys

from swarm.cli.early import hush

if __name__ == "__main__":
    hush()
    from swarm.cli.main import serve

    raise SystemExit(serve(sys.argv[1:]))
