"""The transport over libp2p: encrypted, authenticated binary streams through hivemind's daemon."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.core.announcement import Reach
from swarm.core.errors import ConfigError, MisuseError, NetworkError, PeerUnreachableError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.transport.addresses import is_relayed, reach_of, split_peer, widest_first
from swarm.transport.dialback import DIAL_BACK_PROTOCOL, DialBack, own_addresses
from swarm.transport.handlers import HandlerTasks
from swarm.transport.hivemind_handle import attach, release
from swarm.transport.libp2p_joining import join, read_identity, reason_of, start_daemon
from swarm.transport.libp2p_stream import Libp2pStream
from swarm.transport.options import NatOptions, check_port, daemon_flags, dialable, listen_address
from swarm.transport.p2pd import Daemon, DaemonRefused, scratch_root
from swarm.transport.protocol import StreamHandler

_GRACE_S = 2.0


@dataclass(frozen=True, slots=True)
class _Joined:
    """Through whom a node came in: initial peers and relays, as multiaddresses with their peers."""

    initial_peers: tuple[str, ...]
    relays: tuple[str, ...]


class Libp2pTransport:
    """A libp2p node. Create it with ``create``; it owns one daemon process and ends it in ``close``.

    ``p2p`` is hivemind's handle on the same daemon, for its DHT.
    """

    def __init__(self, daemon: Daemon, p2p: Any, peer_id: PeerId, joined: _Joined) -> None:
        self._daemon = daemon
        self._peer_id = peer_id
        self._joined = joined
        self._addresses: tuple[str, ...] = ()
        self._handlers: dict[str, StreamHandler] = {}
        self._tasks = HandlerTasks()
        self._streams: set[Libp2pStream] = set()
        self._dial_back = DialBack(self)
        self._folder: Path | None = None
        self._closed = False
        self.p2p = p2p

    @classmethod
    async def create(
        cls,
        identity_path: Path | None,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        announce: Sequence[str] = (),
        initial_peers: Sequence[str] = (),
        nat: NatOptions | None = None,
    ) -> Libp2pTransport:
        """Start a node with the key at ``identity_path`` (None: a new key, forgotten at the end).

        ``host`` and ``port`` are where to listen (0: any free port), ``announce`` the multiaddresses to tell others
        instead of the found ones, ``initial_peers`` multiaddresses ending in ``/p2p/<peer id>``, of which one must
        answer. Raises ``ConfigError`` (a bad address or key file, a taken port), ``PeerUnreachableError`` (no initial
        peer answered; names them) or ``NetworkError`` (the daemon did not come up in two attempts of 60 s).
        """
        nat = nat or NatOptions()
        joined = _Joined(tuple(initial_peers), nat.relays)
        flags = daemon_flags(listen_address(host, port), tuple(announce), joined.initial_peers, nat)
        identity = read_identity(identity_path) if identity_path else Identity(os.urandom(32))
        await asyncio.to_thread(check_port, host, port)
        async with AsyncExitStack() as undo:
            folder = Path(tempfile.mkdtemp(prefix="swarm-", dir=scratch_root()))
            undo.callback(shutil.rmtree, folder, ignore_errors=True)
            key_path = identity_path or folder / "key"
            if identity_path is None:
                key_path.write_bytes(identity.to_protobuf())  # the folder is 0700
            daemon = await start_daemon(folder, [*flags, f"-id={key_path}"])
            undo.push_async_callback(daemon.stop)
            if identity_path is None:
                key_path.unlink()  # the daemon has read it, and a killed process would leave it behind
            await join(daemon, joined.initial_peers)
            transport = await cls._attach(daemon, identity.peer_id, joined)
            undo.push_async_callback(release, transport.p2p)
            transport._folder = folder
            await transport.listen(DIAL_BACK_PROTOCOL, transport._dial_back.answer)
            undo.pop_all()
        return transport

    @classmethod
    async def _attach(cls, daemon: Daemon, expected: PeerId, joined: _Joined) -> Libp2pTransport:
        p2p = await attach(daemon)
        transport = cls(daemon, p2p, expected, joined)
        try:
            found = await transport.refresh()
            if found != expected:
                raise ConfigError(f"the daemon runs as {found}, not as {expected}", hint="check the identity file")
        except BaseException:
            await release(p2p)
            raise
        return transport

    @property
    def peer_id(self) -> PeerId:
        return self._peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        """Visible multiaddresses, as of the last ``refresh`` (and of ``create``)."""
        return self._addresses

    async def refresh(self) -> PeerId:
        """Ask the daemon again for the visible addresses: observed and relayed ones come with time."""
        try:
            found, visible = await self._daemon.identify()
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._gone() from error
        addresses = [split_peer(address)[0] for address in visible]
        if not any(map(is_relayed, addresses)):  # libp2p keeps relays of private networks to itself
            addresses += [f"{relay}/p2p-circuit" for relay in self._joined.relays]
        self._addresses = widest_first(dict.fromkeys(addresses))
        return PeerId(found)

    async def reach(self) -> Reach:
        """How strangers reach this node, as far as its addresses tell now. See ``addresses.reach_of``."""
        await self.refresh()
        return reach_of(self._addresses, self._joined.initial_peers)

    async def wait_broken(self) -> NetworkError:
        """Wait until the daemon ends while this transport is in use; the error to report then."""
        await self._daemon.ended.wait()
        return self._gone()

    async def listen(self, protocol: str, handler: StreamHandler) -> None:
        """See ``Transport.listen``. Raises ``MisuseError`` if ``protocol`` has a handler already."""
        if protocol in self._handlers:
            raise MisuseError(f"protocol {protocol} is served already")
        self._handlers[protocol] = handler
        try:
            await self._daemon.serve(protocol, self._on_inbound)
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._gone() from error

    async def dial(
        self, peer: PeerId, protocol: str, *, addresses: Sequence[str] = (), timeout_s: float = 10.0
    ) -> Libp2pStream:
        """See ``Transport.dial``. With ``addresses`` only those are tried (unless a connection is up already);
        without any, libp2p looks the peer up."""
        if peer == self._peer_id:
            raise PeerUnreachableError("a libp2p node cannot dial itself", hint="use a second transport")
        usable = [address for address in map(dialable, addresses) if address]
        if addresses and not usable:
            raise PeerUnreachableError(f"peer {peer} announces no address that can be dialled")
        if usable and all(map(is_relayed, usable)):
            await self._make_direct(peer, usable, timeout_s)
        return await self._open(peer, protocol, usable, timeout_s)

    async def _open(self, peer: PeerId, protocol: str, usable: Sequence[str], timeout_s: float) -> Libp2pStream:
        try:
            async with asyncio.timeout(timeout_s):
                if usable:
                    await self._daemon.connect(peer, usable, timeout_s=timeout_s)
                reader, writer, address = await self._daemon.open_stream(peer, protocol, timeout_s=timeout_s)
        except DaemonRefused as error:
            raise PeerUnreachableError(f"cannot reach peer {peer}: {reason_of(str(error))}") from error
        except TimeoutError as error:
            raise PeerUnreachableError(f"peer {peer} did not answer in {timeout_s:g} s") from error
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._gone() from error
        except ValueError as error:  # base58 of a malformed peer id
            raise PeerUnreachableError(f"not a peer id: {peer[:64]!r}") from error
        stream = Libp2pStream(peer, reader, writer, self._streams.discard, address)
        self._streams.add(stream)
        if self._closed:
            await stream.close()
            raise self._gone()
        return stream

    async def _make_direct(self, peer: PeerId, relayed: Sequence[str], timeout_s: float) -> None:
        """Ask a peer that only a relay reaches to dial us; without success the relayed connection has to do."""
        now_s = asyncio.get_running_loop().time()
        own = own_addresses(self._addresses, relayed)
        if not own or not self._dial_back.worth_asking(peer, now_s) or await self.is_direct(peer):
            return
        try:
            stream = await self._open(peer, DIAL_BACK_PROTOCOL, relayed, timeout_s)
        except PeerUnreachableError:
            return  # the caller's own attempt will say why
        await self._dial_back.ask(stream, own, now_s)

    async def is_direct(self, peer: PeerId) -> bool:
        """True if a connection to ``peer`` is open that needs no relay."""
        try:
            return any(not is_relayed(address) for address in await self._daemon.addresses_of(peer))
        except (OSError, asyncio.IncompleteReadError, DaemonRefused):
            return False

    def busy_with(self, peer: PeerId) -> bool:
        """True if any stream to or from ``peer`` is open."""
        return any(stream.peer == peer for stream in self._streams)

    async def reconnect(self, peer: PeerId, addresses: Sequence[str], timeout_s: float) -> None:
        """Drop every connection to ``peer`` and make a new one; ``PeerUnreachableError`` if it fails."""
        usable = [address for address in map(dialable, addresses) if address]
        try:
            await self._daemon.disconnect(peer)
            await self._daemon.connect(peer, usable, timeout_s=timeout_s)
        except (DaemonRefused, OSError, asyncio.IncompleteReadError) as error:
            raise PeerUnreachableError(f"cannot dial peer {peer} back: {reason_of(str(error))}") from error

    async def close(self) -> None:
        """See ``Transport.close``. Ends the daemon and waits for it."""
        if self._closed:
            return
        self._closed = True
        await self._tasks.close()
        await asyncio.gather(*(stream.close() for stream in tuple(self._streams)))
        await release(self.p2p)
        await self._daemon.stop(grace_s=_GRACE_S)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _on_inbound(
        self, peer: str, address: str, protocol: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        handler = self._handlers.get(protocol)
        if handler is None or not self._tasks.admits(PeerId(peer)):
            writer.transport.abort()
            return
        stream = Libp2pStream(PeerId(peer), reader, writer, self._streams.discard, address)
        self._streams.add(stream)
        self._tasks.start(protocol, handler, stream)

    def _gone(self) -> NetworkError:
        if self._closed:
            return PeerUnreachableError("this transport is closed")
        return PeerUnreachableError(
            f"the local libp2p daemon is gone (its last words: {self._daemon.last_words})", hint="restart this node"
        )
