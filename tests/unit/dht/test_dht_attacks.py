"""One test per attack: whatever strangers store, a reader sees what it saw, and no honest node takes the lie."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records_at_hand import announced

from swarm.core.announcement import Announcement, State
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId
from swarm.core.keys import RECORD_DOMAIN, Identity
from swarm.core.limits import MAX_RECORD_BYTES
from swarm.core.listing import Listing
from swarm.core.metrics import METRICS_LIFETIME_S, Metrics
from swarm.core.model_entry import ModelEntry
from swarm.core.records import MODELS_KEY, SignedRecord, key_of, shard_key, sign_record
from swarm.dht.hivemind_gate import RecordGate
from swarm.dht.hivemind_import import DHTID, DHTRecord, DictionaryDHTValue, MSGPackSerializer
from swarm.dht.judge import Judge
from swarm.dht.limits import MAX_SUBKEYS
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.runtime.clock import VirtualClock

MODEL = ModelId.parse("demo@main#0123456789abcdef")
OTHER = ModelId.parse("other@main#0123456789abcdef")
ANNOUNCED, MEASURED = (shard_key(kind, str(MODEL), "") for kind in (Announcement, Metrics))
VICTIM, MALLORY = Identity(b"v" * 32), Identity(b"m" * 32)
NOW_S = VirtualClock().wall_s()


def announcement(identity: Identity = VICTIM, **changes: Any) -> Announcement:
    return announced(identity.peer_id, MODEL, NOW_S, **{"sequence": 5, **changes})


def metrics(identity: Identity = VICTIM, **changes: Any) -> Metrics:
    fields: dict[str, Any] = {
        "model": str(MODEL),
        "peer": identity.peer_id,
        "instance": 1,
        "sequence": 5,
        "expires_s": NOW_S + METRICS_LIFETIME_S,
        "tau_s": 0.01,
        "fixed_s": 0.001,
        "kv_free_tokens": 1000,
    }
    return Metrics(**{**fields, **changes})


def raw(identity: Identity, record: Announcement | Metrics, **changes: Any) -> bytes:
    """What a peer that skips our checks signs: the record with any field changed to anything."""
    payload = msgspec.msgpack.encode({**msgspec.to_builtins(record), **changes})
    signature = identity.sign(RECORD_DOMAIN, payload)
    return msgspec.msgpack.encode(SignedRecord(identity.peer_id, signature, payload))


class Scene:
    """A victim that has announced itself, and a reader that has seen it, or comes anew."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.store = MemoryDirectoryStore(self.clock)
        self.victim = MemoryDirectory(self.store)
        self.reader = MemoryDirectory(self.store)
        self.gate = RecordGate(Judge(2**20))

    async def start(self) -> Listing:
        for record in (announcement(), metrics()):
            await self.victim.publish(sign_record(VICTIM, record), record)
        [self.before] = await self.reader.servers(MODEL)
        return self.before

    def lie(self, key: str, subkey: str, value: bytes, *, expires_s: float = NOW_S + 500, honest: bool = False) -> None:
        """A liar's node holds it; an honest one is asked to, and refuses unless it is ``honest`` by itself."""
        self.store.inject(key, subkey, value, expires_s=expires_s)
        entry = DHTRecord(
            DHTID.generate(source=key).to_bytes(),
            MSGPackSerializer.dumps(subkey),
            MSGPackSerializer.dumps(value),
            expires_s,
        )
        assert self.gate.validate(entry) is honest

    async def unmoved(self, *, others: int = 0) -> None:
        """Both the reader that knew the victim and a new one see it as before."""
        for reader in (self.reader, MemoryDirectory(self.store)):
            found = await reader.servers(MODEL)
            assert [listing for listing in found if listing.peer == VICTIM.peer_id] == [self.before]
            assert len(found) == 1 + others


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    listing = await made.start()
    assert listing.metrics == metrics()
    return made


