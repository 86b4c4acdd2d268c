"""A volunteer's server as a process: what it is told to give, paused and resumed, stopped whatever it is doing."""

from __future__ import annotations

import json
import signal
import socket
import time
from typing import Any

import pytest

from swarm.core.hours import DAYS

AT_ONCE_S = 60.0
"""Measured on a free machine: 0.1 to 0.4 s. What this bounds is a wait for a download, a drain or a time-out."""


def test_paused_resumed_limited_and_thanked(launcher: Any, connect: Any) -> None:
    limits = "--uplink-mbps", "50", "--memory-share", "0.95", "--schedule", "mon-sun", "--dtype", "float32"
    server = launcher.server("0:30", *limits, key="mine").ready()
    key = str(launcher.folder / "mine")
    assert server.event("banner")["limits"] == "95 % of the memory, 50 Mbit/s of upload, hours mon-sun"
    ready = server.event("ready")
    assert ready["fits_alone"]
    assert ready["tokens_per_s"] == pytest.approx(ready["tokens_per_s_alone"], rel=0.1)
    assert (ready["tokens_per_s_without"], ready["faster_alone"]) == (None, False)

    model = connect(server)
    asked = {"max_new_tokens": 4, "ignore_eos": True}
    before = model.generate("The capital of France is", **asked)
    paused = launcher.run("swarm", "pause", "--identity", key, "--json", anew=True)
    assert paused.wait(AT_ONCE_S) == 0, paused.stderr
    assert json.loads(paused.line(1.0) or "")["state"] == "paused"
    assert server.event("paused", AT_ONCE_S)["why"] == "owner"
    resumed = launcher.run("swarm", "resume", "--identity", key, anew=True)
    assert resumed.wait(AT_ONCE_S) == 0, resumed.stderr
    assert resumed.line(1.0) == "Serving again."
    assert model.generate("The capital of France is", **asked).token_ids == before.token_ids

    server.signal(signal.SIGUSR1)
    server.events = [event for event in server.events if event["event"] != "paused"]
    server.event("paused", AT_ONCE_S)
    server.signal(signal.SIGINT)
    assert server.wait(AT_ONCE_S) == 0
    server.event("stopped")
    told = launcher.run("swarm", "contributed", "--identity", key, "--json", anew=True)
    assert told.wait(AT_ONCE_S) == 0, told.stderr
    total = json.loads(told.line(1.0) or "")["total"]
    rows = before.prompt_tokens + len(before.token_ids) - 1
    assert total["sessions"] == 2
    assert total["decode_rows"] + total["prefill_rows"] == 2 * rows
    assert total["decode_row_layers"] + total["prefill_row_layers"] == 2 * rows * 30
    assert total["online_s"] > 0


def stopped_at_once(server: Any) -> None:
    server.note_children()
    server.signal(signal.SIGINT)
    assert server.wait(AT_ONCE_S) == 130
    server.event("stopped", 1.0)
    assert server.stderr == ""


def test_ctrl_c_while_it_joins_and_nobody_answers(launcher: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"/ip4/127.0.0.1/tcp/{silent.getsockname()[1]}"
        server = launcher.server("0:10", join=f"{where}/p2p/12D3KooWHovAbTuTqJjNT18ju5sXfBb5dDqi9W4Yf18qANtBkhmJ")
        while server.event("waiting")["what"] != f"joining the swarm through {where}":
            server.events.clear()
        stopped_at_once(server)


def test_ctrl_c_while_it_loads(launcher: Any) -> None:
    server = launcher.server("0:10", anew=True)
    server.event("progress")
    stopped_at_once(server)


def test_ctrl_c_while_it_waits_for_its_hours(launcher: Any) -> None:
    day_after_tomorrow = DAYS[(time.localtime().tm_wday + 2) % 7]
    server = launcher.server("0:10", "--schedule", f"{day_after_tomorrow} 10:00-11:00")
    assert server.event("resting")["why"] == "schedule"
    stopped_at_once(server)
