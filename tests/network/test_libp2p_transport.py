"""What only real daemons show: processes, ports, keys, deaths, leaks."""

from __future__ import annotations

import asyncio
import gc
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from swarm.core.announcement import Reach
from swarm.core.errors import ConfigError, PeerLostError, PeerUnreachableError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.runtime.identity import load_or_create
from swarm.transport.addresses import join_peer
from swarm.transport.hivemind_handle import PendingCalls
from swarm.transport.libp2p import Libp2pTransport
from swarm.transport.options import NatOptions
from swarm.transport.protocol import Stream

PATIENCE_S = 20.0

Create = Callable[..., Awaitable[Libp2pTransport]]

NODE = """
import asyncio, sys
from swarm.transport.libp2p import Libp2pTransport

async def main():
    transport = await Libp2pTransport.create(None)

    async def hold(stream):
        await stream.write(b"hello")
        await stream.read_exactly(1)

    await transport.listen("/hold/1", hold)
    print(transport.peer_id, transport.addresses[0], transport._daemon._process.pid, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await transport.close()

asyncio.run(main())
"""


@pytest.fixture
async def create() -> AsyncIterator[Create]:
    made: list[Libp2pTransport] = []

    async def make(identity: Path | None = None, **options: object) -> Libp2pTransport:
        made.append(await Libp2pTransport.create(identity, **options))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for transport in made:
        await transport.close()


async def hold(stream: Stream) -> None:
    await stream.read_exactly(1)


def address_of(transport: Libp2pTransport) -> str:
    return join_peer(transport.addresses[0], transport.peer_id)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def ended(pid: int) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while running(pid):  # noqa: ASYNC110  # another process's end raises no event here
            await asyncio.sleep(0.02)


@pytest.fixture
async def node() -> AsyncIterator[tuple[asyncio.subprocess.Process, PeerId, str, int]]:
    """A node in a process of its own: (process, peer, address, its daemon's process id)."""
    scratch = tempfile.TemporaryDirectory(prefix="t")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "dev", "-W", "error::ResourceWarning", "-c", NODE),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONASYNCIODEBUG": "0", "TMPDIR": scratch.name},
    )
    assert process.stdout is not None
    peer, address, pid = (await process.stdout.readline()).decode().split()
    yield process, PeerId(peer), address, int(pid)
    if process.returncode is None:
        process.kill()
    await process.communicate()
    await ended(int(pid))
    scratch.cleanup()


