"""What signals ask of a server, and who hears them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from swarm.cli.early import hush, listen
from swarm.cli.signals import ENDS, Signals, unless_stopped


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*ENDS, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


async def send(number: signal.Signals) -> None:
    os.kill(os.getpid(), number)
    await asyncio.sleep(0.01)


@pytest.mark.parametrize("number", ENDS)
async def test_the_first_asks_to_stop_and_the_second_to_hurry(number: signal.Signals) -> None:
    signals = Signals(asyncio.get_running_loop())
    await send(number)
    assert (signals.stop.is_set(), signals.hurry.is_set()) == (True, False)
    await send(number)
    assert signals.hurry.is_set()


async def test_a_closed_terminal_stops_without_hurry_and_can_be_written_to() -> None:
    ours, terminal = os.openpty()
    signals = Signals(asyncio.get_running_loop(), [terminal])
    os.close(ours)
    with pytest.raises(OSError, match="Input/output"):
        os.write(terminal, b"lost")
    await send(signal.SIGHUP)
    await send(signal.SIGHUP)
    assert (signals.stop.is_set(), signals.hurry.is_set()) == (True, False)
    assert os.write(terminal, b"leaving") == 7
    os.close(terminal)


async def test_what_is_no_terminal_is_written_on() -> None:
    """The log file of a server that was started from a terminal."""
    source, sink = os.pipe()
    Signals(asyncio.get_running_loop(), [sink])
    await send(signal.SIGHUP)
    os.write(sink, b"leaving")
    assert os.read(source, 100) == b"leaving"
    for end in (source, sink):
        os.close(end)


async def test_nohup_is_respected() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = Signals(asyncio.get_running_loop())
    await send(signal.SIGHUP)
    assert not signals.stop.is_set()


def test_before_anybody_catches_it_ctrl_c_ends_the_process_in_silence() -> None:
    program = "import os, signal, time; from swarm.cli.early import hush; hush(); os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60.0)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_later_it_can_be_caught_and_where_it_is_ignored_it_stays_so() -> None:
    hush()
    listen()
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hush()
    listen()
    os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


async def test_a_start_is_given_up_when_told_to_stop() -> None:
    stop, ended = asyncio.Event(), []

    async def start(waits: asyncio.Event) -> str:
        try:
            await waits.wait()
            return "ready"
        finally:
            await asyncio.sleep(0)
            ended.append(waits)

    soon, never = asyncio.Event(), asyncio.Event()
    soon.set()
    assert await unless_stopped(stop, start(soon)) == "ready"
    stop.set()
    assert await unless_stopped(stop, start(never)) is None
    assert ended == [soon, never], "it has ended before its caller goes on"


async def test_what_ends_a_start_is_raised_and_whoever_gives_up_waiting_takes_it_along() -> None:
    async def fail() -> None:
        raise ValueError("no network")

    with pytest.raises(ValueError, match="no network"):
        await unless_stopped(asyncio.Event(), fail())
    ended = asyncio.Event()

    async def start() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    waiting = asyncio.create_task(unless_stopped(asyncio.Event(), start()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    assert ended.is_set()
