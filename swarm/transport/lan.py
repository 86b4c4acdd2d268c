"""Peers on the local network, found without any address: each tells the others, by multicast DNS, who it is and where.

A notice is a peer id, the name of its swarm and some multiaddresses. All of it is a stranger's word: addresses outside
this network are dropped, and libp2p proves the peer id when it is dialled. What travels is in ``lan_mdns``.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from swarm.core.clock import Clock
from swarm.core.errors import BadSignatureError, ConfigError, PeerUnreachableError
from swarm.core.ids import PeerId
from swarm.core.keys import public_key_of
from swarm.transport.addresses import is_loopback, join_peer, split_peer
from swarm.transport.multiaddr import to_bytes
from swarm.transport.subnets import Subnet, lives_near

LOOK_S = 4.0
"""How long to look before it counts that nobody is there: an answer takes 1.3 s at most, and a datagram may be lost."""
SETTLE_S = 0.5
"""After the first one was heard: others may answer too, and the first may be gone."""
MAX_HEARD = 64
MAX_ADDRESSES = 6
"""Of one notice."""
MAX_JOINED = 8
"""Peers that one client dials at once."""
MAX_PLACES = 2 * MAX_ADDRESSES
"""Addresses of one peer, over all its notices."""
MAX_VALUE_CHARS = 200
"""An entry of a TXT record has up to 255 bytes, its name among them."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Who says that it is here. ``addresses`` are multiaddresses without their peer, of machines near by only."""

    peer: PeerId
    addresses: tuple[str, ...]
    swarm: str = ""

    @property
    def initial_peers(self) -> tuple[str, ...]:
        """What another node joins through."""
        return tuple(join_peer(address, self.peer) for address in self.addresses)


class LocalNetwork(Protocol):
    """The neighbourhood of this machine."""

    async def advertise(self, notice: Notice) -> None:
        """Tell others of this node until ``close``, and never hear of it oneself. ``NetworkError`` if it cannot be."""
        ...

    def heard(self) -> Sequence[Notice]:
        """Who is there now, as far as was heard, the first one first; at most ``MAX_HEARD``."""
        ...

    async def wait_news(self) -> None:
        """Return once somebody is heard who was not before, or elsewhere."""
        ...

    async def close(self) -> None:
        """Say goodbye. Idempotent."""
        ...


def write_notice(notice: Notice, subnets: tuple[Subnet, ...] = ()) -> dict[str, str]:
    """The notice as entries of a TXT record; addresses that nobody near could dial are left out."""
    near = [address for address in notice.addresses if is_near(address, subnets)][:MAX_ADDRESSES]
    return {"peer": notice.peer, "swarm": notice.swarm} | {f"addr{index}": near[index] for index in range(len(near))}


def read_notice(entries: Mapping[bytes, bytes | None], subnets: tuple[Subnet, ...] = ()) -> Notice | None:
    """What a stranger's TXT record says; None where it is not one of ours, or says nothing that can be dialled."""
    peer = _text(entries.get(b"peer"))
    try:
        public_key_of(peer)
    except BadSignatureError:
        return None
    told = (_text(entries.get(f"addr{index}".encode())) for index in range(MAX_ADDRESSES))
    addresses = tuple(dict.fromkeys(address for address in told if is_near(address, subnets)))
    return Notice(PeerId(peer), addresses, _text(entries.get(b"swarm"))) if addresses else None


def is_near(address: str, subnets: tuple[Subnet, ...] = ()) -> bool:
    """True for the address of a machine in a private network or in one of ``subnets`` (this machine's own), or of this
    one: direct, without its peer, not a name."""
    parts = address.split("/")
    if len(parts) != 5 or parts[1] not in ("ip4", "ip6") or parts[3] != "tcp":
        return False
    try:
        to_bytes(address)
    except ConfigError:
        return False
    host = ipaddress.ip_address(parts[2])
    return lives_near(host, subnets) and "%" not in parts[2] and int(parts[4]) > 0


def _text(value: bytes | None) -> str:
    """Printable ASCII, or nothing."""
    text = (value or b"")[: MAX_VALUE_CHARS + 1].decode("ascii", errors="replace")
    return text if len(text) <= MAX_VALUE_CHARS and text.isascii() and text.isprintable() else ""


