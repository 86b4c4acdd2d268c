"""``python -m swarm COMMAND``."""

from swarm.cli.early import hush

if __name__ == "__main__":
    hush()
    from swarm.cli.main import main

    raise SystemExit(main())
