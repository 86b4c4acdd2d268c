"""A page's rounds, one at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from reading_desk import Shelf
from sights import MODEL, NOW_S, PEERS, server

from swarm.health.state import ModelState
from swarm.health.watching.looks import Looks
from swarm.health.watching.votes import Agreed
from swarm.health.watching.watch import Watch, WatchOptions, WatchParts
from swarm.runtime.clock import VirtualClock


async def test_a_state_has_no_servers_of_another_reading_than_its_layers() -> None:
    """The directory may be read while a state is built, which takes a thread and long."""
    transport: Any = SimpleNamespace(peer_id=PEERS[-1])
    directory: Any = Shelf()
    watch = Watch(WatchParts(transport, directory, VirtualClock(wall_s=NOW_S)), WatchOptions(models=(MODEL,)))
    known, build = watch._reading.models[MODEL], watch._looker.look
    honest, late = [server(number, 0, 6) for number in range(3)], server(3, 0, 7, 7)
    known.told_layers, known.servers = Agreed(6), {one.peer: one for one in honest}

    def read_meanwhile(looks: Looks) -> list[ModelState]:
        known.servers, known.read_at, known.rows = {late.peer: late}, NOW_S + 100.0, Agreed(9999)
        return build(looks)

    watch._looker.look = read_meanwhile  # type: ignore[method-assign]
    try:
        await watch._build()
    finally:
        await watch._standings.close()
        await watch._asker.close()
    [model] = watch.state().models
    assert model.layers == 6
    assert {one.peer for one in model.servers} == {one.peer for one in honest}
