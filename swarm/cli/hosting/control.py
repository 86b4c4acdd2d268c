"""What `pause` and `resume` share: they tell a server of this machine to rest, and to go on, and wait until it does."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarm.cli.hosting.limits import local_time
from swarm.cli.output.live_line import LiveLine, waiting
from swarm.core.errors import ConfigError, NetworkError
from swarm.runtime.folders import data_folder
from swarm.runtime.identity import holder_of
from swarm.runtime.server_state import ServerState

LOOK_EVERY_S = 0.1
DEFAULT_WAIT_S = 90.0
EPILOG = """\
examples:
  python -m swarm pause                                 # the server that runs with this user's usual key
  python -m swarm pause --identity second.key           # another one
  python -m swarm resume

Paused, a server takes no new sessions: those that run may finish (its --drain-timeout), the rest go on at other
servers. Its layers stay in memory and its place in the swarm is kept, but nobody is routed over it; others see it as
draining. A pause ends with `resume`, or with the process. `kill -USR1` and `kill -USR2` do the same.
"""


def add_control(parser: argparse.ArgumentParser) -> None:
    """Which server, and how long to wait for it."""
    parser.epilog = EPILOG
    parser.add_argument("--identity", type=Path, metavar="FILE", help="the server's key file (default: in the data "
                        "folder)")  # fmt: skip
    parser.add_argument("--wait", type=float, default=DEFAULT_WAIT_S, metavar="S", help="how long to wait until it has "
                        "done so; 0: not at all (default: 90 s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def tell(options: argparse.Namespace, *, resume: bool) -> int:
    """Tell the server, wait, and print what it says. Raises ``ConfigError`` if there is none."""
    if not 0 <= options.wait < float("inf"):
        raise ConfigError(f"--wait is {options.wait}", hint="give seconds from 0 on")
    path = options.identity or data_folder() / "identity.key"
    pid = holder_of(path)
    if pid is None:
        raise ConfigError(f"no server runs with the key {path}", hint="name the server's own with --identity")
    state = ServerState.of(path)
    if not state.read(pid):  # the signal would end a process that does not know what it means
        raise ConfigError(f"process {pid} has the key {path}, and is no server", hint="only servers rest")
    try:
        os.kill(pid, signal.SIGUSR2 if resume else signal.SIGUSR1)
    except PermissionError as error:
        raise ConfigError(f"process {pid} belongs to another user", hint="ask as that one") from error
    except ProcessLookupError as error:
        raise ConfigError(f"the server with the key {path} has just gone") from error
    said = _await(lambda: state.read(pid), resume=resume, within_s=options.wait, alive=lambda: holder_of(path) == pid)
    text = state_text(said, resume=resume, whose=key_option(options.identity))
    print(json.dumps(said) if options.json else text)
    return 0


def key_option(identity: Path | None) -> str:
    """The option that names the server with this key to another command; nothing for the usual key."""
    return f" --identity {shlex.quote(str(identity))}" if identity else ""


def _await(look: Callable[[], dict[str, Any]], *, resume: bool, within_s: float, alive: Callable[[], bool]) -> Any:
    """What the server says once it has done as it was told, or after ``within_s``."""
    until_s = time.monotonic() + within_s
    with waiting(LiveLine(sys.stderr), "waiting for the server"):
        while not done(said := look(), resume=resume) and time.monotonic() < until_s:
            if not alive():
                raise NetworkError("the server has gone meanwhile")
            time.sleep(LOOK_EVERY_S)
    return said


def done(said: dict[str, Any], *, resume: bool) -> bool:
    """True if a server that says this rests, or serves, as it was told; one that is not ready yet will."""
    if not said or said["state"] == "starting":
        return True
    return (said["state"] in ("serving", "resting", "waiting")) if resume else said["state"] == "paused"


def state_text(said: dict[str, Any], *, resume: bool, whose: str = "") -> str:
    """What a server says, for people; ``whose`` is the option that names it to another command."""
    state, until_s = said.get("state"), said.get("until")
    if state == "serving":
        return "Serving again." if resume else "Told to pause; it has not begun to yet."
    if state == "paused":
        return "Told to go on; it is still paused." if resume else f"Paused. `python -m swarm resume{whose}` goes on."
    if state in ("resting", "waiting"):
        hours = f" until {local_time(until_s)}" if isinstance(until_s, int | float) and 0 <= until_s < 1e11 else ""
        return (
            f"No longer paused, but outside its hours{hours}." if resume else f"Paused; outside its hours{hours} too."
        )
    if state == "draining":
        return "Told to pause: running sessions may finish first."
    return (
        "Told; the server is not ready yet, and will serve then." if resume else "Told; it will pause once it is ready."
    )