@dataclass(slots=True)
class Hearing:
    """What was heard, by the name it was told under. Only notices of the swarm ``swarm`` count, and never our own.

    With ``loopback`` addresses of this machine count too: for nodes that listen on nothing else. In ``subnets``, this
    machine's own, public addresses do. Who is told of beyond ``MAX_HEARD`` is not kept: a neighbour that makes names up
    hides others, and does no more.
    """

    swarm: str = ""
    loopback: bool = False
    subnets: tuple[Subnet, ...] = ()
    own: str = ""
    _by_name: dict[str, Notice] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def hear(self, name: str, entries: Mapping[bytes, bytes | None]) -> None:
        """A notice, whoever sent it."""
        notice = read_notice(entries, self.subnets)
        if notice is None or notice.swarm != self.swarm or notice.peer == self.own:
            return
        near = tuple(address for address in notice.addresses if self.loopback or not is_loopback(address))
        if not near or (name not in self._by_name and len(self._by_name) >= MAX_HEARD):
            return
        notice = Notice(notice.peer, near, notice.swarm)
        if self._by_name.get(name) != notice:
            self._by_name[name] = notice
            self._news.set()

    def forget(self, name: str) -> None:
        """The notice was taken back, or ran out."""
        self._by_name.pop(name, None)

    def ignore(self, peer: str) -> None:
        """``peer`` is this node."""
        self.own = peer
        self._by_name = {name: notice for name, notice in self._by_name.items() if notice.peer != peer}

    def heard(self) -> list[Notice]:
        """See ``LocalNetwork.heard``; one for each peer, with the addresses of all notices that name it.

        Anybody may name a peer; libp2p finds out which address is its own.
        """
        places: dict[PeerId, dict[str, None]] = {}
        for notice in self._by_name.values():
            places.setdefault(notice.peer, {}).update(dict.fromkeys(notice.addresses))
        return [Notice(peer, tuple(found)[:MAX_PLACES], self.swarm) for peer, found in places.items()]

    async def wait_news(self) -> None:
        """See ``LocalNetwork.wait_news``."""
        await self._news.wait()
        self._news.clear()


async def find_peers(network: LocalNetwork, clock: Clock, *, look_s: float = LOOK_S) -> tuple[str, ...]:
    """Initial peers that are near, of up to ``MAX_JOINED`` nodes; soon after the first one was heard.

    Raises ``PeerUnreachableError`` if nobody is within ``look_s`` seconds.
    """
    looking = asyncio.ensure_future(clock.sleep(look_s))
    try:
        while not network.heard():
            news = asyncio.ensure_future(network.wait_news())
            try:
                await asyncio.wait({looking, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
            if looking.done() and not network.heard():
                raise PeerUnreachableError(
                    f"nobody on the local network answered in {look_s:g} s",
                    hint="start a server there with --lan, or give an address with --initial-peers",
                )
    finally:
        looking.cancel()
    await clock.sleep(SETTLE_S)
    return tuple(address for notice in network.heard()[:MAX_JOINED] for address in notice.initial_peers)


def check_swarm_name(name: str) -> None:
    """Raise ``ConfigError`` for a name that does not fit a notice."""
    if len(name) > 63 or not name.isascii() or not name.isprintable():
        raise ConfigError(f"{name[:63]!r} cannot name a swarm", hint="take up to 63 printable ASCII characters")


def advertised(addresses: Sequence[str], subnets: tuple[Subnet, ...] = ()) -> tuple[str, ...]:
    """Which of a node's own addresses to tell: without peers, near, and loopback only where no other is."""
    near = [address for address in (split_peer(each)[0] for each in addresses) if is_near(address, subnets)]
    return tuple([address for address in near if not is_loopback(address)] or near)


class MemoryAir:
    """What machines in one memory hear of each other: the twin of a local network, for tests."""

    def __init__(self) -> None:
        self.told: dict[str, dict[bytes, bytes | None]] = {}
        self.ears: list[Hearing] = []

    def join(self, swarm: str = "") -> MemoryNetwork:
        """One machine's place in it."""
        return MemoryNetwork(self, swarm)

    def tell(self, name: str, entries: dict[bytes, bytes | None]) -> None:
        """Anything at all, by anybody."""
        self.told[name] = entries
        for hearing in self.ears:
            hearing.hear(name, entries)

    def take_back(self, name: str) -> None:
        """Nobody hears of it any more."""
        self.told.pop(name, None)
        for hearing in self.ears:
            hearing.forget(name)


class MemoryNetwork:
    """``LocalNetwork`` in memory."""

    def __init__(self, air: MemoryAir, swarm: str) -> None:
        self._air, self._swarm, self._name = air, swarm, ""
        self._hearing = Hearing(swarm, loopback=True)
        air.ears.append(self._hearing)
        for name, entries in air.told.items():
            self._hearing.hear(name, entries)

    async def advertise(self, notice: Notice) -> None:
        """See ``LocalNetwork.advertise``."""
        self._name = notice.peer
        self._hearing.ignore(notice.peer)
        entries = write_notice(Notice(notice.peer, notice.addresses, self._swarm))
        self._air.tell(self._name, {key.encode(): value.encode() for key, value in entries.items()})

    def heard(self) -> Sequence[Notice]:
        """See ``LocalNetwork.heard``."""
        return self._hearing.heard()

    async def wait_news(self) -> None:
        """See ``LocalNetwork.wait_news``."""
        await self._hearing.wait_news()

    async def close(self) -> None:
        """See ``LocalNetwork.close``."""
        if self._hearing in self._air.ears:
            self._air.ears.remove(self._hearing)
        if self._name:
            self._air.take_back(self._name)
