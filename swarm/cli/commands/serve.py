"""``python -m swarm.server``: load a span, join the swarm, prove that it serves, and leave in good order."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from swarm.cli.hosting.limits import add_limits, check_limits
from swarm.cli.joining import add_joining, check_joining
from swarm.cli.options.checks import AUTO, check_addresses, read_max_memory
from swarm.cli.output.console import Console, HumanConsole, JsonConsole
from swarm.cli.output.tables import option_name
from swarm.cli.signals import STOPPED_EARLY, PauseSwitch, stop_imports
from swarm.core.errors import ConfigError, SwarmError
from swarm.core.ids import ModelId
from swarm.core.limits import MAX_NAME_CHARS
from swarm.core.numerics import DTYPE_BYTES, QUANTIZATIONS
from swarm.core.spans import Span
from swarm.models.resolve import resolve
from swarm.runtime.calibrations import find_calibration, read_calibration
from swarm.runtime.folders import data_folder
from swarm.runtime.identity import IdentityLock, load_or_create
from swarm.runtime.server_state import ServerState
from swarm.server.config import ServerConfig
from swarm.server.placing_config import PlacingConfig
from swarm.verification.verdicts.calibration import Calibration

DEFAULTS = ServerConfig()
PLACING = PlacingConfig()
RIVALS = (
    ("initial_peers", "new_swarm"),
    ("lan", "new_swarm"),
    ("blocks", "num_blocks"),
    ("calibration", "no_receipts"),
)
"""Options that exclude each other: typed, one of them overrides the other of a file or a variable."""
EXAMPLES = """\
examples:
  is this machine fit for it? (the same options, before the server gets them)
    python -m swarm doctor --model demo
  the first server of a new swarm, holding ten layers of the demo model:
    python -m swarm.server --model demo --num-blocks 10 --new-swarm
  the next one, joining through the address that the first one printed; it takes the layers that need it most:
    python -m swarm.server --model demo --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...
  a second server on the same machine needs a key of its own:
    ... --identity ~/second.key

