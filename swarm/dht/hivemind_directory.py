"""The directory over hivemind's Kademlia DHT: for each model a key per kind of record, one subkey per server.

The key (``records.key_of``) holds a dictionary from peer id to the signed record; an entry's expiry is the record's own
``expires_s``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Sequence
from typing import Any

from swarm.core.announcement import Announcement
from swarm.core.clock import Clock
from swarm.core.errors import BadRecordError, ConfigError, NetworkError, PeerError, PeerUnreachableError
from swarm.core.ids import ModelId
from swarm.core.limits import MAX_RECORD_BYTES
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.model_entry import ModelEntry
from swarm.core.records import CLOCK_SKEW_S, MODELS_KEY, AnyRecord, key_of, read_record, shard_key
from swarm.dht.hivemind_import import (
    DHTID,
    DHTNode,
    DHTRecord,
    MSGPackSerializer,
    Multiaddr,
    PeerID,
    RecordValidatorBase,
)
from swarm.dht.merge import Kind, listings, sorted_entries
from swarm.dht.storage import bound

RPC_TIMEOUT_S = 3.0
"""A node that does not answer one request in this time is passed over."""
CALL_TIMEOUT_S = 15.0
"""A whole lookup or store, over all nodes."""
CONNECT_TIMEOUT_S = 10.0

_EXPIRY_SLACK_S = 0.001
_REMEMBERED_RECORDS = 4096
_PACKED_OVERHEAD_BYTES = 16

_log = logging.getLogger(__name__)


class RecordGate(RecordValidatorBase):  # type: ignore[misc]  # hivemind has no types
    """Judges every entry this node is asked to store, and every entry another node answers with.

    An entry passes if it is one of our records: under the one key its content names and its signer's subkey, signed by
    that peer, with the entry's expiry equal to the signed one. So a plain value cannot wipe a key, nobody overwrites
    another's record, and what cannot be decoded never reaches hivemind's reader, which would hang on it. One bad entry
    spoils a whole answer, so nothing here depends on the reader's clock. ``dropped`` counts what did not pass, by
    reason.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, bytes], AnyRecord] = OrderedDict()
        self.dropped: Counter[str] = Counter()

    def validate(self, record: DHTRecord) -> bool:
        """hivemind's question about one entry. Never raises."""
        try:
            subkey, value = _unpack(record.subkey), _unpack(record.value)
            if not isinstance(subkey, str) or not isinstance(value, bytes):
                raise BadRecordError("not a record under a peer id")
            found = self.read(subkey, value, now_s=record.expiration_time - 1.0)
            if abs(found.expires_s - record.expiration_time) > _EXPIRY_SLACK_S:
                raise BadRecordError("stored until another time than the signed one", peer=subkey)
            if DHTID.generate(source=key_of(found)).to_bytes() != record.key:
                raise BadRecordError("stored under a key of something else", peer=subkey)
        except PeerError as error:
            self.drop(error)
            return False
        except Exception as error:  # hivemind calls this in the middle of an RPC: whatever is wrong, the answer is no
            self.drop(BadRecordError(f"unreadable: {error!r}"))
            return False
        return True

    def read(self, peer: str, value: bytes, *, now_s: float) -> AnyRecord:
        """``read_record`` with a memory: a signature (53 µs) is checked once, not at every poll."""
        known = self._known.get((peer, value))
        if known is not None and 0 < known.expires_s - now_s <= known.LIFETIME_S + CLOCK_SKEW_S:
            self._known.move_to_end((peer, value))
            return known
        record = read_record(value, now_s=now_s, expected_peer=peer)
        self._known[(peer, value)] = record
        if len(self._known) > _REMEMBERED_RECORDS:
            self._known.popitem(last=False)
        return record

    def drop(self, error: PeerError) -> None:
        """Count and note one entry that did not pass."""
        self.dropped[type(error).__name__] += 1
        _log.debug("dropped a directory record: %s", error)


