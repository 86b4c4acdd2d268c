"""``python -m swarm.health``: short for ``python -m swarm health``."""

import sys

from swarm.cli.early import hush

if __name__ == "__main__":
    hush()
    from swarm.cli.main import health

    raise SystemExit(health(sys.argv[1:]))