async def test_the_known_clobber_a_plain_value_over_signed_subkeys(scene: Scene) -> None:
    for packed in (b"", MSGPackSerializer.dumps(b"wipe"), MSGPackSerializer.dumps({}), b"\xc1"):
        plain = DHTRecord(
            DHTID.generate(source=ANNOUNCED).to_bytes(), MSGPackSerializer.dumps(None), packed, NOW_S + 1e6
        )
        assert not scene.gate.validate(plain)
    dictionary = DictionaryDHTValue()
    dictionary.store("a", b"b", NOW_S + 1e9)
    for value in (7, None, "text", [b"x"], dictionary):
        entry = DHTRecord(b"k", MSGPackSerializer.dumps(VICTIM.peer_id), MSGPackSerializer.dumps(value), NOW_S + 10)
        assert not scene.gate.validate(entry)
    await scene.unmoved()


async def test_a_replayed_older_sequence_number_brings_nobody_back(scene: Scene) -> None:
    """Signed by the victim itself, and live: only the order tells."""
    old = announcement(sequence=4, start=3, expires_s=NOW_S + 59)
    scene.lie(ANNOUNCED, VICTIM.peer_id, sign_record(VICTIM, old), expires_s=old.expires_s, honest=True)
    before = metrics(sequence=4, tau_s=9.0, expires_s=NOW_S + 9)
    scene.lie(MEASURED, VICTIM.peer_id, sign_record(VICTIM, before), expires_s=before.expires_s, honest=True)
    [listing] = await scene.reader.servers(MODEL)
    assert listing == scene.before
    for record in (old, before):  # and an honest node keeps what it has
        fresh = MemoryDirectoryStore(scene.clock)
        newer = announcement() if isinstance(record, Announcement) else metrics()
        directory = MemoryDirectory(fresh)
        await directory.publish(sign_record(VICTIM, newer), newer)
        with pytest.raises(NetworkError):
            await directory.publish(sign_record(VICTIM, record), record)


async def test_a_replay_with_a_later_expiry_is_still_older(scene: Scene) -> None:
    """A server whose records live shorter than before: the older one outlives the newer."""
    old = announcement(sequence=4, start=3, expires_s=NOW_S + 300)
    scene.lie(ANNOUNCED, VICTIM.peer_id, sign_record(VICTIM, old), expires_s=old.expires_s, honest=True)
    assert await scene.reader.servers(MODEL) == [scene.before]


async def test_a_replay_of_a_process_that_ended_brings_nobody_back() -> None:
    scene = Scene()
    first = announcement(instance=9, sequence=1000, start=3, expires_s=NOW_S + 50)
    await scene.victim.publish(sign_record(VICTIM, first), first)
    assert (await scene.reader.servers(MODEL))[0].announcement == first
    await scene.start()  # the next process
    scene.lie(ANNOUNCED, VICTIM.peer_id, sign_record(VICTIM, first), expires_s=first.expires_s, honest=True)
    assert await scene.reader.servers(MODEL) == [scene.before]
    await scene.clock.advance(55)
    assert [listing.announcement for listing in await scene.reader.servers(MODEL)] == [announcement()]


async def test_a_lookup_that_misses_everything_forgets_nobody(scene: Scene) -> None:
    scene.store._entries.clear()
    assert await scene.reader.servers(MODEL) == [scene.before]
    await scene.clock.advance(METRICS_LIFETIME_S)
    [listing] = await scene.reader.servers(MODEL)
    assert listing.metrics is None
    await scene.clock.advance(50)
    assert await scene.reader.servers(MODEL) == []


async def test_nobody_can_forge_a_peer_id(scene: Scene) -> None:
    lie = announcement(start=5, sequence=99, expires_s=NOW_S + 500)
    payload = msgspec.msgpack.encode(lie)
    signature = MALLORY.sign(RECORD_DOMAIN, payload)
    for peer in (VICTIM.peer_id, MALLORY.peer_id):  # her signature under his name; his name under her own
        value = msgspec.msgpack.encode(SignedRecord(peer, signature, payload))
        for subkey in (VICTIM.peer_id, MALLORY.peer_id):
            scene.lie(ANNOUNCED, subkey, value)
    other = Identity(bytes(32))
    scene.lie(ANNOUNCED, VICTIM.peer_id, sign_record(other, announcement(other, expires_s=NOW_S + 500)))
    await scene.unmoved()


