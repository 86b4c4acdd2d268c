"""``python -m swarm.server``: short for ``python -m swarm server``."""

import sys

from swarm.cli.early import hush

if __name__ == "__main__":
    hush()
    from swarm.cli.apart import leave_process
    from swarm.cli.main import serve

    leave_process(serve(sys.argv[1:]))
