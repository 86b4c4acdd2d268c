"""``python -m swarm COMMAND``, and ``swarm COMMAND`` where the package is installed."""

import sys

from swarm.cli.early import hush


def main() -> int:
    """Run the command that was typed; returns its exit code."""
    hush()
    from swarm.cli.main import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    raise SystemExit(main())