async def test_100_far_future_records_are_seen_by_nobody(scene: Scene) -> None:
    for n in range(1, 101):
        crowd = Identity(n.to_bytes(32, "big"))
        for far_s, record in (
            (NOW_S + 1e6 + n, announcement(crowd, expires_s=NOW_S + 1e6 + n)),
            (NOW_S + 300, metrics(crowd, expires_s=NOW_S + 300)),  # as long as an announcement may live, not this
        ):
            scene.lie(key_of(record), crowd.peer_id, sign_record(crowd, record), expires_s=far_s, honest=True)
            with pytest.raises(NetworkError):
                await scene.victim.publish(sign_record(crowd, record), record)
    await scene.unmoved()


async def test_300_subkeys_under_one_key_push_nobody_out(scene: Scene) -> None:
    taken = 0
    for n in range(1, 301):
        crowd = Identity(n.to_bytes(32, "big"))
        record = announcement(crowd, start=3)
        try:
            await scene.victim.publish(sign_record(crowd, record), record)
            taken += 1
        except NetworkError:
            continue
    assert taken == MAX_SUBKEYS - 1
    await scene.unmoved(others=taken)
    renewed = announcement(sequence=6, expires_s=NOW_S + 61)
    await scene.victim.publish(sign_record(VICTIM, renewed), renewed)
    found = await MemoryDirectory(scene.store).servers(MODEL)
    assert renewed in [listing.announcement for listing in found]


@pytest.mark.parametrize(
    "changes",
    [
        {"tau_s": math.nan},
        {"tau_s": -1e-9},
        {"fixed_s": math.inf},
        {"fixed_s": -0.001},
        {"step_s": [0.1, 0.1, 0.1, math.nan]},
        {"step_s": [0.1]},
        {"prefill_tokens_per_s": -5.0},
        {"kv_free_tokens": -1},
        {"sessions": -1},
        {"queued_steps": 2**40},
        {"uplink_mbps": math.nan},
        {"uplink_mbps": 0.0},
        {"rtt_s": {VICTIM.peer_id: -0.1}},
        {"rtt_s": {VICTIM.peer_id: math.nan}},
        {"rtt_s": {f"peer {n}": 0.1 for n in range(17)}},
    ],
    ids=str,
)
async def test_nan_negative_and_absurd_metrics_are_no_metrics(scene: Scene, changes: dict[str, Any]) -> None:
    there = announcement(MALLORY)
    await scene.victim.publish(sign_record(MALLORY, there), there)
    lie = raw(MALLORY, metrics(MALLORY), **changes)
    scene.lie(MEASURED, MALLORY.peer_id, lie, expires_s=NOW_S + METRICS_LIFETIME_S)
    found = {listing.peer: listing.metrics for listing in await scene.reader.servers(MODEL)}
    assert found == {VICTIM.peer_id: metrics(), MALLORY.peer_id: None}
    assert scene.reader.dropped["BadRecordError"] >= 1


@pytest.mark.parametrize(
    "changes",
    [
        {"end": 31},
        {"start": 30, "end": 30},
        {"start": 12, "end": 4},
        {"start": -1},
        {"intent": [25, 31, NOW_S]},
        {"intent": [5, 5, NOW_S]},
        {"intent": [0, 5, math.nan]},
        {"coordinate": [math.nan, 0.0, 0.0, 1.0]},
        {"coordinate": [0.0, 0.0, -0.001, 1.0]},
        {"power_layers_per_s": math.nan},
        {"capacity_layers": -1},
    ],
    ids=str,
)
async def test_a_span_outside_the_model_and_other_nonsense_is_no_server(scene: Scene, changes: dict[str, Any]) -> None:
    scene.lie(ANNOUNCED, MALLORY.peer_id, raw(MALLORY, announcement(MALLORY), **changes), expires_s=NOW_S + 60)
    await scene.unmoved()


def misplaced() -> Iterator[tuple[str, str, bytes]]:
    """Good records where they do not belong: another subkey, model, kind, shard or depth, and the index."""
    good = announcement(expires_s=NOW_S + 500)
    signed = sign_record(VICTIM, good)
    deep = announcement(expires_s=NOW_S + 500, shard_depth=1)
    yield "subkey", ANNOUNCED, signed
    yield "model", shard_key(Announcement, str(OTHER), ""), signed
    yield "kind", MEASURED, signed
    yield "depth", ANNOUNCED, sign_record(VICTIM, deep)
    yield "shard", {"0": "1", "1": "0"}[key_of(deep)[-1]], sign_record(VICTIM, deep)
    yield "index", MODELS_KEY, signed


