"""``python -m swarm COMMAND``, and ``swarm COMMAND`` where the package is installed."""

import sys

from swarm.cli.early import hush


def main() -> int:
    """Run the command that was typed; returns its exit code. A server's process ends here."""
    hush()
    from swarm.cli.apart import leave_process
    from swarm.cli.main import main as run

    code = run(sys.argv[1:])
    if sys.argv[1:2] == ["server"]:
        leave_process(code)
    return code


if __name__ == "__main__":
    raise SystemExit(main())
