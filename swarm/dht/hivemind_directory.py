"""The directory over hivemind's Kademlia DHT: for each model some keys per kind of record, one subkey per server.

A key (``records.key_of``) holds a dictionary from peer id to the signed record; an entry's expiry is the record's own
``expires_s``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from random import SystemRandom
from typing import Any

from swarm.core.clock import Clock
from swarm.core.errors import ConfigError, NetworkError, PeerUnreachableError
from swarm.core.ids import ModelId
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.core.records import AnyRecord, key_of
from swarm.dht.hivemind_gate import RecordGate
from swarm.dht.hivemind_import import DHTID, DHTNode, Multiaddr, PeerID
from swarm.dht.hivemind_writer import REPLICAS, Writer
from swarm.dht.judge import Judge
from swarm.dht.limits import KEYS_PER_ANSWER
from swarm.dht.model_index import one_per_model
from swarm.dht.options import DirectoryOptions
from swarm.dht.reader import Reader
from swarm.dht.storage import bound

_log = logging.getLogger(__name__)


class HivemindDirectory:
    """A node of the DHT on somebody else's libp2p daemon. Create it with ``create``; closing leaves the daemon be."""

    def __init__(
        self,
        node: Any,
        gate: RecordGate,
        judge: Judge,
        clock: Clock,
        initial_peers: tuple[str, ...],
        options: DirectoryOptions,
    ) -> None:
        self._node = node
        self._judge = judge
        self._initial_peers = initial_peers
        self._options = options
        self._storage = bound(node.protocol, clock, gate.longest_s, max_bytes=options.held_bytes)
        self._writer = Writer(node, clock, options.replicas_known_s)
        self._reader = Reader(self._fetch, judge, clock, options, SystemRandom())
        self._closed = False

    @classmethod
    async def create(
        cls,
        p2p: Any,
        initial_peers: Sequence[str],
        clock: Clock,
        *,
        client_mode: bool = False,
        options: DirectoryOptions | None = None,
    ) -> HivemindDirectory:
        """Join the DHT through ``initial_peers`` (multiaddresses with ``/p2p/``; none: start a new one).

        A node in ``client_mode`` asks and stores, but holds nothing for others. Raises ``ConfigError`` for a
        malformed address and ``PeerUnreachableError`` if no initial peer answers.
        """
        peers = tuple(initial_peers)
        for address in peers:
            _peer_of(address)
        options = options or DirectoryOptions()
        gate = RecordGate(judge := Judge(options.remembered_bytes))
        node = await DHTNode.create(
            p2p=p2p,
            wait_timeout=options.rpc_timeout_s,
            num_replicas=REPLICAS,
            chunk_size=KEYS_PER_ANSWER,
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            client_mode=client_mode,
            record_validator=gate,
        )
        directory = cls(node, gate, judge, clock, peers, options)
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
        return sum(self._judge.dropped.values())

    async def publish(self, signed: bytes, record: AnyRecord) -> None:
        """See ``Directory.publish``."""
        await self._rejoin_if_alone()
        key = DHTID.generate(source=key_of(record))
        self._storage.reserve(key, record.peer)
        store = self._writer.store(key, record.peer, signed, float(record.expires_s))
        if not await self._bounded(store, "store the record"):
            raise NetworkError(
                "no node of the directory stored the record",
                hint="check this machine's clock and its connection to the initial peers",
            )

    async def servers(self, model: ModelId) -> list[Listing]:
        """See ``Directory.servers``."""
        return await self._reader.servers(model)

    async def server(self, model: ModelId, peer: str) -> Listing | None:
        """See ``Directory.server``."""
        return await self._reader.server(model, peer)

    async def models(self) -> list[ModelEntry]:
        """See ``Directory.models``."""
        return one_per_model(await self._reader.entries())

    async def entries(self) -> list[ModelEntry]:
        """See ``Directory.entries``."""
        return await self._reader.entries()

    async def shard_depth(self, model: ModelId) -> int:
        """See ``Directory.shard_depth``."""
        return self._reader.shard_depth(model)

    async def close(self) -> None:
        """See ``Directory.close``."""
        if self._closed:
            return
        self._closed = True
        try:
            async with asyncio.timeout(self._options.rpc_timeout_s):
                await self._node.shutdown()
        except Exception as error:  # a dead daemon: there is nothing to leave
            _log.debug("leaving the directory: %r", error)

    async def _fetch(self, keys: Sequence[str]) -> dict[str, list[tuple[str, bytes]]]:
        ids = {DHTID.generate(source=key): key for key in keys}
        await self._rejoin_if_alone()
        found = await self._bounded(self._find(ids), "read the directory")
        if not found:  # either nobody announced, or nobody answered and hivemind has just forgotten them all
            await asyncio.sleep(0)
            if self._alone:
                await self._rejoin_if_alone()
                found = await self._bounded(self._find(ids), "read the directory")
        return {
            ids[key]: [(peer, entry.value) for peer, entry in item.value.items() if isinstance(entry.value, bytes)]
            for key, item in found.items()
        }

    async def _find(self, ids: dict[Any, str]) -> dict[Any, Any]:
        found = await self._node.get_many_by_id(list(ids), sufficient_expiration_time=math.inf)
        await asyncio.sleep(0)  # its callbacks run
        for key in ids:  # hivemind keeps an empty set for every key it was ever asked for
            if not self._node.pending_get_requests.get(key):
                self._node.pending_get_requests.pop(key, None)
        return {key: item for key, item in found.items() if item is not None and isinstance(item.value, dict)}

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
        async with asyncio.timeout(self._options.call_timeout_s):
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
            finished, _ = await asyncio.wait({connect}, timeout=self._options.connect_timeout_s)
            if not finished:
                return f"no connection in {self._options.connect_timeout_s:.0f} s"
            if (error := connect.exception()) is not None:
                return " ".join(str(error).split())[-200:]
            node_id = await protocol.call_ping(peer)
        if node_id is None:
            return "connected, but it is not a directory node"
        await protocol.update_routing_table(node_id, peer)  # call_ping does this later, in a task of its own
        return ""

    async def _bounded(self, call: Any, what: str) -> Any:
        try:
            async with asyncio.timeout(self._options.call_timeout_s):
                return await call
        except TimeoutError as error:
            limit_s = self._options.call_timeout_s
            raise NetworkError(f"could not {what} in {limit_s:.0f} s", hint="check the network") from error
        except OSError as error:
            raise NetworkError(f"could not {what}: {error}", hint="restart this node") from error


def _peer_of(address: str) -> Any:
    try:
        return PeerID.from_base58(Multiaddr(address)["p2p"])
    except Exception as error:  # the parser's errors have no common class
        raise ConfigError(
            f"not an initial peer: {address!r}", hint="write it as /ip4/203.0.113.7/tcp/31337/p2p/<peer id>"
        ) from error
