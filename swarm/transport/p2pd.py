"""One libp2p daemon (hivemind's go binary) as a child process, and its control protocol over a unix socket.

hivemind's own Python side of this protocol leaks a socket on every failed or timed-out dial and hides why a daemon
did not start, so the stream half is spoken here; hivemind's unary half (which its DHT needs) attaches to the same
daemon through ``P2P.replicate``.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import resources
from logging import getLogger
from pathlib import Path
from typing import Any

from swarm.core.errors import ConfigError, NetworkError
from swarm.transport import multiaddr
from swarm.transport.hivemind_import import Multiaddr, PeerID, p2pd_pb2

STREAM_BUFFER_BYTES = 256 * 1024
"""Bytes of one stream held unread before the daemon is told to wait (asyncio pauses at twice this)."""

_MAX_CONTROL_BYTES = 4 * 1024 * 1024
_MAX_STREAM_INFO_BYTES = 4 * 1024
_STOP_S = 5.0
_SCRATCH_PATH_CHARS = 80  # a unix socket's path may have 107

_log = getLogger(__name__)

OnInbound = Callable[[str, str, str, asyncio.StreamReader, asyncio.StreamWriter], None]
"""Told the peer, the multiaddress it comes from (empty if that is unreadable), the protocol, and both directions."""
"""Called with peer id, protocol, reader and writer of an inbound stream; owns the writer from then on."""


class DaemonRefused(Exception):
    """The daemon answered a request with an error; the text is libp2p's."""


