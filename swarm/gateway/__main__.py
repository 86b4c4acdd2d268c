"""``python -m swarm.gateway``: short for ``python -m swarm gateway``."""

import sys

from swarm.cli.early import hush

if __name__ == "__main__":
    hush()
    from swarm.cli.main import gateway

    raise SystemExit(gateway(sys.argv[1:]))
