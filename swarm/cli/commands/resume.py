"""``swarm resume``: have a paused server go on."""

from __future__ import annotations

import argparse

from swarm.cli.hosting.control import add_control, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Have a paused server of this machine serve again."
    add_control(parser)


def run(options: argparse.Namespace) -> int:
    return tell(options, resume=True)
