"""``python -m swarm COMMAND``."""

from swarm.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
