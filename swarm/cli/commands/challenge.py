"""``swarm challenge``: one challenge to one server, and its verdict window by window."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.cli.apart import apart, leave_process
from swarm.cli.challenging import Going, Steps
from swarm.cli.joining import joining_text
from swarm.cli.output.console import Console, HumanConsole, JsonConsole
from swarm.cli.output.verdicts import figures, finding_json, name_of, named, windows_text
from swarm.cli.signals import STOPPED_EARLY, Signals, first_of
from swarm.cli.trusted import Trust, add_trust_arguments, check_trust, interrupted
from swarm.client.auditing.accusing import prove
from swarm.client.auditing.audit import AuditMeans
from swarm.client.auditing.challenges import Finding, Kind, challenge_server
from swarm.client.auditing.reference import OwnReference
from swarm.client.auditing.suspects import Suspect, sort_servers
from swarm.client.auditing.traffic import seed_of
from swarm.client.plan import draw_secret
from swarm.core.errors import CapacityError, ConfigError, MisuseError
from swarm.core.listing import Listing
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.models.progress import human_bytes
from swarm.verification.challenges.challenge import Challenge

LEAVE_S = 15.0
"""How long Ctrl-C lets the session and the client end in good order."""
EXIT_CODES: dict[Kind, int] = {
    "passed": 0,
    "soft": 0,
    "failed": 1,
    "equivocated": 1,
    "undecided": 3,
    "unanswered": 4,
}
log = logging.getLogger(__name__)
EXAMPLES = """\
examples:
  was it computed right? with weights of the server's own layers, loaded here for this:
    python -m swarm challenge --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW... --peer 12D3KooW... --seed 1
  keep the proof, if there is one, for others to check with `python -m swarm verify-proof proof.swarm`:
    ... --out proof.swarm

Anyone with the same model, seed and --prompts sends the same challenge. A server that expects it can
prepare: choose the seed by dice if that matters, or leave it out.

e is how far what the server added to each row is from what the same layers here add, in units of how
much they usually do. Up to 0.045 a window passes, above 0.1 it fails; honest servers stay below 0.025
whatever their hardware, and a skipped layer shows as 0.4 or more.

exit code: 0 it passed (perhaps softly), 1 it failed, 2 something is wrong with the command, 3 it cannot
be checked (the message says why), 4 it did not answer, 130 Ctrl-C before anything was decided. Nothing
is remembered of it: `verifier` does that.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Send one challenge to one server and compare what it answers with own weights."
    parser.epilog = EXAMPLES
    what = parser.add_argument_group("what to ask whom")
    what.add_argument("--peer", required=True, metavar="ID", help="whom: a peer id, or the end of one as `status` "
                      "shows it")  # fmt: skip
    what.add_argument("--seed", metavar="N", help="what decides everything about the challenge: a whole number, or 64 "
                      "hexadecimal digits (default: drawn and told)")  # fmt: skip
    what.add_argument("--blocks", metavar="A:B", help="which of its layers (default: all that it holds)")
    what.add_argument("--out", type=Path, metavar="FILE", help="where to write the proof, if it fails")
    add_trust_arguments(parser)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(options: argparse.Namespace) -> int:
    check_trust(options)
    seed = draw_secret() if options.seed is None else seed_of(options.seed)
    blocks = None if options.blocks is None else Span.parse(options.blocks)
    console: Console = JsonConsole(sys.stderr) if options.json else HumanConsole(sys.stderr)
    try:
        trust = Trust.of(options, console, interval_s=0.0)
        found = asyncio.run(Asking(trust, trust.script.challenge(seed), blocks, console).run())
    except (KeyboardInterrupt, SystemExit) as stopped:
        return interrupted(console, stopped)
    proof, why_not = _proof(found, trust)
    if proof and options.out is not None:
        _write(options.out, proof)
    out = str(options.out) if proof and options.out is not None else ""
    if options.json:
        print(json.dumps(finding_json(found) | {"proof_bytes": len(proof), "no_proof": why_not, "out": out}))
    else:
        print(_as_text(found, proof, why_not, out))
    return EXIT_CODES[found.kind]


