"""The directory over hivemind's Kademlia DHT: for each model some keys per kind of record, one subkey per server.

A key (``records.key_of``) holds a dictionary from peer id to the signed record; an entry's expiry is the record's own
``expires_s``.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from contextlib import suppress
from random import SystemRandom
from typing import Any, NoReturn

from swarm.core.clock import Clock
from swarm.core.errors import ConfigError, NetworkError, PeerUnreachableError
from swarm.core.records import AnyRecord, key_of
from swarm.dht.clock_watch import ClockWatch
from swarm.dht.hivemind_circle import HivemindCircle
from swarm.dht.hivemind_gate import RecordGate
from swarm.dht.hivemind_import import DHTID, DHTNode, Multiaddr, PeerID
from swarm.dht.hivemind_writer import REPLICAS, Writer
from swarm.dht.judge import Judge
from swarm.dht.keeper import Keeper
from swarm.dht.limits import KEYS_PER_ANSWER
from swarm.dht.options import DirectoryOptions
from swarm.dht.reader import Reader
from swarm.dht.reads import Reads
from swarm.dht.storage import bound

_log = logging.getLogger(__name__)


class HivemindDirectory(Reads):
    """A node of the DHT on somebody else's libp2p daemon. Create it with ``create``; closing leaves the daemon be."""

    def __init__(
        self,
        node: Any,
        gate: RecordGate,
        judge: Judge,
        clock: Clock,
        initial: Sequence[tuple[str, str]],
        options: DirectoryOptions,
    ) -> None:
        super().__init__(Reader(self._fetch, judge, clock, options, SystemRandom()))
        self._node = node
        self._judge = judge
        self._options = options
        self._storage = bound(node.protocol, clock, gate.longest_s, max_bytes=options.held_bytes)
        self._writer = Writer(node, clock, options.replicas_known_s)
        circle = HivemindCircle(node, clock, options, self._bounded, self._writer.forget)
        self._clock_watch = ClockWatch(circle, clock, SystemRandom())
        self._watching: asyncio.Task[NoReturn] | None = None
        self._calls: set[asyncio.Future[Any]] = set()
        self._closed = False
        self._circle = circle
        self.keeper = Keeper(circle, clock, SystemRandom(), initial, seeks_lost=not node.protocol.client_mode)
        """Brings the node back after an outage, and tells of it."""

    @classmethod
    async def create(
        cls,
        p2p: Any,
        initial_peers: Sequence[str],
        clock: Clock,
        *,
        client_mode: bool = False,
        options: DirectoryOptions | None = None,
        must_join: bool = True,
    ) -> HivemindDirectory:
        """Join the DHT through ``initial_peers`` (multiaddresses with ``/p2p/``; none: start a new one).

        A node in ``client_mode`` asks and stores, but holds nothing for others. Raises ``ConfigError`` for a
        malformed address and, with ``must_join``, ``PeerUnreachableError`` if no initial peer answers; without it the
        keeper goes on trying.
        """
        peers = [(_peer_of(address), address) for address in initial_peers]
        options = options or DirectoryOptions()
        gate = RecordGate(judge := Judge(options.remembered_bytes))
        node = await _node(p2p, gate, options, client_mode=client_mode)
        directory = cls(node, gate, judge, clock, peers, options)
        try:
            if peers:
                with suppress(*(() if must_join else (PeerUnreachableError,))):
                    await directory.keeper.seek()
            directory.keeper.start()
            directory._watching = asyncio.create_task(directory._clock_watch.run(), name="clock watch")
        except BaseException:
            await directory.close()
            raise
        return directory

    @property
    def dropped(self) -> int:
        """How many records of others were refused so far."""
        return sum(self._judge.dropped.values())

    @property
    def held(self) -> int:
        """How many records this node holds at present, for others and its own."""
        return self._storage.count()

    def known(self) -> frozenset[str]:
        """The peers that this node would ask now."""
        return self._circle.known()

    async def meet(self, peer: str, addresses: Sequence[str]) -> str:
        """Get to know ``peer``, which was heard of elsewhere, and through it the others; empty, or why it is not one.

        If each knew a swarm of its own they are one from then on. The addresses are a stranger's: multiaddresses that
        were parsed.
        """
        if not (why := await self._circle.meet(peer, addresses)):
            await self._circle.settle()
        return why

    async def clock_offsets_s(self) -> list[float]:
        """How far the clocks of some known nodes are ahead of this machine's, in seconds, as they say themselves."""
        return await self._clock_watch.ask()

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

    async def close(self) -> None:
        """See ``Directory.close``."""
        if self._closed:
            return
        self._closed = True
        await self.keeper.close()
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)
        if self._calls:
            await asyncio.wait(self._calls, timeout=self._options.rpc_timeout_s)
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
            if self.keeper.alone:
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

    async def _rejoin_if_alone(self) -> None:
        """hivemind forgets whoever does not answer: if that is everybody, look for them first."""
        if self._closed:
            raise NetworkError("the directory is closed")
        client = self._node.protocol.client_mode
        if not self.keeper.alone or (self.keeper.cut_off and not client):
            return
        try:
            await self.keeper.seek()
        except PeerUnreachableError:
            if client:
                raise
            # A server still knows what it stored itself, and others may find it again.

    def _called(self, calling: asyncio.Future[Any]) -> None:
        self._calls.discard(calling)
        if not calling.cancelled():
            calling.exception()  # perhaps nobody waits for it any more

    async def _bounded(self, call: Any, what: str) -> Any:
        """Wait for a call of hivemind's, which goes on to its own end: cancelled, it leaves tasks that never do."""
        calling, limit_s = asyncio.ensure_future(call), self._options.call_timeout_s
        self._calls.add(calling)
        calling.add_done_callback(self._called)
        finished, _ = await asyncio.wait({calling}, timeout=limit_s)
        if not finished:
            raise NetworkError(f"could not {what} in {limit_s:.0f} s", hint="check the network")
        try:
            return calling.result()
        except OSError as error:
            raise NetworkError(f"could not {what}: {error}", hint="restart this node") from error


async def _node(p2p: Any, gate: RecordGate, options: DirectoryOptions, *, client_mode: bool) -> Any:
    """hivemind's node, which keeps nothing but what others store with it."""
    return await DHTNode.create(
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


def _peer_of(address: str) -> str:
    try:
        Multiaddr(address)
        return str(PeerID.from_base58(address.rpartition("/p2p/")[2]).to_base58())
    except Exception as error:  # the parser's errors have no common class
        raise ConfigError(
            f"not an initial peer: {address!r}", hint="write it as /ip4/203.0.113.7/tcp/31337/p2p/<peer id>"
        ) from error