class HivemindDirectory:
    """A node of the DHT on somebody else's libp2p daemon. Create it with ``create``; closing leaves the daemon be."""

    def __init__(self, node: Any, gate: RecordGate, clock: Clock, initial_peers: tuple[str, ...]) -> None:
        self._node = node
        self._gate = gate
        self._clock = clock
        self._initial_peers = initial_peers
        self._storage = bound(node.protocol, clock)
        self._closed = False

    @classmethod
    async def create(
        cls, p2p: Any, initial_peers: Sequence[str], clock: Clock, *, client_mode: bool = False
    ) -> HivemindDirectory:
        """Join the DHT through ``initial_peers`` (multiaddresses with ``/p2p/``; none: start a new one).

        A node in ``client_mode`` asks and stores, but holds nothing for others. Raises ``ConfigError`` for a
        malformed address and ``PeerUnreachableError`` if no initial peer answers.
        """
        peers = tuple(initial_peers)
        for address in peers:
            _peer_of(address)
        gate = RecordGate()
        node = await DHTNode.create(
            p2p=p2p,
            wait_timeout=RPC_TIMEOUT_S,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            client_mode=client_mode,
            record_validator=gate,
        )
        directory = cls(node, gate, clock, peers)
        try:
            if peers:
                await directory._join()
        except BaseException:
            await directory.close()
            raise
        return directory

    @property
    def dropped(self) -> int:
        """How many records of others were refused so far."""
        return sum(self._gate.dropped.values())

    async def publish(self, signed: bytes, record: AnyRecord) -> None:
        """See ``Directory.publish``."""
        await self._rejoin_if_alone()
        key = key_of(record)
        self._storage.reserve(DHTID.generate(source=key), record.peer)
        store = self._node.store(
            key,
            signed,
            expiration_time=float(record.expires_s),
            subkey=record.peer,
            exclude_self=self._node.protocol.client_mode,
        )
        if await self._bounded(store, "store the record"):
            return
        # hivemind reports what the slowest node said, so one liar's "no" hides four honest nodes' "yes".
        found = await self._lookup(key)
        entry = found.value.get(record.peer) if found is not None and isinstance(found.value, dict) else None
        if entry is None or entry.value != signed:
            raise NetworkError(
                "no node of the directory stored the record",
                hint="check this machine's clock and its connection to the initial peers",
            )

    async def servers(self, model: ModelId) -> list[Listing]:
        """See ``Directory.servers``."""
        name = str(model)
        announced, metrics = await asyncio.gather(
            self._read(shard_key(Announcement, name, ""), Announcement),
            self._read(shard_key(Metrics, name, ""), Metrics),
        )
        live = [entry for entry in announced if entry[0].model == name]
        return listings(live, [found for found, _ in metrics if found.model == name])

    async def models(self) -> list[ModelEntry]:
        """See ``Directory.models``."""
        entries = sorted_entries(await self._read(MODELS_KEY, ModelEntry))
        return list({entry.model: entry for entry, _ in entries}.values())

    async def shard_depth(self, model: ModelId) -> int:
        """See ``Directory.shard_depth``."""
        return 0

    async def _read(self, key: str, kind: type[Kind]) -> list[tuple[Kind, bytes]]:
        """Every valid record of one kind under ``key`` with its signed bytes."""
        found = await self._lookup(key)
        if found is None:  # either nobody announced, or nobody answered and hivemind has just forgotten them all
            await asyncio.sleep(0)
            if self._alone:
                found = await self._lookup(key)
        if found is None or not isinstance(found.value, dict):
            return []
        now_s = self._clock.wall_s()
        live: list[tuple[Kind, bytes]] = []
        for peer, entry in found.value.items():
            try:
                record = self._gate.read(peer, entry.value, now_s=now_s)
            except PeerError as error:  # mostly: expired while it travelled
                self._gate.drop(error)
                continue
            if isinstance(record, kind):
                live.append((record, entry.value))
        return live

    async def close(self) -> None:
        """See ``Directory.close``."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(RPC_TIMEOUT_S):
                await self._node.shutdown()
        except Exception as error:  # a dead daemon: there is nothing to leave
            _log.debug("leaving the directory: %r", error)

    async def _lookup(self, key: str) -> Any:
        await self._rejoin_if_alone()
        return await self._bounded(self._node.get(key, latest=True), "read the directory")

    @property
    def _alone(self) -> bool:
        """True if others should be known, but none is."""
        return bool(self._initial_peers) and not self._node.protocol.routing_table.uid_to_peer_id

    async def _rejoin_if_alone(self) -> None:
        """After an outage hivemind has forgotten everybody and never asks again: join anew."""
        if self._closed:
            raise NetworkError("the directory is closed")
        if not self._alone:
            return
        try:
            await self._join()
        except PeerUnreachableError:
            if self._node.protocol.client_mode:
                raise
            # A server still knows what it stored itself, and others may find it again.
            _log.debug("no initial peer answers; going on alone")

    async def _join(self) -> None:
        """Connect to the initial peers and meet them; one that answers is enough."""
        reasons = await asyncio.gather(*(self._meet(address) for address in self._initial_peers))
        if all(reasons):
            told = "; ".join(f"{address}: {why}" for address, why in zip(self._initial_peers, reasons, strict=True))
            raise PeerUnreachableError(
                f"no initial peer answered ({told})",
                hint="check that one of them is running and its port open",
            )
        async with asyncio.timeout(CALL_TIMEOUT_S):
            await self._node.find_nearest_nodes([self._node.node_id])

    async def _meet(self, address: str) -> str:
        """Ping an initial peer, connecting first if need be; empty if it answered, else why not."""
        peer = _peer_of(address)
        protocol = self._node.protocol
        if peer == protocol.p2p.peer_id:
            return "this is the node itself"
        node_id = await protocol.call_ping(peer)
        if node_id is None:
            where = [Multiaddr(address).decapsulate(f"/p2p/{peer}")]
            # Never cancelled: hivemind would leave the socket of an abandoned connect open.
            connect = asyncio.ensure_future(protocol.p2p._client.connect(peer, where))
            connect.add_done_callback(lambda done: done.cancelled() or done.exception())
            finished, _ = await asyncio.wait({connect}, timeout=CONNECT_TIMEOUT_S)
            if not finished:
                return f"no connection in {CONNECT_TIMEOUT_S:.0f} s"
            if (error := connect.exception()) is not None:
                return " ".join(str(error).split())[-200:]
            node_id = await protocol.call_ping(peer)
        if node_id is None:
            return "connected, but it is not a directory node"
        await protocol.update_routing_table(node_id, peer)  # call_ping does this later, in a task of its own
        return ""

    async def _bounded(self, call: Any, what: str) -> Any:
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                return await call
        except TimeoutError as error:
            raise NetworkError(f"could not {what} in {CALL_TIMEOUT_S:.0f} s", hint="check the network") from error
        except OSError as error:
            raise NetworkError(f"could not {what}: {error}", hint="restart this node") from error


def _peer_of(address: str) -> Any:
    try:
        return PeerID.from_base58(Multiaddr(address)["p2p"])
    except Exception as error:  # the parser's errors have no common class
        raise ConfigError(
            f"not an initial peer: {address!r}", hint="write it as /ip4/203.0.113.7/tcp/31337/p2p/<peer id>"
        ) from error


def _unpack(packed: bytes) -> object:
    if len(packed) > MAX_RECORD_BYTES + _PACKED_OVERHEAD_BYTES:
        raise BadRecordError(f"record of {len(packed)} bytes")
    unpacked: object = MSGPackSerializer.loads(packed)
    return unpacked