Your machine sees the activations of every prompt that passes through it, and whoever holds the first
layers can recover the text. Others can see yours in the same way: nothing here is confidential.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Hold a span of a model's layers and answer for them, until Ctrl-C."
    parser.epilog = EXAMPLES
    parser.set_defaults(rivals=RIVALS)
    what = parser.add_argument_group("what to serve")
    what.add_argument(
        "--model", default="demo", help="demo (default), a folder, or a Hugging Face id, optionally ID@REVISION"
    )
    what.add_argument("--blocks", default=AUTO, metavar="A:B", help="layers to hold, half-open: 0:10 is layers 0 to 9 "
                      "(default: auto, where the swarm needs them most)")  # fmt: skip
    what.add_argument("--num-blocks", type=int, metavar="N", help="with auto: how many layers at most (default: as "
                      "many as fit into memory)")  # fmt: skip
    what.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")
    what.add_argument("--no-head", action="store_true", help="do not hold the LM head, even with the last layer")
    where = parser.add_argument_group("whom to join")
    add_joining(where)
    where.add_argument("--new-swarm", action="store_true", help="start a swarm of one's own, for others to join")
    where.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")
    where.add_argument("--port", type=int, default=0, help="TCP port to listen on (default: any free one)")
    where.add_argument("--announce", nargs="+", default=[], metavar="ADDRESS", help="addresses to tell others instead "
                       "of those it finds, like /dns4/me.example.org/tcp/31337")  # fmt: skip
    where.add_argument("--relay", nargs="+", default=[], metavar="ADDRESS", help="behind a NAT: peers that lend this "
                       "one their address, as most servers and `bootstrap` do")  # fmt: skip
    where.add_argument("--identity", type=Path, help="key file; made if missing (default: in the data folder)")
    where.add_argument("--public-name", default="", help="what others see beside the peer id")
    where.add_argument("--region", default="", help="where it stands, in any words, like eu-west: "
                       "pipelines stay inside a region")  # fmt: skip
    _add_moving(parser)
    _add_computing(parser)
    _add_signing(parser)
    _add_telling(parser)
    add_limits(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def _add_moving(parser: argparse.ArgumentParser) -> None:
    moving = parser.add_argument_group("with auto: when to move to other layers")
    moving.add_argument("--no-rebalance", action="store_true", help="never move")
    moving.add_argument("--rebalance-every", type=float, default=PLACING.rebalance_every_s, metavar="S",
                        help="how often to look whether it is needed elsewhere (default: 30 s)")  # fmt: skip
    moving.add_argument("--move-gain", type=float, default=PLACING.options.move_threshold, metavar="X",
                        help="least relative gain of the swarm that is worth a move (default: 0.15); a layer that "
                        "nobody holds always is")  # fmt: skip
    moving.add_argument("--claim-wait", type=float, default=PLACING.look_s, metavar="S", help="between two looks at "
                        "what others mean to hold, before loading; longer than a write to the directory takes to be "
                        "seen (default: 3 s)")  # fmt: skip


def _add_computing(parser: argparse.ArgumentParser) -> None:
    how = parser.add_argument_group("how to compute")
    how.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (ROCm counts as cuda; "
                     "default: auto, a GPU if there is one)")  # fmt: skip
    how.add_argument("--dtype", default="auto", choices=("auto", *DTYPE_BYTES), help="auto: the checkpoint's own")
    how.add_argument("--quantization", default="none", choices=QUANTIZATIONS, help="of the weights, by "
                     "bitsandbytes: int8 halves, nf4 quarters what 16 bit take (default: none)")  # fmt: skip
    how.add_argument("--kv-tokens", type=int, metavar="N", help="KV budget over all sessions (default: a quarter of "
                     "free memory, of which --replay-mb is no part)")  # fmt: skip
    how.add_argument("--replay-mb", type=float, metavar="MB", help="main memory for rows that were sent on, to feed "
                     "who takes over from the next server, and for audits (default: room for all of the KV's, hidden "
                     "size times dtype and 194 bytes each; 0: nothing, healing is slower and audits of this server "
                     "fail)")  # fmt: skip
    how.add_argument("--max-memory", nargs="+", default=[], metavar="DEVICE=SIZE", help="spread the span over several "
                     "devices, GPUs first: 0=8GB 1=8GB cpu=16GB")  # fmt: skip
    how.add_argument("--threads", type=int, metavar="N", help="CPU threads of one forward (default: torch's choice)")
    how.add_argument("--max-sessions", type=int, default=DEFAULTS.max_sessions, metavar="N",
                     help=f"sessions at once (default: {DEFAULTS.max_sessions})")  # fmt: skip
    how.add_argument("--idle-timeout", type=float, default=DEFAULTS.idle_timeout_s, metavar="S",
                     help="close a session without a step for this long (default: 300 s)")  # fmt: skip
    how.add_argument("--drain-timeout", type=float, default=DEFAULTS.drain_timeout_s, metavar="S",
                     help="how long Ctrl-C lets running sessions finish (default: 30 s)")  # fmt: skip


def _add_signing(parser: argparse.ArgumentParser) -> None:
    signing = parser.add_argument_group("receipts, by which clients know who answered")
    signing.add_argument("--calibration", type=Path, metavar="FILE", help="what the model's rows look like, for the "
                         "sketches in receipts (default: the one that `swarm calibrate` stored, if any)")  # fmt: skip
    signing.add_argument("--no-receipts", action="store_true", help="sign nothing; clients that verify go elsewhere")
    signing.add_argument("--audit-hold", type=float, default=DEFAULTS.audit_hold_s, metavar="S",
                         help="keep the rows of closed sessions so long, in what running ones leave of --replay-mb "
                         "(default: 600 s); clients cannot audit later")  # fmt: skip


def _add_telling(parser: argparse.ArgumentParser) -> None:
    telling = parser.add_argument_group("what it tells of itself")
    telling.add_argument("--no-stats", action="store_true", help="refuse the question how this server is. Otherwise "
                         "anybody who asks (the health page does) hears, at most once a second: counts of sessions, "
                         "rows and bytes, how long forwards and steps took, round trips to next servers, and for each "
                         "running chain, under a label that leads back to nobody, where its time goes. Never who its "
                         "client is, nor any text")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    console: Console = JsonConsole(sys.stdout) if options.json else HumanConsole(sys.stdout)
    try:
        check(options)
        code = _serve(options, console)
    except (KeyboardInterrupt, SystemExit):
        console.event("stopped", "Stopped before it was ready.")
        code = STOPPED_EARLY
    except SwarmError as error:
        if options.json:
            console.event("failed", str(error), message=error.message, hint=error.hint)
        raise
    return code


def _serve(options: argparse.Namespace, console: Console) -> int:
    path = options.identity or data_folder() / "identity.key"
    switch = PauseSwitch()
    with IdentityLock(path):
        ServerState.of(path).tell("starting")  # so that `pause` knows that it is a server which has the key
        identity = load_or_create(path)
        with console.waiting(f"opening the model {options.model}"):
            files = resolve(options.model, revision=options.revision, progress=console.progress)
        calibration = calibration_for(files.model_id, options)
        told = None if options.blocks == AUTO else Span.parse(options.blocks).within(files.layer_count)
        most = f"up to {options.num_blocks} layers" if options.num_blocks else "as many layers as fit"
        console.event(
            "starting",
            f"Starting a server for {most if told is None else f'layers {told}'} of {files.name}…",
            span=None if told is None else [told.start, told.end],
            receipts=not options.no_receipts,
            calibration=None if calibration is None else calibration.digest().hex(),
        )
        with stop_imports(), console.waiting("loading torch and libp2p"):
            from swarm.cli.hosting.host import (
                Host,  # torch and libp2p take seconds to import: mistakes are told before that
            )

        return asyncio.run(Host(options, console, files, identity, path, calibration, switch).serve())


def calibration_for(model: ModelId, options: argparse.Namespace) -> Calibration | None:
    """The file that was named, else what is stored for ``model``, if anything; None where nothing is signed.

    Raises ``ModelError`` for a file that is missing, damaged, or another model's.
    """
    if options.no_receipts:
        return None
    if options.calibration is not None:
        return read_calibration(options.calibration, model)
    try:
        return find_calibration(model)
    except ConfigError:
        return None  # a user without a home has stored nothing


def check(options: argparse.Namespace) -> None:
    """Raise ``ConfigError`` for what is wrong whatever the model and the network say."""
    _check_way_in(options)
    if options.blocks != AUTO:
        Span.parse(options.blocks)
        if options.num_blocks is not None:
            raise ConfigError("--num-blocks goes with --blocks auto", hint="leave one of the two out")
    read_max_memory(options.max_memory)
    check_limits(options)
    check_addresses("--relay", options.relay)
    check_addresses("--announce", options.announce, with_peer=False)
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port} is outside 0 to 65535", hint="0 takes any free one")
    _check_figures(options)
    for flag in ("public_name", "region"):
        name = getattr(options, flag)
        if len(name) > MAX_NAME_CHARS or not name.isprintable():
            raise ConfigError(f"{option_name(flag)} must be printable and at most {MAX_NAME_CHARS} characters long")


