"""``swarm doctor``: looks at everything a server or a client needs, and says what is wrong and how to mend it."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from functools import partial
from importlib import import_module
from pathlib import Path

from swarm.cli.apart import apart
from swarm.cli.checkup.compute import look_at_device
from swarm.cli.checkup.findings import Check, Finding, Level, Report, error, run_checks
from swarm.cli.checkup.machine import look_at_memory, look_at_open_files, look_at_packages
from swarm.cli.checkup.model import Wish, look_at_disk, look_at_model, open_model
from swarm.cli.checkup.storage import check_key, check_reputation, look_at_folders
from swarm.cli.joining import add_joining, lan_of
from swarm.cli.options.checks import check_addresses
from swarm.client.connect import peers_to_join
from swarm.core.errors import ConfigError
from swarm.core.numerics import QUANTIZATIONS
from swarm.models.files import ModelFiles
from swarm.runtime.clock import SystemClock
from swarm.runtime.folders import data_folder
from swarm.runtime.logs import printable
from swarm.runtime.reputation import ReputationStore

DEFAULT_LIMIT_S = 30.0
SICK = 1
"""Exit code if anything is an error."""
EXAMPLES = """\
examples:
  this machine alone:
    python -m swarm doctor
  before a server joins: the same options that the server will get
    python -m swarm doctor --model demo --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW... --port 31337
  for a program, or for a bug report (it says nothing secret):
    python -m swarm doctor --json

What a file or variables say of the server counts for the doctor too, so after that `doctor` alone will do.

Each line is ok, a warning, an error, or unknown (what could not be checked, and how to check it by hand), with the fix
below it. Nothing is changed, no weights are fetched, and nothing is announced to the swarm. Exit code: 0, or 1 if there
is an error.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Check everything that a server or a client needs, and say how to mend what is wrong."
    parser.epilog = EXAMPLES
    parser.set_defaults(like="server")
    what = parser.add_argument_group("what is meant to run here")
    what.add_argument("--model", help="demo, a folder, or a Hugging Face id, optionally ID@REVISION: can it be opened, "
                      "does it fit, who serves it (default: not checked)")  # fmt: skip
    what.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")
    what.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (default: auto)")
    what.add_argument("--quantization", default="none", choices=QUANTIZATIONS, help="whether bitsandbytes can do it")
    what.add_argument("--speed", action="store_true", help="measure how fast the device reads weights (a second)")
    where = parser.add_argument_group("where it would be")
    add_joining(where)
    where.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")
    where.add_argument("--port", type=int, default=0, help="TCP port of the server: is it free, can strangers reach it "
                       "(default: any free one)")  # fmt: skip
    where.add_argument("--announce", nargs="+", default=[], metavar="ADDRESS", help="as for the server")
    where.add_argument("--identity", type=Path, help="the server's key file (default: in the data folder)")
    parser.add_argument("--limit", type=float, default=DEFAULT_LIMIT_S, metavar="S",
                        help=f"how long one check may take (default: {DEFAULT_LIMIT_S:g} s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def run(options: argparse.Namespace) -> int:
    if not 0 < options.limit < float("inf"):
        raise ConfigError(f"--limit is {options.limit}", hint="give seconds, more than 0")
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port} is outside 0 to 65535", hint="0 takes any free one")
    check_addresses("--announce", options.announce, with_peer=False)
    told = JsonReport() if options.json else TextReport()
    asyncio.run(examine(options, told))
    told.end()
    return SICK if told.counts[Level.ERROR] else 0


class TextReport:
    """Findings as lines for a person, the fix below."""

    def __init__(self) -> None:
        self.counts: Counter[Level] = Counter()

    def __call__(self, finding: Finding) -> None:
        """Tell one finding, in place of a home folder's name its sign."""
        self.counts[finding.level] += 1
        self.tell(finding.level, finding.check, _homeless(finding.what), _homeless(finding.fix))

    def tell(self, level: Level, check: str, what: str, fix: str) -> None:
        print(f"{level:<8} {check:<13} {printable(what)}", flush=True)
        if fix:
            print(f"{'':<22} -> {printable(fix)}", flush=True)

    def end(self) -> None:
        counts = self.counts
        many = {Level.ERROR: "s", Level.WARNING: "s"}
        parts = [f"{counts[level]} {level}{many.get(level, '') if counts[level] != 1 else ''}" for level in Level]
        print(", ".join(parts))


class JsonReport(TextReport):
    """The same, one object a line."""

    def tell(self, level: Level, check: str, what: str, fix: str) -> None:
        line = {
            "event": "check",
            "time": round(time.time(), 3),
            "check": check,
            "level": level,
            "what": what,
            "fix": fix,
        }
        print(json.dumps(line), flush=True)

    def end(self) -> None:
        counts = {level.value: self.counts[level] for level in Level}
        print(json.dumps({"event": "summary", "time": round(time.time(), 3), **counts}))


def _homeless(text: str) -> str:
    """A home folder tells a person's name, which is nobody's business in a bug report."""
    try:
        home = str(Path.home())
    except RuntimeError:
        return text
    return text.replace(home, "~") if len(home) > 1 else text


async def examine(options: argparse.Namespace, report: Report) -> None:
    """Run every check, side by side as far as they do not need each other."""
    wish = Wish(options.model or "", options.revision, options.device, options.quantization)
    opened: asyncio.Future[ModelFiles | None] = asyncio.ensure_future(_open(wish))
    device = partial(look_at_device, options.device, options.quantization, speed=options.speed)
    checks = [
        Check("python", look_at_packages),
        Check("memory", look_at_memory),
        Check("open files", look_at_open_files),
        Check("folders", look_at_folders),
        Check("key", partial(_look_at_key, options.identity)),
        Check("reputation", _look_at_reputation),
        Check("torch", device),
        Check("model", partial(_look_at_model, wish, opened)) if options.model else Check("disk", look_at_disk),
    ]
    await asyncio.gather(run_checks(checks, report, limit_s=options.limit), _look_outside(options, opened, report))
    opened.cancel()
    await asyncio.gather(opened, return_exceptions=True)


async def _open(wish: Wish) -> ModelFiles | None:
    return await open_model(wish) if wish.model else None


async def _look_at_model(wish: Wish, opened: asyncio.Future[ModelFiles | None], report: Report) -> None:
    await look_at_model(wish, await asyncio.shield(opened), report)


async def _look_at_key(path: Path | None, report: Report) -> None:
    report(check_key(path or data_folder() / "identity.key"))


async def _look_at_reputation(report: Report) -> None:
    report(await apart(lambda: check_reputation(ReputationStore.default_path())))


async def _look_outside(options: argparse.Namespace, opened: asyncio.Future[ModelFiles | None], report: Report) -> None:
    async def look(report: Report) -> None:
        try:  # hivemind takes seconds
            network = await apart(lambda: import_module("swarm.cli.checkup.network"))
        except (ImportError, OSError) as fault:
            what = f"hivemind cannot be imported: {' '.join(str(fault).split())[:300]}"
            report(
                error("network", what, "it needs torch: mend that first, else pip install --force-reinstall hivemind")
            )
            return
        peers = tuple(options.initial_peers)
        if options.lan:
            peers = await peers_to_join(peers, lan=lan_of(options), host=options.host)
        place = network.Place(options.host, options.port, tuple(options.announce), peers)
        await network.Network(place, SystemClock(), report, options.limit, options.model, opened).look()

    await run_checks([Check("network", look)], report, limit_s=5 * options.limit)
