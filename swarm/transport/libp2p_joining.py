"""A node's first minute: its key is read, its daemon started, and an initial peer found that answers."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from swarm.core.errors import ConfigError, NetworkError, PeerUnreachableError
from swarm.core.keys import Identity
from swarm.transport.addresses import split_peer
from swarm.transport.p2pd import Daemon, DaemonRefused

STARTUP_TIMEOUT_S = 60.0
CONNECT_TIMEOUT_S = 10.0
"""How long one initial peer may take to answer."""
_STRAGGLERS_S = 0.5
_REASON_CHARS = 300
_RUNNING = "check that one of them is running and its port open"
_CHANGED = "copy the address that it prints now: its key has changed, or the peer id in the given one is wrong"
_STRANGER = "another peer answers there"
_MISMATCH = re.compile(
    r"(?:failed to negotiate security protocol: )?peer id mismatch: expected \w+, but remote key matches"
)
_PREAMBLE = re.compile(r"(?:failed to dial(?: \w+)?: )*(?:all dials failed )?(?:\* )?")


def read_identity(path: Path) -> Identity:
    try:
        return Identity.from_protobuf(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read the identity file {path}: {error.strerror}") from error


async def start_daemon(folder: Path, flags: list[str]) -> Daemon:
    try:
        return await Daemon.start(folder, flags, timeout_s=STARTUP_TIMEOUT_S)
    except NetworkError:  # slow machines miss the first deadline now and then
        return await Daemon.start(folder, flags, timeout_s=STARTUP_TIMEOUT_S)


async def join(daemon: Daemon, initial_peers: tuple[str, ...]) -> None:
    """Connect to all initial peers at once; done soon after the first answers.

    The daemon's own bootstrap is not used: it goes one by one, takes up to 60 s over dead ones, does not say why it
    failed, and fails if a relay search has connected to the peer first.
    """
    attempts = [asyncio.create_task(_connect(daemon, address)) for address in initial_peers]
    try:
        for attempt in asyncio.as_completed(attempts):
            if not await attempt:
                await asyncio.wait(attempts, timeout=_STRAGGLERS_S)
                return
        if attempts:
            told = "; ".join(f"{where}: {why.result()}" for where, why in zip(initial_peers, attempts, strict=True))
            raise PeerUnreachableError(
                f"no initial peer answered ({told})",
                hint=_CHANGED if _STRANGER in told else _RUNNING,
            )
    finally:
        for task in attempts:
            task.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)


async def _connect(daemon: Daemon, address: str) -> str:
    """Connect to one multiaddress; empty if it worked, else why not."""
    where, peer = split_peer(address)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await daemon.connect(str(peer), [where], timeout_s=CONNECT_TIMEOUT_S)
    except TimeoutError:
        return f"no answer in {CONNECT_TIMEOUT_S:.0f} s"
    except (DaemonRefused, OSError, asyncio.IncompleteReadError, ValueError) as error:
        return reason_of(str(error)) or repr(error)
    return ""


def reason_of(text: str) -> str:
    """libp2p's reason in one bounded line, without what every failed dial begins with."""
    plain = _MISMATCH.sub(f"{_STRANGER}:", " ".join(text.split()))
    return _PREAMBLE.sub("", plain, count=1).replace(" * [", "; [")[:_REASON_CHARS]