def _check_way_in(options: argparse.Namespace) -> None:
    """A server joins, or starts a swarm; with ``--lan`` it does whichever the local network asks for."""
    check_joining(options, alone=True)
    if options.new_swarm and options.lan:
        raise ConfigError(
            "--lan joins who is near, and starts a swarm where nobody is", hint="leave one of --lan and --new-swarm out"
        )
    if bool(options.initial_peers or options.lan) == options.new_swarm:
        both = "not both of" if options.new_swarm else "either"
        raise ConfigError(
            f"a server needs {both} --initial-peers {'and' if options.new_swarm else 'or'} --new-swarm",
            hint="join with an address another server printed, find one with --lan, or start a swarm of your own with "
            "--new-swarm",
        )


def _check_figures(options: argparse.Namespace) -> None:
    for flag in ("kv_tokens", "max_sessions", "threads", "num_blocks"):
        value = getattr(options, flag)
        if value is not None and value < 1:
            raise ConfigError(f"{option_name(flag)} is {value}", hint="give at least 1")
    if options.no_receipts and options.calibration is not None:
        raise ConfigError("--calibration is for receipts", hint="leave out --no-receipts, or the calibration")
    for flag in ("idle_timeout", "drain_timeout", "audit_hold"):
        if not getattr(options, flag) >= 0:  # a NaN fails this too
            raise ConfigError(f"{option_name(flag)} is {getattr(options, flag)}", hint="give seconds from 0 on")
    if options.replay_mb is not None and not 0 <= options.replay_mb < float("inf"):
        raise ConfigError(f"--replay-mb is {options.replay_mb}", hint="give 10^6 bytes from 0 on")
    for flag in ("rebalance_every", "claim_wait", "move_gain"):
        if not 0 < getattr(options, flag) < float("inf"):
            raise ConfigError(f"{option_name(flag)} is {getattr(options, flag)}", hint="give a number above 0")
