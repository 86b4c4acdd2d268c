"""How others reach a server: observed and relayed addresses come minutes after its start, and may go again."""

from __future__ import annotations

from typing import NoReturn, Protocol

from swarm.cli.output.console import Console
from swarm.core.announcement import Reach
from swarm.core.clock import Clock
from swarm.server.reports.announcer import Announcer
from swarm.transport.addresses import join_peer

LOOK_EVERY_S = 5.0


class Reachable(Protocol):
    """What this room needs of a transport."""

    @property
    def addresses(self) -> tuple[str, ...]: ...

    async def reach(self) -> Reach:
        """Look anew at the addresses, and say what they mean."""
        ...


async def wait_reachable(node: Reachable, announcer: Announcer, console: Console, clock: Clock) -> None:
    """Return once strangers can reach this server; if they cannot yet, say so loudly and look again and again."""
    if announcer.current.reach is not Reach.UNREACHABLE:
        return
    console.warning(
        "NOBODY CAN REACH THIS SERVER YET: looking for a relay, which takes minutes; an open port with --announce, or "
        "--relay, is faster"
    )
    while announcer.current.reach is Reach.UNREACHABLE:
        await clock.sleep(LOOK_EVERY_S)
        await _look(node, announcer, console)


async def follow(node: Reachable, announcer: Announcer, console: Console, clock: Clock) -> NoReturn:
    """Let each announcement say how this server is reached at that time. Until cancelled, or ``node`` fails."""
    while True:
        await clock.sleep(LOOK_EVERY_S)
        await _look(node, announcer, console)


async def _look(node: Reachable, announcer: Announcer, console: Console) -> None:
    reach = await node.reach()
    if announcer.locate(reach, node.addresses):
        current = announcer.current
        joins = [join_peer(address, current.peer_id) for address in current.addresses]
        console.event(
            "reach", f"Now {reach.value}, at {joins[0] if joins else 'no address'}", reach=reach.value, addresses=joins
        )