class Daemon:
    """A running daemon. Create with ``start``; ``stop`` ends the process and waits for it."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self._process = process
        self._folder = folder
        self._control = folder / "control.sock"
        self._inbound = folder / "inbound.sock"
        self._server: asyncio.AbstractServer | None = None
        self._greetings: set[asyncio.Task[None]] = set()
        self._stopping = False
        self._lines: deque[str] = deque(maxlen=20)
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pump = asyncio.create_task(self._read_output(), name="p2pd output")
        self.ended = asyncio.Event()
        """Set once the process has ended, for whatever reason."""

    @classmethod
    async def start(cls, folder: Path, flags: Sequence[str], *, timeout_s: float) -> Daemon:
        """Launch the binary with ``flags`` and wait until it is up; its sockets live in ``folder``.

        Raises ``ConfigError`` if it refuses its flags, port or key, ``NetworkError`` if it is not up in ``timeout_s``
        seconds.
        """
        binary = str(resources.files("hivemind.hivemind_cli") / "p2pd")
        environment = {**os.environ, "GOLOG_LOG_LEVEL": os.environ.get("GOLOG_LOG_LEVEL", "error")}
        try:
            # Its own process group, or a Ctrl-C would take the network away before anybody could say goodbye.
            process = await asyncio.create_subprocess_exec(
                binary,
                *flags,
                f"-listen=/unix{folder}/control.sock",
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise ConfigError(f"cannot run libp2p's daemon: {error}", hint="reinstall hivemind") from error
        daemon = cls(process, folder)
        try:
            async with asyncio.timeout(timeout_s):
                await daemon._ready
        except TimeoutError as error:
            await daemon.stop()
            raise NetworkError(f"libp2p's daemon did not start in {timeout_s:.0f} s", hint="try again") from error
        except BaseException:
            await daemon.stop()
            raise
        return daemon

    @property
    def control_maddr(self) -> Any:
        """Where hivemind's ``P2P.replicate`` finds this daemon."""
        return Multiaddr(f"/unix{self._control}")

    @property
    def last_words(self) -> str:
        """The last line the process wrote, for messages."""
        return self._lines[-1] if self._lines else "no output"

    async def identify(self) -> tuple[str, tuple[str, ...]]:
        """Own peer id and visible multiaddresses."""
        answer = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))
        addresses = tuple(text for raw in answer.identify.addrs if (text := multiaddr.to_text(raw)))
        return PeerID(answer.identify.id).to_base58(), addresses

    async def connect(self, peer: str, addresses: Sequence[str], *, timeout_s: float) -> None:
        """Connect to ``peer`` at the first of ``addresses`` that works; nothing happens if already connected."""
        request = p2pd_pb2.ConnectRequest(
            peer=PeerID.from_base58(peer).to_bytes(),
            addrs=[multiaddr.to_bytes(address) for address in addresses],
            timeout=_daemon_seconds(timeout_s),
        )
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.CONNECT, connect=request))

    async def disconnect(self, peer: str) -> None:
        """Drop every connection to ``peer``."""
        request = p2pd_pb2.DisconnectRequest(peer=PeerID.from_base58(peer).to_bytes())
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.DISCONNECT, disconnect=request))

    async def addresses_of(self, peer: str) -> tuple[str, ...]:
        """Where the open connections to ``peer`` lead; empty without any."""
        wanted = PeerID.from_base58(peer).to_bytes()
        answer = await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS))
        raws = [raw for found in answer.peers if found.id == wanted for raw in found.addrs]
        return tuple(text for raw in raws if (text := multiaddr.to_text(raw)))

    async def open_stream(
        self, peer: str, protocol: str, *, timeout_s: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
        """A stream to ``peer``, and the multiaddress it leads to (empty if that is unreadable); the control connection
        itself becomes the stream."""
        request = p2pd_pb2.StreamOpenRequest(
            peer=PeerID.from_base58(peer).to_bytes(), proto=[protocol], timeout=_daemon_seconds(timeout_s)
        )
        message = p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_OPEN, streamOpen=request)
        answer, reader, writer = await self._exchange(message)
        return reader, writer, multiaddr.to_text(answer.streamInfo.addr) or ""

    async def serve(self, protocol: str, on_inbound: OnInbound) -> None:
        """Have inbound streams of ``protocol`` handed to ``on_inbound`` (the same one for every protocol)."""
        if self._server is None:
            self._server = await asyncio.start_unix_server(
                lambda reader, writer: self._greet(on_inbound, reader, writer),
                path=self._inbound,
                limit=STREAM_BUFFER_BYTES,
            )
        address = Multiaddr(f"/unix{self._inbound}").to_bytes()
        request = p2pd_pb2.StreamHandlerRequest(addr=address, proto=[protocol], balanced=False)
        await self._ask(p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=request))

    async def stop(self, *, grace_s: float = 0.0) -> None:
        """End the process and wait for it. Idempotent.

        It ends by itself when hivemind's handle has let go of it, and is given ``grace_s`` for that: asyncio loses
        track of a process that is signalled just as it ends.
        """
        self._stopping = True
        if self._server is not None:
            self._server.close()
        for task in self._greetings:
            task.cancel()
        await asyncio.gather(*self._greetings, return_exceptions=True)
        for wait_s, signal in ((grace_s, self._process.terminate), (_STOP_S, self._process.kill)):
            if not await self._ends_within(wait_s):
                with suppress(ProcessLookupError):
                    signal()
        await self._process.wait()
        await self._pump  # ends with the process's output
        if not self._ready.done():
            self._ready.cancel()
        elif not self._ready.cancelled():
            self._ready.exception()

    async def _ends_within(self, seconds: float) -> bool:
        if self._process.returncode is None and seconds > 0:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._process.wait()
        return self._process.returncode is not None

    def _greet(self, on_inbound: OnInbound, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._stopping:  # accepted before the server closed, told only now
            writer.transport.abort()
            return
        task = asyncio.create_task(_read_greeting(on_inbound, reader, writer), name="p2pd inbound")
        self._greetings.add(task)
        task.add_done_callback(lambda done: self._greeted(done, writer))

    def _greeted(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self._greetings.discard(task)
        if task.cancelled():  # perhaps before its first step, so it could not see to this itself
            writer.transport.abort()

    async def _ask(self, request: Any) -> Any:
        answer, _, writer = await self._exchange(request)
        await hang_up(writer)
        return answer

    async def _exchange(self, request: Any) -> tuple[Any, asyncio.StreamReader, asyncio.StreamWriter]:
        """Send one request on a connection of its own; the connection is closed unless this returns."""
        reader, writer = await asyncio.open_unix_connection(self._control, limit=STREAM_BUFFER_BYTES)
        try:
            body = request.SerializeToString()
            writer.write(multiaddr.varint(len(body)) + body)
            await writer.drain()
            answer = p2pd_pb2.Response.FromString(await _read_message(reader, _MAX_CONTROL_BYTES))
            if answer.type == p2pd_pb2.Response.ERROR:
                raise DaemonRefused(answer.error.msg)
        except BaseException:
            writer.transport.abort()
            raise
        return answer, reader, writer

    async def _read_output(self) -> None:
        """Keep the pipe empty, note the last lines, notice readiness and the end."""
        assert self._process.stdout is not None  # opened above with PIPE
        rest = b""
        while chunk := await self._process.stdout.read(65536):
            *lines, rest = (rest + chunk).split(b"\n")
            rest = rest[-65536:]
            for line in lines:
                self._note(line.decode(errors="replace").strip()[:2000])
        code = await self._process.wait()
        self.ended.set()
        if not self._ready.done():
            self._ready.set_exception(_startup_error(code, self.last_words))

    def _note(self, line: str) -> None:
        if not line:
            return
        self._lines.append(line)
        _log.debug("p2pd: %s", line)
        if line.startswith("Peer ID:") and not self._ready.done():
            self._ready.set_result(None)


async def hang_up(writer: asyncio.StreamWriter, *, flush_s: float = 1.0) -> None:
    """Close a connection: give what is written ``flush_s`` seconds to leave, then drop the rest. Never raises."""
    writer.close()
    try:
        async with asyncio.timeout(flush_s):
            await writer.wait_closed()
    except (OSError, TimeoutError):
        writer.transport.abort()
    except asyncio.CancelledError:
        writer.transport.abort()
        raise


async def _read_greeting(on_inbound: OnInbound, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The daemon's first message on an inbound connection says whose stream it is."""
    try:
        async with asyncio.timeout(10.0):
            info = p2pd_pb2.StreamInfo.FromString(await _read_message(reader, _MAX_STREAM_INFO_BYTES))
        peer = PeerID(info.peer).to_base58()
        address = multiaddr.to_text(info.addr) or ""
    except Exception as error:  # only the daemon speaks here: whatever is wrong, this one stream is lost
        _log.debug("an inbound stream was lost before it began: %r", error)
        writer.transport.abort()
        return
    on_inbound(peer, address, info.proto, reader, writer)


async def _read_message(reader: asyncio.StreamReader, limit: int) -> bytes:
    length = shift = 0
    while True:
        byte = (await reader.readexactly(1))[0]
        length |= (byte & 0x7F) << shift
        shift += 7
        if length > limit or shift > 35:
            raise DaemonRefused(f"the daemon sent a message over {limit} bytes")
        if byte < 0x80:
            return await reader.readexactly(length)


def _daemon_seconds(timeout_s: float) -> int:
    """The daemon counts whole seconds; one more than ours, so that our own timeout speaks first."""
    return int(timeout_s) + 1


def _startup_error(code: int, line: str) -> Exception:
    if "failed to listen" in line:
        return ConfigError(f"cannot listen: {line.partition('[')[2].rstrip(']') or line}", hint="choose another port")
    return ConfigError(f"libp2p's daemon refused to start (exit {code}): {line}")


def scratch_root() -> Path:
    """Where the sockets' folder goes: the temporary directory, unless its path is too long for a unix socket."""
    root = tempfile.gettempdir()
    return Path(root if len(root) <= _SCRATCH_PATH_CHARS else "/tmp")