async def test_a_node_that_is_killed_leaves_an_end_and_no_daemon(
    create: Create, node: tuple[asyncio.subprocess.Process, PeerId, str, int]
) -> None:
    process, peer, address, daemon = node
    client = await create()
    stream = await client.dial(peer, "/hold/1", addresses=[address])
    assert await stream.read_exactly(5) == b"hello"
    process.send_signal(signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(PeerLostError) as caught:
            await stream.read_exactly(1)
    assert caught.value.peer == peer
    with pytest.raises(PeerUnreachableError, match=peer):
        await client.dial(peer, "/hold/1", addresses=[address], timeout_s=5)
    await ended(daemon)


async def test_a_node_says_nothing_and_survives_a_terminal_interrupt_of_its_group(
    node: tuple[asyncio.subprocess.Process, PeerId, str, int],
) -> None:
    process, _, _, daemon = node
    assert os.getsid(daemon) != os.getsid(process.pid)  # so Ctrl-C does not reach the daemon before the goodbye
    out, err = await process.communicate(b"")
    assert (process.returncode, out, err) == (0, b"", b"")
    assert not running(daemon)


async def test_the_identity_file_is_the_peer_id(create: Create, tmp_path: Path) -> None:
    identity = load_or_create(tmp_path / "key")
    transport = await create(tmp_path / "key")
    assert transport.peer_id == identity.peer_id == transport.p2p.peer_id.to_base58()
    assert all(address.startswith("/ip4/127.0.0.1/tcp/") and "/p2p/" not in address for address in transport.addresses)


async def test_a_taken_port_is_named_even_if_another_daemon_would_share_it(create: Create) -> None:
    first = await create()
    port = int(first.addresses[0].rpartition("/")[2])
    with pytest.raises(ConfigError, match=f"port {port}") as caught:
        await create(port=port)
    assert "choose another port" in caught.value.hint
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(ConfigError, match="in use"):
        await create(host="0.0.0.0", port=other.getsockname()[1])


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"host": "203.0.113.9"}, "203.0.113.9"),
        ({"host": "no such host"}, "no such host"),
        ({"port": 70000}, "70000"),
        ({"announce": ["203.0.113.7:31337"]}, "203.0.113.7:31337"),
        ({"announce": ["/ip4/203.0.113.7/tcp/0"]}, "port 0"),
        ({"initial_peers": ["/ip4/127.0.0.1/tcp/1"]}, "does not name a peer"),
        ({"initial_peers": ["nonsense"]}, "nonsense"),
        ({"nat": NatOptions(relays=("/ip4/127.0.0.1/tcp/1",))}, "does not name a peer"),
    ],
)
async def test_a_bad_option_is_named(create: Create, options: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        await create(**options)


async def test_a_missing_or_foreign_key_file_is_named(create: Create, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="absent"):
        await create(tmp_path / "absent")
    (tmp_path / "bad").write_bytes(b"\x08\x00not a key")
    with pytest.raises(ConfigError, match="Ed25519"):
        await create(tmp_path / "bad")


async def test_no_initial_peer_that_answers_is_an_error_that_names_them(create: Create) -> None:
    dead = f"/ip4/127.0.0.1/tcp/1/p2p/{Identity(os.urandom(32)).peer_id}"
    with pytest.raises(PeerUnreachableError, match=re.escape(dead)) as caught:
        await create(initial_peers=[dead])
    assert caught.value.hint
    alive = await create()
    joined = await create(initial_peers=[dead, address_of(alive)])
    await alive.listen("/hold/1", hold)
    assert (await joined.dial(alive.peer_id, "/hold/1")).peer == alive.peer_id


async def test_peers_of_a_common_third_find_each_other_without_addresses(create: Create) -> None:
    hub = await create()
    first, second = await create(initial_peers=[address_of(hub)]), await create(initial_peers=[address_of(hub)])
    await first.listen("/hold/1", hold)
    async with asyncio.timeout(PATIENCE_S):
        while True:  # the address book fills in the background
            try:
                stream = await second.dial(first.peer_id, "/hold/1")
                break
            except PeerUnreachableError:
                await asyncio.sleep(0.05)
    assert stream.peer == first.peer_id


async def test_announced_addresses_replace_the_found_ones(create: Create) -> None:
    transport = await create(announce=["/ip4/203.0.113.7/tcp/31337", "/dns4/node.example.org/tcp/31337"])
    assert set(transport.addresses) == {"/ip4/203.0.113.7/tcp/31337", "/dns4/node.example.org/tcp/31337"}


async def test_a_private_swarm_is_reached_directly(create: Create) -> None:
    assert await (await create()).reach() is Reach.DIRECT


async def test_a_node_behind_a_relay_is_reached_through_it(create: Create) -> None:
    relay = await create(nat=NatOptions(reachability="public"))
    hidden = await create(initial_peers=[address_of(relay)], nat=NatOptions(relays=(address_of(relay),)))
    await hidden.listen("/hold/1", hold)
    assert await hidden.reach() is Reach.RELAYED
    relayed = [address for address in hidden.addresses if address.endswith("/p2p-circuit")]
    assert relayed == [f"{address_of(relay)}/p2p-circuit"]
    client = await create()
    async with asyncio.timeout(PATIENCE_S):
        while True:  # the hidden node's reservation at the relay takes a moment
            try:
                stream = await client.dial(hidden.peer_id, "/hold/1", addresses=relayed)
                break
            except PeerUnreachableError:
                await asyncio.sleep(0.1)
    assert stream.peer == hidden.peer_id


async def test_a_hidden_node_dials_back_and_the_relay_is_needed_no_more(create: Create) -> None:
    """Once the way is direct the relay may go: streams open and carry what they like without it."""
    relay = await create(nat=NatOptions(reachability="public"))
    hidden = await create(initial_peers=[address_of(relay)], nat=NatOptions(relays=(address_of(relay),)))

    async def echo(stream: Stream) -> None:
        while True:
            await stream.write(await stream.read_exactly(64 * 1024))

    await hidden.listen("/echo/1", echo)
    await hidden.refresh()
    relayed = [address for address in hidden.addresses if address.endswith("/p2p-circuit")]
    client = await create()
    async with asyncio.timeout(PATIENCE_S):
        while not await client.is_direct(hidden.peer_id):
            try:
                await (await client.dial(hidden.peer_id, "/echo/1", addresses=relayed)).close()
            except PeerUnreachableError:  # the hidden node's reservation at the relay takes a moment
                await asyncio.sleep(0.1)
    await relay.close()
    stream = await client.dial(hidden.peer_id, "/echo/1", addresses=relayed)
    for _ in range(8):
        await stream.write(bytes(64 * 1024))
        assert await stream.read_exactly(64 * 1024) == bytes(64 * 1024)


async def test_a_daemon_that_dies_is_reported(create: Create) -> None:
    server, client = await create(), await create()
    await server.listen("/hold/1", hold)
    stream = await client.dial(server.peer_id, "/hold/1", addresses=server.addresses)
    client._daemon._process.kill()
    async with asyncio.timeout(PATIENCE_S):
        assert "daemon is gone" in str(await client.wait_broken())
        with pytest.raises(PeerLostError):
            await stream.read_exactly(1)
    with pytest.raises(PeerUnreachableError, match="daemon is gone"):
        await client.dial(server.peer_id, "/hold/1", addresses=server.addresses)
    with pytest.raises(PeerUnreachableError, match="daemon is gone"):
        await client.reach()


async def test_failed_and_abandoned_dials_leave_no_socket_behind(create: Create) -> None:
    server, client = await create(), await create()
    await server.listen("/hold/1", hold)
    nobody = Identity(os.urandom(32)).peer_id

    async def fail() -> None:
        with pytest.raises(PeerUnreachableError):
            await client.dial(server.peer_id, "/other/1", addresses=server.addresses)
        with pytest.raises(PeerUnreachableError, match="did not answer"):
            await client.dial(nobody, "/hold/1", addresses=["/ip4/192.0.2.254/tcp/9"], timeout_s=0.05)
        dialling = asyncio.create_task(client.dial(nobody, "/hold/1", addresses=["/ip4/192.0.2.254/tcp/9"]))
        await asyncio.sleep(0.01)
        dialling.cancel()
        await asyncio.gather(dialling, return_exceptions=True)

    await fail()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        await fail()
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_closing_leaves_no_task_no_file_no_process_and_no_word(caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    server, client = await Libp2pTransport.create(None), await Libp2pTransport.create(None)
    await server.listen("/hold/1", hold)
    streams = [await client.dial(server.peer_id, "/hold/1", addresses=server.addresses) for _ in range(5)]
    pids = [transport._daemon._process.pid for transport in (server, client)]
    folders = [transport._folder for transport in (server, client)]
    await client.close()
    await server.close()
    assert len(streams) == 5
    assert not any(map(running, pids))
    assert not any(folder is not None and folder.exists() for folder in folders)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await asyncio.sleep(0)
    assert len(set(os.listdir("/proc/self/fd")) - before) == 0
    assert [record.getMessage() for record in caplog.records if record.levelno >= 30] == []


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5])
async def test_streams_that_arrive_during_a_close_leave_no_socket_behind(turns: int) -> None:
    transport = await Libp2pTransport.create(None)
    await transport.listen("/hold/1", hold)
    knocking = [socket.socket(socket.AF_UNIX) for _ in range(8)]
    for one in knocking:
        one.settimeout(5)
        one.connect(str(transport._daemon._inbound))
    for _ in range(turns):  # accepted, told of, and greeted, turn by turn of the loop
        await asyncio.sleep(0)
    await transport.close()
    for one in knocking:
        assert await asyncio.to_thread(one.recv, 1) == b""
        one.close()


async def test_an_answer_to_a_cancelled_call_is_no_answer() -> None:
    calls = PendingCalls()
    calls["open"] = asyncio.get_running_loop().create_future()
    calls["cancelled"] = asyncio.get_running_loop().create_future()
    calls["cancelled"].cancel()
    assert "open" in calls
    assert "cancelled" not in calls
    assert "never" not in calls


async def test_both_ends_of_a_stream_know_where_the_other_is(create: Create) -> None:
    """As the daemon sees it, not as anybody announces it."""
    near = await create()
    far = await create(initial_peers=[address_of(near)])
    seen: list[str] = []

    async def look(stream: Stream) -> None:
        seen.append(stream.address)
        await stream.write(b"x")

    await far.listen("/look/1", look)
    stream = await near.dial(far.peer_id, "/look/1", addresses=far.addresses)
    await stream.read_exactly(1)
    for address in (stream.address, *seen):
        assert address.startswith("/ip4/127.0.0.1/tcp/")
    assert len(seen) == 1
    await stream.close()
