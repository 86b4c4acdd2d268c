"""The command line's entry: picks the command, and turns every error into one line and an exit code."""

from __future__ import annotations

import argparse
import errno
import io
import logging
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module

from swarm import __version__
from swarm.cli.early import listen
from swarm.core.errors import CapacityError, MisuseError, NetworkError, PeerError, SwarmError
from swarm.runtime.logs import LEVELS, printable, setup_logging

COMMANDS = {
    "server": ("swarm.cli.serve", "hold a span of a model's layers and answer for them"),
    "gateway": ("swarm.cli.gateway", "let OpenAI's clients and a chat page ask a swarm"),
    "generate": ("swarm.cli.generate", "answer one prompt"),
    "chat": ("swarm.cli.chat", "talk with the model"),
    "status": ("swarm.cli.status", "who serves which layers of a swarm, and how fast"),
    "route": ("swarm.cli.route", "what if: the fastest chain through a described cluster"),
    "plan": ("swarm.cli.plan", "what if: who of a described cluster should hold which layers"),
    "audit-rate": ("swarm.cli.audit_rate", "what if: how often to audit so that cheating does not pay"),
    "calibrate": ("swarm.cli.calibrate", "measure a model's hidden states, for verifying servers"),
    "verifier": ("swarm.cli.verifier", "challenge servers for as long as it runs, and eject who computes wrongly"),
    "challenge": ("swarm.cli.challenge", "challenge one server once, and see the verdict window by window"),
    "reputation": ("swarm.cli.reputation", "whom this machine has audited, struck or ejected, and why"),
    "verify-proof": ("swarm.cli.verify_proof", "whether a file proves that a server cheated"),
    "fetch": ("swarm.cli.fetch", "download a model and print its folder"),
    "demo": ("swarm.cli.demo", "three servers on this machine that answer a prompt together"),
}

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


def _alone(name: str, arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m swarm.{name}")
    _install(name, parser)
    return _run(parser, arguments)


def _run(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> int:
    _mend_streams()
    options = parser.parse_args(arguments)
    try:
        listen()
        setup_logging(options.log_level, verbosity=options.verbose, json_lines=getattr(options, "json", False))
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
    parser = argparse.ArgumentParser(
        prog="python -m swarm",
        description="Answer prompts on a language model that many machines hold together.",
        epilog="`COMMAND --help` explains each, with examples. Volunteers start with `server`, everybody else with "
        "`generate`; `status` shows a swarm, `route` and `plan` answer what-if questions without any network.",
    )
    parser.add_argument("--version", action="version", version=f"swarm {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    chosen = next((word for word in arguments if not word.startswith("-")), "")
    for name, (_, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == chosen:
            _install(name, command)
    return parser


def _install(name: str, parser: argparse.ArgumentParser) -> None:
    module = import_module(COMMANDS[name][0])
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    module.add_arguments(parser)
    parser.set_defaults(run=module.run)
    common = parser.add_argument_group("messages")
    common.add_argument("-v", "--verbose", action="count", default=0, help="debug messages and tracebacks; -vv: all")
    common.add_argument("--log-level", choices=LEVELS, default="warning", help="from which level on (default: warning)")


def _fail(error: SwarmError, verbose: int) -> int:
    if verbose:
        log.error("traceback", exc_info=error)
    print(f"error: {printable(str(error))}", file=sys.stderr)
    return next((code for kind, code in EXIT_CODES if isinstance(error, kind)), 1)
