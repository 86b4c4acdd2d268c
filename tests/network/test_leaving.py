"""How a server leaves while others could do its work: nobody waits for it, and nobody loses a token."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from swarm import SwarmModel
from swarm.client.blocking import Session
from swarm.client.results import Progress

PROMPT = "Once upon a time, in a village between two rivers, there lived"
MORE = " Everybody knew"
NEW_TOKENS = 40
DRAIN_S = 6.0
AT_ONCE_S = 60.0
"""For what takes a second or two where nothing else runs."""


@dataclass
class Halves:
    """One server for the first half of the model, one or two for the second, and a client."""

    launcher: Any
    first: Any
    second: Any
    model: SwarmModel
    start: tuple[int, ...] = ()
    rest: tuple[int, ...] = ()

    def serve_second(self) -> Any:
        options = ("--dtype", "float32", "--drain-timeout", str(DRAIN_S))
        return self.launcher.server("15:30", *options, join=self.first.address).ready()

    def session(self) -> Session:
        """One that has begun, over the only servers there are now."""
        session = self.model.session(max_tokens=400)
        result = session.generate(PROMPT, max_new_tokens=2, ignore_eos=True)
        self.start = self.start or result.token_ids
        assert result.token_ids == self.start
        assert [stage.peer for stage in result.chain] == [self.first.peer, self.second.peer]
        return session

    def listed(self) -> list[str]:
        parts = self.model._inner.parts
        found = self.model._loop.run(parts.directory.servers(parts.files.model_id))
        return [listing.peer for listing in found]


@pytest.fixture(scope="module")
def halves(module_launcher: Any, connect: Any) -> Halves:
    first = module_launcher.server("0:15", "--dtype", "float32").ready()
    halves = Halves(module_launcher, first, None, connect(first))
    halves.second = halves.serve_second()
    with halves.session() as session:
        halves.rest = session.generate(MORE, max_new_tokens=NEW_TOKENS, ignore_eos=True).token_ids
    return halves


def test_what_runs_goes_on_and_what_is_new_goes_elsewhere(halves: Halves) -> None:
    """A terminal that is closed asks for it as SIGTERM does. One session is used and closed, the other is only open."""
    with halves.session() as kept:
        session = halves.session()
        leaving, halves.second = halves.second, halves.serve_second()
        with session.stream(MORE, max_new_tokens=NEW_TOKENS, ignore_eos=True) as stream:
            next(stream)
            leaving.signal(signal.SIGHUP)
            assert leaving.event("draining", AT_ONCE_S)["sessions"] == 2
            seen: list[Progress] = []
            other = halves.model.generate(PROMPT, max_new_tokens=2, ignore_eos=True, progress=seen.append)
            assert "waiting" not in [item.phase for item in seen]
            assert [stage.peer for stage in other.chain] == [halves.first.peer, halves.second.peer]
            for _ in stream:
                pass
        session.close()
        assert stream.result.token_ids == halves.rest
        assert leaving.wait(AT_ONCE_S) == 0
        leaving.event("stopped")
        assert leaving.stderr == ""
        assert leaving.peer not in halves.listed()
        result = kept.generate(MORE, max_new_tokens=NEW_TOKENS, ignore_eos=True)
        assert result.token_ids == halves.rest
        assert [stage.peer for stage in result.chain] == [halves.first.peer, halves.second.peer]


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.3, 0.6])
def test_ctrl_c_at_the_very_beginning_shows_no_traceback(launcher: Any, after_s: float) -> None:
    """Only the moment in which Python itself starts is not ours."""
    server = launcher.server("0:10", anew=True)
    for caught in (True, False):  # Python sees to Ctrl-C first, then we
        deadline_s = time.monotonic() + AT_ONCE_S
        while catches_ctrl_c(server.pid) is not caught:
            assert time.monotonic() < deadline_s
            time.sleep(0.001)
    time.sleep(after_s)
    server.signal(signal.SIGINT)
    assert server.wait() in (130, -signal.SIGINT)
    assert server.stderr == ""


def catches_ctrl_c(pid: int) -> bool:
    """True if the process has a handler for it, as the kernel knows."""
    [line] = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:")]
    return bool(int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1)
