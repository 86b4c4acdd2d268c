"""``swarm status``: who serves which layers of a swarm, how fast, and what is missing."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm.cli.joining import add_joining, check_joining
from swarm.cli.node import asking_node
from swarm.cli.output.status_view import models_json, models_text, status_json, status_text
from swarm.client.finding.snapshot import Snapshot, layer_count_of
from swarm.core.clock import Clock
from swarm.core.errors import CapacityError, ConfigError
from swarm.core.ids import ModelId
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.core.text import clip
from swarm.dht.protocol import Directory
from swarm.health.picture.advice import contacts
from swarm.models.resolve import resolve
from swarm.scheduling.cluster_file import write_cluster
from swarm.scheduling.coverage import usable
from swarm.transport.pinger import Pinger
from swarm.transport.protocol import Transport

PING_S = 2.0
"""So long the round trips from here may take, all together."""
MAX_PINGED = 32
MAX_IDS_CHARS = 1000

EXAMPLES = """\
examples:
  python -m swarm status --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...
  python -m swarm status --initial-peers ... --model demo --json
  python -m swarm status --initial-peers ... --save swarm.json     then: python -m swarm plan --cluster swarm.json

A server that was not heard of lately is listed and not used. "a layer" is its time for one layer of a decode step at
its present load, "fixed" what a step costs it besides, "nearest" the closest server it measured, "from here" the round
trip to this machine. Everything a server says of itself is its own word.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Show who serves which layers of a swarm, how fast, and what is missing."
    parser.epilog = EXAMPLES
    add_joining(parser)
    parser.add_argument(
        "--model", help="demo, a folder, a Hugging Face id, or a model's name as the swarm lists it "
        "(default: the one there is; of several, the list is shown)",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--save", type=Path, metavar="FILE", help="write it as a cluster file for `route` and `plan`")
    parser.add_argument("--identity", type=Path, help="key file of this client (default: a new key each time)")
    parser.add_argument("--host", default="0.0.0.0", metavar="IP", help="address to listen on (default: all)")


def run(options: argparse.Namespace) -> int:
    check_joining(options)
    entries, snapshot, peers = asyncio.run(_look(options))
    if snapshot is None:
        print(models_json(entries) if options.json else models_text(entries))
        return 0
    if options.save is not None:
        _save(options.save, snapshot)
    print(status_json(snapshot, entries) if options.json else status_text(snapshot, contacts(peers, ())))
    return 0


def _save(path: Path, snapshot: Snapshot) -> None:
    try:
        path.write_bytes(write_cluster(snapshot.cluster))
    except OSError as error:
        hint = "choose another file"
        raise ConfigError(f"--save: cannot write {str(path)!r}: {error.strerror}", hint=hint) from error


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which model: its id in the swarm, and what its files say if they are at hand."""

    model: ModelId
    entry: ModelEntry | None = None
    layers: int | None = None
    hidden_size: int | None = None


async def _look(options: argparse.Namespace) -> tuple[list[ModelEntry], Snapshot | None, Sequence[str]]:
    async with asking_node(options, host=options.host) as node:
        return *await look(node.directory, node.transport, node.clock, options.model), node.peers


async def look(
    directory: Directory, transport: Transport, clock: Clock, model: str | None
) -> tuple[list[ModelEntry], Snapshot | None]:
    """The model index and one model's servers; None where no model was named and the index has not exactly one.

    Raises ``NetworkError`` if the directory does not answer, and what ``resolve`` does for a name nobody lists.
    """
    entries = await directory.models()
    wanted = await _choose(model, entries)
    if wanted is None:
        return entries, None
    listings = await directory.servers(wanted.model)
    snapshot = Snapshot(
        model=str(wanted.model),
        layers=wanted.layers or layer_count_of(listings, wanted.entry),
        listings=listings,
        client_rtt_s=await _round_trips(listings, transport, clock),
        hidden_size=wanted.hidden_size or (wanted.entry and wanted.entry.hidden_size) or None,
    )
    if not snapshot.layers:
        raise CapacityError(
            f"nobody serves {wanted.model}", hint="without --model, the models of this swarm are listed"
        )
    return entries, snapshot


async def _choose(name: str | None, entries: Sequence[ModelEntry]) -> Wanted | None:
    listed = {entry.model: entry for entry in entries}
    if name is None:
        return Wanted(ModelId.parse(entries[0].model), entries[0]) if len(listed) == 1 else None
    fitting = [entry for entry in listed.values() if name in (entry.model, ModelId.parse(entry.model).name)]
    if len(fitting) > 1:
        ids = clip(", ".join(entry.model for entry in fitting), MAX_IDS_CHARS)
        raise ConfigError(f"--model {name!r} may be {ids}", hint="give the whole id")
    if fitting:
        return Wanted(ModelId.parse(fitting[0].model), fitting[0])
    files = await asyncio.to_thread(resolve, name)
    model = files.model_id
    return Wanted(model, listed.get(str(model)), files.layer_count, files.hidden_size)


async def _round_trips(listings: Sequence[Listing], transport: Transport, clock: Clock) -> dict[str, float]:
    """From here to the servers that sessions can use, as many as answer in time."""
    pinger = Pinger(transport, clock)
    peers = [one for one in listings if usable(one)][:MAX_PINGED]
    tasks = {
        one.peer: asyncio.create_task(pinger.rtt_s(one.peer, one.announcement.addresses), name=f"ping {one.peer[-8:]}")
        for one in peers
    }
    if not tasks:
        return {}
    _, late = await asyncio.wait(tasks.values(), timeout=PING_S)
    for task in late:
        task.cancel()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    answered = {peer: task.result() for peer, task in tasks.items() if task not in late}
    return {peer: rtt_s for peer, rtt_s in answered.items() if rtt_s is not None}
