"""The command line's entry: picks the command, and turns every error into one line and an exit code."""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Collection, Sequence
from functools import cache
from importlib import import_module

from swarm import __version__
from swarm.cli.early import listen
from swarm.cli.options.parser import CommandParser, add_config_options, log_sources, show_config
from swarm.cli.options.settings import add_opposites, key_of, settable
from swarm.core.errors import CapacityError, MisuseError, NetworkError, PeerError, SwarmError
from swarm.runtime.logs import LEVELS, printable, setup_logging

COMMANDS = {
    "doctor": ("doctor", "whether this machine is fit for it: what is wrong, and how to mend it"),
    "server": ("serve", "hold a span of a model's layers and answer for them"),
    "pause": ("pause", "have a server of this machine rest for a while"),
    "resume": ("resume", "have a paused server go on"),
    "contributed": ("contributed", "what this machine's servers have done for their swarms"),
    "bootstrap": ("bootstrap", "a stable first peer that others join through, without any layers"),
    "gateway": ("gateway", "let OpenAI's clients and a chat page ask a swarm"),
    "health": ("health", "a page that follows a swarm, also as JSON and for Prometheus"),
    "generate": ("generate", "answer one prompt"),
    "chat": ("chat", "talk with the model"),
    "status": ("status", "who serves which layers of a swarm, and how fast"),
    "route": ("route", "what if: the fastest chain through a described cluster"),
    "plan": ("plan", "what if: who of a described cluster should hold which layers"),
    "audit-rate": ("audit_rate", "what if: how often to audit so that cheating does not pay"),
    "calibrate": ("calibrate", "measure a model's hidden states, for verifying servers"),
    "verifier": ("verifier", "challenge servers for as long as it runs, and eject who computes wrongly"),
    "challenge": ("challenge", "challenge one server once, and see the verdict window by window"),
    "reputation": ("reputation", "whom this machine has audited, struck or ejected, and why"),
    "verify-proof": ("verify_proof", "whether a file proves that a server cheated"),
    "fetch": ("fetch", "download a model and print its folder"),
    "completion": ("completion", "a script that completes commands and options in a shell"),
    "demo": ("demo", "three servers on this machine that answer a prompt together"),
}

EPILOG = """\
who starts where:
  a volunteer      python -m swarm doctor, then server: hold some layers, be READY for strangers
  a developer      python -m swarm generate "Hello" --initial-peers ADDRESS, or gateway for OpenAI's clients
  an onlooker      python -m swarm status --initial-peers ADDRESS, or health for a page that follows a swarm
  who checks       python -m swarm verifier challenges servers; verify-proof and reputation show what was found
  a swarm's host   python -m swarm bootstrap, at an address that stays: others join through it
  a first trial    python -m swarm demo: three servers on this machine, and nobody else's

An ADDRESS is what a server or `bootstrap` prints: /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...
`COMMAND --help` explains each, with examples. Every option can also be set in a file or by a variable of the
environment: docs/configuration.md, and `COMMAND --show-config` shows what counts.
"""

TAKEN_BACK = "A flag that a file or a variable has set is taken back by --no-FLAG; one called --no-FLAG, by --FLAG."

EXIT_CODES: tuple[tuple[type[SwarmError], int], ...] = (
    (MisuseError, 2),
    (CapacityError, 3),
    (NetworkError, 4),
    (PeerError, 5),
)
INTERRUPTED = 130
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS)

log = logging.getLogger(__name__)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code: 0, 1 ours, 2 misuse, 3 no capacity, 4 network, 5 a peer, 130 Ctrl-C."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    return _run(build_parser(arguments), arguments)


def serve(arguments: Sequence[str]) -> int:
    """``python -m swarm.server``: the server command under its own name."""
    return _alone("server", arguments)


def gateway(arguments: Sequence[str]) -> int:
    """``python -m swarm.gateway``: the gateway command under its own name."""
    return _alone("gateway", arguments)


def health(arguments: Sequence[str]) -> int:
    """``python -m swarm.health``: the health command under its own name."""
    return _alone("health", arguments)


def _alone(name: str, arguments: Sequence[str]) -> int:
    parser = CommandParser(prog=f"python -m swarm.{name}")
    _install(name, parser)
    return _run(parser, arguments)


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    _mend_streams()
    try:
        options = parser.parse_args(arguments)
    except SwarmError as error:
        return _fail(error, 0)
    try:
        listen()
        setup_logging(options.log_level, verbosity=options.verbose, json_lines=getattr(options, "json", False))
        log_sources(options)
        run: Callable[[argparse.Namespace], int] = options.run
        return run(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return 1
    except SwarmError as error:
        return _fail(error, options.verbose)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in DISK_ERRORS:
            full = SwarmError(f"cannot write: {error.strerror}", hint="free disk space, or send the output elsewhere")
            return _fail(full, options.verbose)
        bug = SwarmError(f"this is a bug: {type(error).__name__}: {error}", hint="-v shows where")
        bug.__cause__ = error
        return _fail(bug, options.verbose)


def _mend_streams() -> None:
    """A standard stream that the caller closed reads empty and swallows; what the terminal cannot show is escaped."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115  open as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """The parser; only the chosen command's module is imported, so ``--help`` of one does not load the others."""
    chosen = next((word for word in arguments if not word.startswith("-")), "")
    return _parser("python -m swarm", {chosen} & COMMANDS.keys())


def full_parser(prog: str) -> argparse.ArgumentParser:
    """The parser with every command's options."""
    return _parser(prog, COMMANDS.keys())


def _parser(prog: str, installed: Collection[str]) -> argparse.ArgumentParser:
    parser = CommandParser(
        prog=prog,
        description="Answer prompts on a language model that many machines hold together.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"swarm {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (_, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name in installed:
            _install(name, command)
    return parser


def _install(name: str, parser: CommandParser) -> None:
    module = import_module(f"swarm.cli.commands.{COMMANDS[name][0]}")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    parser.set_defaults(run=_runner(name, parser, module.run))
    common = parser.add_argument_group("settings and messages", TAKEN_BACK)
    add_config_options(common)
    common.add_argument("-v", "--verbose", action="count", default=0, help="debug messages and tracebacks; -vv: all")
    common.add_argument("--log-level", choices=LEVELS, default="warning", help="from which level on (default: warning)")
    add_opposites(parser)
    parser.command, parser.commands, parser.others = name, COMMANDS.keys(), _every_key


def _runner(
    name: str, parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int]
) -> Callable[[argparse.Namespace], int]:
    def shown_or_run(options: argparse.Namespace) -> int:
        if options.show_config:
            print(show_config(parser, options, name))
            return 0
        return run(options)

    return shown_or_run


@cache
def _every_key() -> frozenset[str]:
    """The keys that any command has; imports them all."""
    found: set[str] = set()
    for name in COMMANDS:
        _install(name, parser := CommandParser())
        found |= {key_of(action) for action in settable(parser)}
    return frozenset(found)


def _fail(error: SwarmError, verbose: int) -> int:
    if verbose:
        log.error("traceback", exc_info=error)
    print(f"error: {printable(str(error))}", file=sys.stderr)
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