@dataclass(slots=True)
class Asking:
    """One challenge, from joining the swarm to leaving it. ``found`` is what it came to, once it has."""

    trust: Trust
    challenge: Challenge
    blocks: Span | None
    console: Console
    found: Finding | None = None

    async def run(self) -> Finding:
        """What it came to. Told to stop before, the process says so and ends."""
        signals = Signals(asyncio.get_running_loop())
        found = await self.unless_told(signals.stop, self._work(signals.stop))
        if found is None:
            leave_process(STOPPED_EARLY)
        return found

    async def unless_told(self, stop: asyncio.Event, work: Coroutine[Any, Any, None]) -> Finding | None:
        """What ``work`` finds, or raises; None if ``stop`` is set before it has found anything, which is said."""
        working = asyncio.create_task(work)
        await first_of(stop, working)
        if working.done():
            working.result()
            return self.found
        if self.found is None:
            interrupted(self.console)
        working.cancel()
        await asyncio.wait({working}, timeout=LEAVE_S)
        if working.done() and not working.cancelled() and (error := working.exception()) is not None:
            log.debug("while leaving: %s", error)
        return self.found

    async def _work(self, stop: asyncio.Event) -> None:
        """Find the server, load what it is to be compared with, ask and compare."""
        trust, console = self.trust, self.console
        with console.waiting(joining_text(trust.options.initial_peers)):
            model = await trust.client()
        try:
            with console.waiting("looking for the server"):
                listings = await model.parts.directory.servers(trust.files.model_id)
            suspect = choose(listings, trust.options.peer, self.blocks, trust.numerics)
            with console.waiting(f"loading weights of layers {suspect.span} to check by"):
                replica = await apart(lambda: trust.replica(suspect.span, stop.is_set))
            with Steps(console) as steps:
                means = AuditMeans(
                    transport=model.parts.transport,
                    calibration=trust.calibration,
                    thresholds=trust.thresholds,
                    watch=Going(suspect, steps).watch,
                )
                self.found = await challenge_server(model, self.challenge, suspect, OwnReference(replica), means)
        finally:
            with console.waiting("leaving the swarm"):
                await asyncio.shield(model.close())


def choose(listings: Sequence[Listing], name: str, blocks: Span | None, numerics: Numerics) -> Suspect:
    """The one server whose peer id ends with ``name``, to be challenged over ``blocks`` (None: all it holds).

    Raises ``ConfigError`` if none or several fit, ``CapacityError`` with the reason if it cannot be checked.
    """
    fitting = [listing for listing in listings if listing.peer.endswith(name)] if name else []
    if len(fitting) != 1:
        raise ConfigError(
            f"--peer: {len(fitting) or 'no'} servers of this model have a peer id that ends with {name!r}",
            hint="`python -m swarm status` shows who is there; give more of the id",
        )
    (listing,) = fitting
    suspects, unchecked = sort_servers(listings, blocks or listing.announcement.span, numerics)
    for suspect in suspects:
        if suspect.peer == listing.peer:
            return suspect
    for server in unchecked:
        if server.peer == listing.peer:
            others = "two others or more could check it" if server.spot_checkable else "it is not spot-checkable"
            raise CapacityError(
                f"{name_of(server.name, server.peer)} cannot be checked here: {server.reason}; {others}",
                hint="give --quantization as it declares, and --blocks that it holds",
            )
    raise CapacityError(f"server {listing.peer[-8:]} takes no sessions at present", hint="try again later")


def _proof(found: Finding, trust: Trust) -> tuple[bytes, str]:
    """What others can check; or why there is nothing."""
    if found.kind == "equivocated":
        return found.equivocation, ""
    if found.kind != "failed" or found.audit is None:
        return b"", ""
    try:
        return prove(found.audit, trust.script.text(found.challenge), trust.calibration).to_bytes(), ""
    except MisuseError as error:
        return b"", error.message


def _write(path: Path, proof: bytes) -> None:
    try:
        path.write_bytes(proof)
    except OSError as error:
        raise ConfigError(f"--out: cannot write {str(path)!r}: {error.strerror}", hint="choose another file") from error


def _as_text(found: Finding, proof: bytes, why_not: str, out: str) -> str:
    challenge = found.challenge
    lines = [
        f"{named(found.suspect)}, seed {challenge.seed.hex()}",
        f"  asked: {len(challenge.prompt)} tokens, up to {challenge.max_new_tokens} back, "
        f"temperature {challenge.sampling.temperature:g}",
        windows_text(found),
        figures(found),
    ]
    if proof:
        how = f"written to {out}" if out else "--out FILE keeps it"
        lines.append(f"Proof for others: {human_bytes(len(proof))}, {how}.")
    elif found.wrong:
        lines.append(f"No proof for others: {why_not or 'nothing that they could check'}.")
    return "\n".join(filter(None, lines))
