"""``python -m benchmarks.cheaters KIND [arguments of swarm.server]``: a server process that cheats in one way."""

from __future__ import annotations

import sys

from swarm.cli.early import hush


def main(arguments: list[str]) -> int:
    """Run the server until it ends; its exit code. Without a kind: what there is to choose from."""
    from benchmarks.cheaters.catalogue import find, kinds
    from benchmarks.cheaters.cheat import installed
    from swarm.cli.main import serve

    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        for name, summary in kinds().items():
            print(f"  {name:18} {summary}")
        return 0 if arguments else 2
    with installed(find(arguments[0])):
        return serve(arguments[1:])


if __name__ == "__main__":
    hush()
    raise SystemExit(main(sys.argv[1:]))
