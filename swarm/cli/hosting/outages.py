"""What a server's owner hears of an outage, and what the swarm hears of the server when it is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, Protocol

from swarm.cli.output.console import Console


class Standing(Protocol):
    """What this room needs of a directory's node."""

    async def wait_cut_off(self) -> None:
        """Return once nobody of the swarm answers any more."""
        ...

    async def wait_back(self) -> float:
        """Return once somebody does; after how many seconds."""
        ...


async def follow_outages(node: Standing, console: Console, back: Callable[[], None]) -> NoReturn:
    """Tell of each outage as it begins and ends, and call ``back`` when one is over. Until cancelled."""
    while True:
        await node.wait_cut_off()
        console.event(
            "cut_off",
            "CUT OFF: nobody else of the swarm answers. This machine's network is down, or all others have gone. "
            "Trying again until somebody does.",
        )
        seconds = await node.wait_back()
        back()
        console.event("back", f"BACK in the swarm after {seconds:.0f} s; announced again.", seconds=seconds)
