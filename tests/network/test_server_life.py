"""How servers end, and what the others notice: signals, crashes, frozen processes, restarts."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from swarm import GenerationInterruptedError, SwarmError, SwarmModel
from swarm.core.errors import PeerLostError, RefusedError
from swarm.core.ids import PeerId
from swarm.transport.status import StatusLine, ask_status
from swarm.wire.status import StatusReport

PROMPT = "Once upon a time, in a village between two rivers, there lived"
NEW_TOKENS = 40
AT_ONCE_S = 20.0
"""For what must not wait for the drain's 30 s: leaving includes a last write to the DHT and ending the daemon."""
HEAL_S = 3.0
"""So long the client waits for somebody who could take over, in vain."""
LOST_S = 20.0
"""From a server's end or standstill to the client's error: missed beats, ``HEAL_S``, and slack for slow cores."""


@dataclass
class Pair:
    """Two servers that hold the model, a client, and what its greedy answer is."""

    launcher: Any
    connect: Any
    first: Any
    second: Any
    model: SwarmModel
    tokens: tuple[int, ...]

    def restart(self) -> None:
        """The second server again, with the same key; waits until it is READY."""
        self.second = self.launcher.server("15:30", join=self.first.address, key="second.key").ready()

    def generate(self) -> tuple[int, ...]:
        return self.model.generate(PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True).token_ids

    def seen(self) -> list[str]:
        """Peer ids that a reader of the directory sees now."""
        parts = self.model._inner.parts
        found = self.model._loop.run(parts.directory.servers(parts.files.model_id))
        return [listing.peer for listing in found]


class Watched:
    """A status stream to the second server that stays open."""

    def __init__(self, pair: Pair) -> None:
        self._run = pair.model._loop.run
        self._line = self._run(StatusLine.open(pair.model._inner.parts.transport, PeerId(pair.second.peer)))

    def ask(self) -> StatusReport:
        report: StatusReport = self._run(self._line.ask())
        return report

    def ended(self) -> SwarmError:
        """What ended it; waits for that."""
        error: SwarmError = self._run(asyncio.wait_for(self._line.ended(), AT_ONCE_S))
        self._run(self._line.close())
        return error


@pytest.fixture(scope="module")
def pair(module_launcher: Any, connect: Any) -> Pair:
    first = module_launcher.server("0:15", "--no-stats").ready()
    second = module_launcher.server("15:30", "--public-name", "second", join=first.address, key="second.key").ready()
    pair = Pair(module_launcher, connect, first, second, connect(first, heal_timeout_s=HEAL_S), ())
    pair.tokens = pair.generate()
    assert len(pair.tokens) == NEW_TOKENS
    return pair


def daemons_of(server: Any) -> list[psutil.Process]:
    daemons = [process for process in server.family if process.name() == "p2pd"]
    assert len(daemons) == 1
    return daemons


def assert_gone(processes: list[psutil.Process]) -> None:
    _, alive = psutil.wait_procs(processes, timeout=AT_ONCE_S)
    assert not alive, f"left behind: {alive}"


def interrupt_after(pair: Pair, pieces: int, act: Any) -> tuple[GenerationInterruptedError, float]:
    """Do ``act`` after some pieces of an answer; the error that ends it, and seconds until it came."""
    with pair.model.generate(PROMPT, stream=True, max_new_tokens=2000, ignore_eos=True) as stream:
        for _ in range(pieces):
            next(stream)
        began_s = time.monotonic()
        act()
        with pytest.raises(GenerationInterruptedError) as caught:
            exhaust(stream, within_s=60.0)
    return caught.value, time.monotonic() - began_s


def exhaust(stream: Iterator[str], *, within_s: float) -> None:
    deadline_s = time.monotonic() + within_s
    for _ in stream:
        assert time.monotonic() < deadline_s, "the answer goes on"


def check_valid_part(error: GenerationInterruptedError, pair: Pair) -> None:
    """The error names the server and its layers, counts the valid tokens, and they are the right ones."""
    assert pair.second.peer[-8:] in str(error)
    assert "15:30" in str(error) or "stopped by its owner" in str(error)
    assert f"after {len(error.token_ids)} valid tokens" in str(error)
    assert len(error.token_ids) >= 5
    shared = min(len(error.token_ids), NEW_TOKENS)
    assert error.token_ids[:shared] == pair.tokens[:shared]
    assert error.text