@pytest.mark.parametrize(("what", "key", "value"), [pytest.param(*lie, id=lie[0]) for lie in misplaced()])
async def test_a_good_record_counts_in_its_place_only(scene: Scene, what: str, key: str, value: bytes) -> None:
    key = f"{ANNOUNCED}/{key}" if what == "shard" else key
    scene.lie(key, MALLORY.peer_id if what == "subkey" else VICTIM.peer_id, value)
    await scene.unmoved()
    assert await scene.reader.servers(OTHER) == []
    assert await scene.reader.models() == []


async def test_an_oversized_record_is_none(scene: Scene) -> None:
    wide = raw(MALLORY, announcement(MALLORY), unknown="u" * MAX_RECORD_BYTES)
    scene.lie(ANNOUNCED, MALLORY.peer_id, wide, expires_s=NOW_S + 60)
    await scene.unmoved()


async def test_a_record_that_is_stored_longer_than_signed_ends_when_it_was_signed_to(scene: Scene) -> None:
    scene.lie(ANNOUNCED, VICTIM.peer_id, sign_record(VICTIM, announcement()), expires_s=NOW_S + 500)
    await scene.clock.advance(60)
    assert await scene.reader.servers(MODEL) == await MemoryDirectory(scene.store).servers(MODEL) == []


@pytest.mark.parametrize("sessions", [0, 3])
async def test_a_killed_server_has_no_metrics_within_ten_seconds_busy_or_idle(scene: Scene, sessions: int) -> None:
    last = metrics(sequence=6, sessions=sessions, expires_s=NOW_S + METRICS_LIFETIME_S + 0.1)
    await scene.clock.advance(0.1)
    await scene.victim.publish(sign_record(VICTIM, last), last)
    await scene.clock.advance(9.9)
    assert (await scene.reader.servers(MODEL))[0].metrics == last
    await scene.clock.advance(0.1)
    assert (await scene.reader.servers(MODEL))[0].metrics is None


async def test_a_clean_exit_is_gone_at_once_and_a_replay_does_not_bring_it_back(scene: Scene) -> None:
    gone = announcement(sequence=6, state=State.OFFLINE, expires_s=NOW_S + 60.001)
    await scene.victim.publish(sign_record(VICTIM, gone), gone)
    assert await scene.reader.servers(MODEL) == await MemoryDirectory(scene.store).servers(MODEL) == []
    assert await scene.reader.server(MODEL, VICTIM.peer_id) is None
    scene.lie(
        ANNOUNCED, VICTIM.peer_id, sign_record(VICTIM, announcement()), expires_s=announcement().expires_s, honest=True
    )
    assert await scene.reader.servers(MODEL) == []


@given(st.binary(max_size=40), st.binary(max_size=200), st.binary(max_size=200), st.floats())
def test_a_gate_says_no_to_random_bytes_and_never_raises(
    key: bytes, subkey: bytes, value: bytes, expires_s: float
) -> None:
    gate = RecordGate(Judge(2**20))
    assert not gate.validate(DHTRecord(key, subkey, value, expires_s))
    assert gate.longest_s(VICTIM.peer_id, value, expires_s) == 0.0


async def test_a_model_index_entry_is_one_peers_word_about_one_model(scene: Scene) -> None:
    entry = ModelEntry(
        model=str(MODEL), peer=VICTIM.peer_id, instance=1, sequence=1, expires_s=NOW_S + 60, layer_count=30
    )
    await scene.victim.publish(sign_record(VICTIM, entry), entry)
    forged = msgspec.structs.replace(entry, model=str(OTHER), sequence=2)
    payload = msgspec.msgpack.encode(forged)
    lie = SignedRecord(VICTIM.peer_id, MALLORY.sign(RECORD_DOMAIN, payload), payload)
    scene.lie(MODELS_KEY, VICTIM.peer_id, msgspec.msgpack.encode(lie), expires_s=forged.expires_s)
    assert await MemoryDirectory(scene.store).models() == [entry]
