"""``swarm pause``: have a server of this machine rest."""

from __future__ import annotations

import argparse

from swarm.cli.hosting.control import add_control, tell


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Have a server of this machine rest until it is resumed."
    add_control(parser)


def run(options: argparse.Namespace) -> int:
    return tell(options, resume=False)
