"""Real DHT nodes for tests of the directory: several daemons in one process on loopback."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest

from swarm.core.announcement import Announcement
from swarm.core.clock import Clock
from swarm.core.ids import ModelId
from swarm.core.keys import RECORD_DOMAIN, Identity
from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.core.numerics import Numerics
from swarm.core.records import AnyRecord, SignedRecord, sign_record
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.runtime.clock import SystemClock
from swarm.transport.addresses import join_peer
from swarm.transport.libp2p import Libp2pTransport

MODEL = ModelId.parse("demo@main#0123456789abcdef")
OTHER = ModelId.parse("other@main#0123456789abcdef")

Node = tuple[Libp2pTransport, HivemindDirectory]
Create = Callable[..., Awaitable[Node]]


@pytest.fixture
async def create() -> AsyncIterator[Create]:
    made: list[Node] = []

    async def make(*initial: Node, client_mode: bool = False, key: Path | None = None) -> Node:
        peers = [address_of(transport) for transport, _ in initial]
        transport = await Libp2pTransport.create(key, initial_peers=peers)
        try:
            directory = await HivemindDirectory.create(transport.p2p, peers, SystemClock(), client_mode=client_mode)
        except BaseException:
            await transport.close()
            raise
        made.append((transport, directory))
        return made[-1]

    yield make
    for transport, directory in made:
        await directory.close()
        await transport.close()


def address_of(transport: Libp2pTransport) -> str:
    return join_peer(transport.addresses[0], transport.peer_id)


def signed(
    identity: Identity,
    *,
    lifetime_s: float = 60.0,
    model: ModelId = MODEL,
    clock: Clock | None = None,
    **fields: object,
) -> tuple[bytes, Announcement]:
    now_s = (clock or SystemClock()).wall_s()
    usual: dict[str, object] = {
        "model": str(model),
        "layer_count": 30,
        "peer": identity.peer_id,
        "start": 0,
        "end": 10,
        "numerics": Numerics("float32"),
        "instance": 1,
        "sequence": 1,
        "started_s": now_s - 100,
        "expires_s": now_s + lifetime_s,
    }
    announcement = Announcement(**{**usual, **fields})  # type: ignore[arg-type]
    return sign_record(identity, announcement), announcement


def measured(identity: Identity, *, lifetime_s: float = METRICS_LIFETIME_S, **fields: object) -> tuple[bytes, Metrics]:
    usual: dict[str, object] = {
        "model": str(MODEL),
        "peer": identity.peer_id,
        "instance": 1,
        "sequence": 1,
        "expires_s": SystemClock().wall_s() + lifetime_s,
        "tau_s": 0.01,
        "fixed_s": 0.001,
        "kv_free_tokens": 1000,
    }
    metrics = Metrics(**{**usual, **fields})  # type: ignore[arg-type]
    return sign_record(identity, metrics), metrics


def raw(identity: Identity, record: AnyRecord, **changes: object) -> bytes:
    """What a peer that skips our checks signs: the record with any field changed to anything."""
    payload = msgspec.msgpack.encode({**msgspec.to_builtins(record), **changes})
    return msgspec.msgpack.encode(SignedRecord(identity.peer_id, identity.sign(RECORD_DOMAIN, payload), payload))


def identities(count: int) -> list[Identity]:
    return sorted((Identity(os.urandom(32)) for _ in range(count)), key=lambda identity: identity.peer_id)


async def peers_seen(directory: HivemindDirectory, model: ModelId = MODEL) -> list[str]:
    return [listing.peer for listing in await directory.servers(model)]
