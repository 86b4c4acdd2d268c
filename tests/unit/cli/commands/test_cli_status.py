"""``swarm status``: what is read from a directory, and how it is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.cli.commands import status
from swarm.cli.commands.status import look
from swarm.cli.output.status_view import (
    MAX_ROWS,
    coverage_text,
    holes_text,
    models_json,
    models_text,
    status_json,
    status_text,
)
from swarm.client.finding.snapshot import Snapshot, layer_count_of
from swarm.core.announcement import Announcement, Intent, Reach, State
from swarm.core.errors import ConfigError, ModelError, NetworkError, PeerUnreachableError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.model_entry import ModelEntry
from swarm.core.numerics import Numerics
from swarm.core.records import AnyRecord, sign_record
from swarm.core.spans import Span
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.runtime.clock import VirtualClock
from swarm.scheduling.cluster_file import read_cluster, write_cluster
from swarm.transport.protocol import Stream

MODEL = "demo@main#0123456789abcdef"
OTHER = "demo@next#0123456789abcdef"
IDENTITIES = [Identity(bytes([index]) * 32) for index in range(1, 5)]
ANNA, BERT, CARL, DORA = (identity.peer_id for identity in IDENTITIES)


def announced(peer: str, start: int, end: int, **changes: Any) -> Announcement:
    fields: dict[str, Any] = {
        "model": MODEL, "layer_count": 30, "head": end == 30, "embeddings": start == 0, "kv_tokens": 4096,
        "numerics": Numerics("float32"), "instance": 1, "sequence": 1, "started_s": 0.0, "expires_s": 60.0,
        "power_layers_per_s": 100.0, "capacity_layers": 12,
    }  # fmt: skip
    return Announcement(peer=peer, start=start, end=end, **(fields | changes))


def measured(peer: str, **changes: Any) -> Metrics:
    fields: dict[str, Any] = {"model": MODEL, "instance": 1, "sequence": 1, "expires_s": 10.0}
    figures: dict[str, Any] = {"tau_s": 0.002, "fixed_s": 0.001, "kv_free_tokens": 3000, "uplink_mbps": 80.0}
    return Metrics(peer=peer, **(fields | figures | changes))


def listed(peer: str, start: int, end: int, *, live: bool = True, **changes: Any) -> Listing:
    return Listing(announced(peer, start, end, **changes), b"", measured(peer) if live else None)


THREE = (listed(ANNA, 0, 10, public_name="anna"), listed(BERT, 10, 20), listed(CARL, 20, 30))


def snapshot(listings: Sequence[Listing] = THREE, **changes: Any) -> Snapshot:
    fields: dict[str, Any] = {"model": MODEL, "layers": 30, "listings": listings, "hidden_size": 576}
    return Snapshot(**(fields | changes))


def test_a_whole_swarm_is_shown_with_its_chain() -> None:
    metrics = measured(ANNA, sessions=2, queued_steps=1, rtt_s={BERT: 0.03, CARL: 0.01})
    listings = [THREE[2], THREE[1], Listing(THREE[0].announcement, b"", metrics)]
    view = snapshot(listings, client_rtt_s={ANNA: 0.004})
    lines = status_text(view).splitlines()
    assert lines[0] == f"{MODEL}: 30 layers, 3 servers"
    assert lines[2].split("  ")[1] == "server"
    anna, bert, carl = lines[3:6]
    figures = f"2.00 ms 1.00 ms 4.00 ms {CARL[-8:]} 10.00 ms 2 +1 3000 80.0 Mbit/s"
    assert anna.split() == [ANNA[-8:], "anna", "0:10", "online", "direct", "float32", *figures.split()]
    assert bert.split()[:3] == [BERT[-8:], "-", "10:20"]
    assert carl.split()[:3] == [CARL[-8:], "-", "20:30"]
    assert lines[7:10] == ["coverage by servers that sessions can use:", "  layers  servers", "    0:30        1"]
    assert "nobody" not in "\n".join(lines)
    assert f"{ANNA[-8:]} [0:10] -> {BERT[-8:]} [10:20] -> {CARL[-8:]} [20:30]" in "\n".join(lines)
    found = json.loads(status_json(view, []))
    assert [stage["id"] for stage in found["chain"]] == [ANNA, BERT, CARL]
    assert found["coverage"] == [1] * 30
    least_s, most_s = found["latency_range_s"]
    assert 3 * 0.001 + 30 * 0.002 < least_s < found["latency_s"] < most_s
    assert found["activation_bytes"] == 576 * 4
    page = (Path(__file__).parents[4] / "docs" / "cluster-format.md").read_text()
    assert [key for key in found if f"`{key}`" not in page] == []
    first = found["servers"][0]
    assert (first["id"], first["span"], first["tau_s"], first["sessions"]) == (ANNA, [0, 10], 0.002, 2)
    assert first["nearest"] == {"id": CARL, "rtt_s": 0.01}
    assert first["client_rtt_s"] == 0.004


def test_who_cannot_be_used_is_shown_and_not_counted() -> None:
    listings = [
        *THREE[:2],
        listed(CARL, 20, 30, live=False),
        listed(DORA, 20, 30, state=State.DRAINING, intent=Intent(0, 10, 5.0)),
        listed("x" * 8, 20, 30, reach=Reach.UNREACHABLE),
        listed("otherone", 0, 10, layer_count=12),
    ]
    view = snapshot(listings)
    text = status_text(view)
    assert f"{MODEL}: 30 layers, 5 servers, 1 of them not heard of lately" in text
    [carl] = [line for line in text.splitlines() if CARL[-8:] in line]
    assert "not heard of lately" in carl
    [dora] = [line for line in text.splitlines() if DORA[-8:] in line]
    assert "draining, to 0:10" in dora
    assert "otherone" not in text
    assert view.holes == [Span(20, 30)]
    assert "nobody" not in text
    assert "\nlayers 20 to 29 are held only by servers that cannot be used now; start one:\n" in text
    assert "no chain: layers 20 to 29 are held, but only by servers that" in text
    found = json.loads(status_json(view, []))
    assert found["holes"] == [[20, 30]]
    assert (found["chain"], found["latency_s"]) == ([], None)
    assert "layers 20 to 29" in found["reason"]
    assert {server["id"]: server["live"] for server in found["servers"]}[CARL] is False
    assert {server["id"]: server["tau_s"] for server in found["servers"]}[CARL] is None


def test_the_command_that_fills_a_hole_can_be_copied() -> None:
    address = f"/ip4/192.0.2.1/tcp/31337/p2p/{ANNA}"
    mixed = [THREE[0], listed(CARL, 20, 30, live=False)]
    paragraph = status_text(snapshot(mixed), [address]).split("\n\n")[2].splitlines()
    missing = "nobody holds layers 10 to 19; layers 20 to 29 are held only by servers that cannot be used now"
    command = f"python -m swarm.server --model demo@main --initial-peers {address} --blocks 10:20"
    assert paragraph[-2:] == [f"{missing}; start one:", f"  {command}"]
    assert "..." not in status_text(snapshot(mixed), [address])
    hub = snapshot(mixed, model="owner/it@rev#0123456789abcdef")
    assert f"--model owner/it@rev --initial-peers {address}" in status_text(hub, [address])


def test_a_model_that_nobody_serves_is_one_hole() -> None:
    text = status_text(snapshot([]))
    assert "30 layers, 0 servers" in text
    assert "    0:30        0" in text
    assert "no chain: no server holds layers 0 to 29" in text


def test_coverage_names_stretches_and_holes() -> None:
    text = coverage_text([2, 2, 1, 0, 0, 1, 0])
    rows = [line.split() for line in text.splitlines()[2:]]
    assert rows == [["0:2", "2"], ["2:3", "1"], ["3:5", "0"], ["5:6", "1"], ["6:7", "0"]]
    assert holes_text([Span(3, 5), Span(6, 7)], []) == "nobody holds layers 3 to 4 and 6"
    assert holes_text([], [Span(6, 7)]) == "layer 6 is held only by servers that cannot be used now"


@given(st.text(max_size=80), st.text(max_size=80))
def test_what_strangers_write_stays_in_its_cell(name: str, region: str) -> None:
    hostile = listed(ANNA, 0, 30, public_name=name, region=region)
    text = status_text(snapshot([hostile]))
    assert text.replace("\n", "").isprintable()
    assert len(text.splitlines()) == len(status_text(snapshot([listed(ANNA, 0, 30)])).splitlines())
    assert json.loads(status_json(snapshot([hostile]), []))["servers"][0]["public_name"] == name


def test_of_very_many_servers_a_person_sees_the_first() -> None:
    many = [listed(f"peer{index:04}", 0, 30) for index in range(MAX_ROWS + 7)]
    text = status_text(snapshot(many))
    assert "  and 7 more; --json has them all" in text
    assert f"    0:30      {MAX_ROWS + 7}" in text
    assert len(json.loads(status_json(snapshot(many), []))["servers"]) == MAX_ROWS + 7


def test_what_is_saved_answers_what_if_questions() -> None:
    metrics = measured(ANNA, rtt_s={BERT: 0.03, "stranger": 0.01}, uplink_mbps=1e-15)
    listings = [Listing(announced(ANNA, 0, 10, power_layers_per_s=0.0), b"", metrics), *THREE[1:]]
    view = snapshot(listings, client_rtt_s={ANNA: 0.004, "gone": 0.1})
    cluster = read_cluster(write_cluster(view.cluster))
    assert [node.span for node in cluster.nodes] == [Span(0, 10), Span(10, 20), Span(20, 30)]
    assert cluster.client_rtt_s == {ANNA: 0.004}
    assert cluster.rtt_s[ANNA] == {BERT: 0.03}
    assert cluster.activation_bytes == 576 * 4


def test_the_layer_count_is_what_most_say() -> None:
    odd = listed(DORA, 0, 5, layer_count=99)
    entry = ModelEntry(model=MODEL, layer_count=7, peer=ANNA, instance=1, sequence=1, expires_s=60.0)
    assert layer_count_of([odd, *THREE], entry) == 30
    assert layer_count_of([], entry) == 7
    assert layer_count_of([], None) == 0


class Deaf:
    """A transport on which nobody answers: dials fail, or never end."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.hangs = hangs
        self.dialled: list[str] = []

    async def dial(self, peer: PeerId, *rest: Any, **options: Any) -> Stream:
        self.dialled.append(peer)
        if self.hangs:
            await asyncio.Event().wait()
        raise PeerUnreachableError("not there")