def test_a_server_that_shall_not_says_nothing_of_itself(pair: Pair) -> None:
    with pytest.raises(RefusedError, match="statistics are off"):
        pair.model._loop.run(ask_status(pair.model._inner.parts.transport, PeerId(pair.first.peer)))


def test_a_frozen_server_is_noticed_and_may_come_back(pair: Pair) -> None:
    error, took_s = interrupt_after(pair, 5, lambda: pair.second.signal(signal.SIGSTOP))
    pair.second.signal(signal.SIGCONT)
    check_valid_part(error, pair)
    assert took_s < LOST_S
    assert pair.generate() == pair.tokens


def test_kill_9_in_the_middle_of_an_answer(pair: Pair) -> None:
    daemons, watched = daemons_of(pair.second), Watched(pair)
    error, took_s = interrupt_after(pair, 5, pair.second.process.kill)
    check_valid_part(error, pair)
    assert took_s < LOST_S
    assert isinstance(watched.ended(), PeerLostError)
    assert_gone(daemons)

    assert pair.first.process.poll() is None
    with pytest.raises(SwarmError) as caught:  # its announcement lives on for a while, it does not answer
        pair.generate()
    assert not isinstance(caught.value, GenerationInterruptedError)
    assert pair.second.peer[-8:] in str(caught.value) or "layers 15 to 29" in str(caught.value)

    pair.restart()
    assert pair.generate() == pair.tokens


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(pair: Pair, number: signal.Signals) -> None:
    daemons = daemons_of(pair.second)
    assert pair.second.peer in pair.seen()
    watched = Watched(pair)
    report = watched.ask()
    assert report.totals.answers == report.answers >= NEW_TOKENS
    stage = report.chains[0]  # before it came the server's own probe
    assert (stage.start, stage.end, stage.decode_rows) == (15, 30, NEW_TOKENS - 1)
    began_s = time.monotonic()
    pair.second.signal(number)
    assert pair.second.wait() == 0
    assert time.monotonic() - began_s < AT_ONCE_S
    assert isinstance(watched.ended(), PeerLostError)
    assert pair.second.peer not in pair.seen(), "withdrawn, not left to expire"
    assert_gone(daemons)
    pair.second.event("stopped")
    assert pair.second.stderr == ""

    pair.restart()
    assert pair.generate() == pair.tokens


def test_a_second_ctrl_c_does_not_wait_for_sessions(pair: Pair) -> None:
    def twice() -> None:
        pair.second.signal(signal.SIGINT)
        assert pair.second.event("draining", 30.0)["sessions"] == 1
        with pytest.raises(subprocess.TimeoutExpired):  # it waits for the answer that is running
            pair.second.process.wait(1.0)
        pair.second.signal(signal.SIGINT)

    error, _ = interrupt_after(pair, 5, twice)
    check_valid_part(error, pair)
    assert "stopped by its owner" in str(error)
    assert pair.second.wait(AT_ONCE_S) == 130
    assert pair.second.event("stopped")["cut"] == 1
    assert pair.second.peer not in pair.seen()

    asked = pair.launcher.run("swarm", "generate", "Hello", "--model", "demo", "--initial-peers", pair.first.address)
    assert asked.wait() == 3
    hint = f"start one: python -m swarm.server --model demo --initial-peers {pair.first.address} --blocks 15:30"
    assert asked.stderr == f"error: no server holds layers 15 to 29 ({hint})\n"

    pair.restart()
    assert pair.generate() == pair.tokens


def test_a_server_without_its_daemon_goes_and_says_why(launcher: Any) -> None:
    """It would look alive, and serve nobody."""
    server = launcher.server("10:11").ready()
    [daemon] = daemons_of(server)
    daemon.kill()
    assert server.wait() == 4
    assert "libp2p daemon is gone" in server.stderr
    assert "Traceback" not in server.stderr


@pytest.mark.parametrize("after_s", [0.2, 1.0, 2.5])
def test_ctrl_c_while_starting(launcher: Any, after_s: float) -> None:
    server = launcher.server("0:10", anew=True)
    server.event("starting")
    time.sleep(after_s)
    server.signal(signal.SIGINT)
    assert server.wait() == 130
    assert "Traceback" not in server.stderr
