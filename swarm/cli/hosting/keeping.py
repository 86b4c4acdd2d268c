"""What a serving process keeps beside its server."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from swarm.cli.hosting.limits import limits_text
from swarm.cli.hosting.rest import Rest
from swarm.cli.hosting.serving_line import ServingLine
from swarm.cli.hosting.tally import Tally
from swarm.cli.output.console import Console
from swarm.server.service import Server


@dataclass(frozen=True, slots=True)
class Keeping:
    """When it rests, what it has done, and how things are."""

    rest: Rest
    tally: Tally
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once READY was said."""

    def work(self, server: Server, console: Console, options: argparse.Namespace) -> list[Coroutine[Any, Any, Any]]:
        """What runs until it is cancelled."""
        rest = self.rest
        work: list[Coroutine[Any, Any, Any]] = [rest.run(server), self.tally.run(lambda: not rest.resting)]
        if not options.quiet:
            work.append(ServingLine(server, console, lambda: rest.resting, limits_text(options)).run())
        return work