class World:
    """A directory with some records in it, and a client before it."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryDirectoryStore(self.clock)
        self.directory = MemoryDirectory(self.store)
        self.transport: Any = Deaf()

    async def publish(self, index: int, kind: Callable[..., AnyRecord], *arguments: Any, **changes: Any) -> None:
        now_s = self.clock.wall_s()
        identity = IDENTITIES[index]
        record = kind(identity.peer_id, *arguments, expires_s=now_s + 9, **changes)
        await self.directory.publish(sign_record(identity, record), record)

    async def look(self, model: str | None = None) -> tuple[list[ModelEntry], Snapshot | None]:
        return await look(self.directory, self.transport, self.clock, model)


def indexed(peer: str, **changes: Any) -> ModelEntry:
    fields: dict[str, Any] = {"model": MODEL, "layer_count": 30, "instance": 1, "sequence": 1}
    return ModelEntry(peer=peer, **(fields | changes))


async def test_the_one_model_of_a_swarm_needs_no_name() -> None:
    world = World()
    await world.publish(0, indexed)
    await world.publish(0, announced, 0, 10)
    await world.publish(0, measured)
    await world.publish(1, announced, 10, 30)
    for name in (None, "demo", MODEL):
        entries, view = await world.look(name)
        assert [entry.model for entry in entries] == [MODEL]
        assert view is not None
        assert (view.model, view.layers, view.hidden_size) == (MODEL, 30, None)
        assert [one.peer for one in view.shown] == [ANNA, BERT]
        assert view.client_rtt_s == {}
        assert view.holes == [Span(10, 30)]
    assert set(world.transport.dialled) == {ANNA}  # who is not heard of is not waited for


async def test_of_several_models_one_must_be_named() -> None:
    world = World()
    await world.publish(0, indexed)
    await world.publish(1, indexed, model=OTHER)
    entries, view = await world.look()
    assert view is None
    assert [entry.model for entry in entries] == [MODEL, OTHER]
    assert OTHER in models_text(entries)
    assert json.loads(models_json(entries))["models"] == [
        {"model": MODEL, "layers": 30},
        {"model": OTHER, "layers": 30},
    ]
    with pytest.raises(ConfigError, match="may be demo@main"):
        await world.look("demo")
    _, view = await world.look(OTHER)
    assert view is not None
    assert view.counts == [0] * 30


async def test_a_swarm_without_an_index_says_so() -> None:
    world = World()
    entries, view = await world.look()
    assert (entries, view) == ([], None)
    assert "name the model you mean" in models_text(entries)
    with pytest.raises(ModelError, match="not-there"):
        await world.look("./not-there")


async def test_a_directory_that_does_not_answer_is_an_error() -> None:
    world = World()
    world.store.down = True
    with pytest.raises(NetworkError):
        await world.look()


async def test_servers_that_keep_a_ping_waiting_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "PING_S", 0.0)
    world = World()
    world.transport = Deaf(hangs=True)
    await world.publish(0, indexed)
    await world.publish(0, announced, 0, 30)
    await world.publish(0, measured)
    _, view = await world.look()
    assert view is not None
    assert view.client_rtt_s == {}
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_wrong_address_is_told_before_anything_is_joined(said: Callable[..., Any]) -> None:
    code, out, err = said("status", "--initial-peers", "127.0.0.1:4000")
    assert (code, out) == (2, "")
    assert err.startswith("error: --initial-peers: '127.0.0.1:4000' is not an address")
