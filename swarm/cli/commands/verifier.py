"""``swarm verifier``: challenge whoever serves layers that this machine holds too, for as long as it runs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.cli.apart import apart
from swarm.cli.challenging import Going
from swarm.cli.joining import find_initial_peers, joining_text
from swarm.cli.output.console import Console, HumanConsole, JsonConsole
from swarm.cli.output.verdicts import challenge_json, figures, finding_json, name_of, named
from swarm.cli.signals import STOPPED_EARLY, Signals, first_of
from swarm.cli.trusted import Trust, add_trust_arguments, check_trust, interrupted
from swarm.client.auditing.accusing import convict
from swarm.client.auditing.reference import OwnReference, Reference
from swarm.client.auditing.suspects import Suspect, Unchecked
from swarm.client.auditing.traffic import installed_prompts
from swarm.client.auditing.verifier import Judged, Listener, Verifier, VerifierOptions, VerifierParts
from swarm.client.auditing.watch import Watch
from swarm.client.judging.accuser import Accuser
from swarm.client.judging.jury import Jury
from swarm.client.judging.seat import Seat
from swarm.client.model import AsyncSwarmModel
from swarm.core.errors import ConfigError, SwarmError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.spans import Span
from swarm.dht.protocol import Directory
from swarm.models.progress import human_s
from swarm.runtime.clock import SystemClock
from swarm.runtime.folders import data_folder
from swarm.runtime.identity import IdentityLock, load_or_create
from swarm.runtime.reputation import ReputationStore
from swarm.runtime.tasks import Tasks
from swarm.transport.protocol import Transport
from swarm.verification.challenges.challenge import Challenge
from swarm.verification.proofs import Charge
from swarm.verification.standings.strikes import Standing

if TYPE_CHECKING:
    from swarm.dht.hivemind_directory import HivemindDirectory
    from swarm.engine.work import SpanInfo
    from swarm.transport.libp2p import Libp2pTransport

FAILED = 1
"""Exit code of ``--once`` if anybody failed."""
DEFAULT_INTERVAL_S = 60.0
DEFAULT_AUDIT_MB = 1000.0
MB = 1e6

EXAMPLES = """\
examples:
  check everybody who serves layers 0 to 29 of the demo model, one challenge a minute, until Ctrl-C:
    python -m swarm verifier --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW... --blocks 0:30
  everybody once, for a script (exit code 1 if anybody failed):
    ... --blocks 0:30 --once --interval 0 --json

A challenge is an ordinary session of a client that no server has seen before, over a chain that goes
through the server in question; its prompt, lengths and times look like people's, and servers are told
that it was none only when they have answered and signed. Then every window of what the server answered
is computed again here, from the rows that it signed as received, and compared. So this machine needs
the weights of --blocks, and only of those.

A server that fails is challenged again, out of turn, with another prompt. The second failure ejects it:
this machine routes nothing over it any more, now or after a restart, and others are shown a proof that
they check by themselves. Whoever runs no verifier loses nothing by a proof that does not hold.

What this does not find: a server that keeps track of addresses recognises one that only ever verifies,
and answers it honestly. Run it where sessions come from, or from changing addresses.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Challenge whoever serves layers that this machine holds too, and eject who computes wrongly."
    parser.epilog = EXAMPLES
    add_trust_arguments(parser)
    what = parser.add_argument_group("whom to check, and how often")
    what.add_argument("--blocks", required=True, metavar="A:B", help="layers to hold here and to check, half-open; of "
                      "a server with other layers too only these are checked")  # fmt: skip
    what.add_argument("--interval", type=float, default=DEFAULT_INTERVAL_S, metavar="S", help="seconds between two "
                      "challenges on average, gaps as between people's requests (default: 60)")  # fmt: skip
    what.add_argument("--rate", type=float, default=1.0, metavar="Q", help="share of a challenge's windows that is "
                      "drawn; those before a drawn one are judged as well (default: 1)")  # fmt: skip
    what.add_argument("--audit-mb", type=float, default=DEFAULT_AUDIT_MB, metavar="MB", help="rows to fetch in an hour "
                      "at most, in 10^6 bytes; then it waits (default: 1000)")  # fmt: skip
    what.add_argument("--once", action="store_true", help="challenge everybody once, those who fail again, and end; "
                      "others can fetch proofs only while a verifier runs")  # fmt: skip
    keep = parser.add_argument_group("what it keeps")
    keep.add_argument("--store", type=Path, metavar="FILE", help="what is known of servers (default: this machine's, "
                      "in the data folder); where it left off it goes on")  # fmt: skip
    keep.add_argument("--identity", type=Path, metavar="FILE", help="key that signs accusations, made if missing "
                      "(default: verifier.key in the data folder); no challenge is ever sent with it")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def check(options: argparse.Namespace) -> None:
    """Raise ``ConfigError`` for what is wrong whatever the model and the network say."""
    check_trust(options)
    Span.parse(options.blocks)
    if not 0 <= options.interval < float("inf"):
        raise ConfigError(f"--interval is {options.interval}", hint="give seconds, 0 or more")
    if not 0 < options.rate <= 1:
        raise ConfigError(f"--rate is {options.rate}", hint="give a share above 0, up to 1")
    if not 0 < options.audit_mb < float("inf"):
        raise ConfigError(f"--audit-mb is {options.audit_mb}", hint="give 10^6 bytes, more than 0")


def run(options: argparse.Namespace) -> int:
    console: Console = JsonConsole(sys.stdout) if options.json else HumanConsole(sys.stdout)
    check(options)
    path = options.identity or data_folder() / "verifier.key"
    with IdentityLock(path):
        identity = load_or_create(path)
        try:
            trust = Trust.of(options, console, interval_s=options.interval, prompts=installed_prompts())
        except (KeyboardInterrupt, SystemExit) as stopped:
            return interrupted(console, stopped)
        Span.parse(options.blocks).within(trust.files.layer_count)
        store_path = options.store or ReputationStore.default_path()
        with ReputationStore(store_path, SystemClock()) as store:
            return asyncio.run(_Run(options, console, trust, store, identity, path).run())


@dataclass(frozen=True, slots=True)
class _Run:
    """One verifier process, from joining the swarm to leaving it."""

    options: argparse.Namespace
    console: Console
    trust: Trust
    store: ReputationStore
    identity: Identity
    identity_path: Path

    async def run(self) -> int:
        """Load, join, challenge until a signal; the exit code."""
        signals = Signals(asyncio.get_running_loop())
        working = asyncio.create_task(self._work(signals))
        await first_of(signals.stop, working)
        if not working.done():
            self.console.event("stopping", "Stopping: what is being judged is finished. Ctrl-C again to go at once.")
            await first_of(signals.hurry, working)
        if not working.done():
            working.cancel()
        try:
            return await working
        except asyncio.CancelledError:
            return STOPPED_EARLY

    async def _work(self, signals: Signals) -> int:
        try:
            with self.console.waiting("loading weights to check by"):
                replica = await apart(lambda: self.trust.replica(Span.parse(self.options.blocks), signals.stop.is_set))
        except SwarmError:
            if signals.stop.is_set():
                return STOPPED_EARLY
            raise
        with self.console.waiting(joining_text(self.options.initial_peers)):
            transport, directory = await self._join()
        tasks = Tasks(lambda name, error: self.console.event("trouble", f"{name}: {error}", message=str(error)))
        reference = OwnReference(replica)
        jury = self._jury(transport, directory, reference, tasks)
        try:
            verifier = self._verifier(directory, reference, jury)
            self.console.status(lambda seconds: f"looking whom to challenge, {human_s(seconds)}")
            self._say_ready(replica.info, transport.peer_id)
            return await self._challenge(verifier, signals)
        finally:
            self.console.status(None)
            await tasks.close()
            await jury.close()
            await directory.close()
            await transport.close()

    def _verifier(self, directory: Directory, reference: OwnReference, jury: Jury) -> Verifier:
        parts = VerifierParts(
            directory=directory,
            clock=SystemClock(),
            model=self.trust.files.model_id,
            store=self.store,
            reference=reference,
            span=reference.span,
            calibration=self.trust.calibration,
            script=self.trust.script,
            client=self._client,
            jury=jury,
            provable=not self.trust.files.length_matters,
        )
        options = VerifierOptions(
            rate=self.options.rate, bytes_per_h=self.options.audit_mb * MB, thresholds=self.trust.thresholds
        )
        return Verifier(parts, options, Teller(self.console))

    async def _challenge(self, verifier: Verifier, signals: Signals) -> int:
        if self.options.once:
            found = await verifier.once(signals.stop)
            return FAILED if any(judged.finding.wrong for judged in found) else 0
        await verifier.run(signals.stop)
        self.console.event("stopped", "Stopped; all that was found is kept.")
        return 0

    async def _join(self) -> tuple[Libp2pTransport, HivemindDirectory]:
        """The node that accuses; it never sends a challenge."""
        from swarm.dht.hivemind_directory import HivemindDirectory
        from swarm.transport.libp2p import Libp2pTransport
        from swarm.transport.options import NatOptions

        peers = await find_initial_peers(self.options, host=self.options.host)
        nat = NatOptions(dht_mode="client", serve_relay=False, port_map=False)
        transport = await Libp2pTransport.create(
            self.identity_path, host=self.options.host, initial_peers=peers, nat=nat
        )
        try:
            return transport, await HivemindDirectory.create(transport.p2p, peers, SystemClock(), client_mode=True)
        except BaseException:
            await transport.close()
            raise

    def _jury(self, transport: Transport, directory: Directory, reference: OwnReference, tasks: Tasks) -> Jury:
        """Tells others of proofs, from earlier lives too, and checks those of others about layers that it holds."""
        model, files = self.trust.files.model_id, self.trust.files
        seat = Seat(transport, directory, SystemClock(), model, self.store)
        accuser = Accuser(seat, self.identity)

        async def references(charge: Charge) -> Sequence[Reference]:
            return [reference] if reference.span.covers(charge.opening.span) else []

        async def verify(data: bytes) -> object:
            return await convict(
                data,
                references,
                self.trust.calibration,
                self.trust.thresholds,
                length_matters=files.length_matters,
            )

        async def listed() -> Sequence[PeerId]:
            return [listing.peer for listing in await directory.servers(model)]

        jury = Jury(seat, listed, accuser=accuser, verify=verify)
        tasks.spawn(jury.run(), name="jury")
        tasks.spawn(self._accuse(accuser), name="accuser")
        return jury

    async def _accuse(self, accuser: Accuser) -> None:
        await accuser.serve()
        await accuser.run()

    async def _client(self) -> AsyncSwarmModel:
        """A client that knows whom this verifier routes nothing over, and tells nobody of it."""
        model = await self.trust.client()
        for peer in self.store.ejected():
            model.reputation.change(peer, partial(_as_known, self.store.standing(peer)))
        model.reputation.take_links(self.store.broken_links())
        return model

    def _say_ready(self, info: SpanInfo, peer: PeerId) -> None:
        ejected = self.store.ejected()
        known = f"; {len(ejected)} ejected in the past stay so" if ejected else ""
        how = "everybody once" if self.options.once else f"one challenge every {self.options.interval:g} s on average"
        self.console.event(
            "ready",
            f"READY  checking layers {info.span} of {self.trust.files.name} against own weights in {info.dtype}, "
            f"{how}{known}. Ctrl-C to stop.",
            span=[info.span.start, info.span.end],
            peer=peer,
            dtype=info.dtype,
            quantization=info.quantization,
            calibration=self.trust.calibration.digest().hex(),
            ejected=sorted(ejected),
        )


def _as_known(known: Standing, _: Standing) -> Standing:
    return known


class Teller(Listener):
    """Tells people, or programs, what the verifier does."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._judged = 0

    def sending(self, suspect: Suspect, challenge: Challenge) -> None:
        """See ``Listener``."""
        self._console.event(
            "challenge",
            f"{named(suspect)}: asking, {len(challenge.prompt)} tokens, up to {challenge.max_new_tokens} back",
            peer=suspect.peer,
            span=[suspect.span.start, suspect.span.end],
            **challenge_json(challenge),
        )

    def watch(self, suspect: Suspect, challenge: Challenge) -> Watch:
        """See ``Listener``."""
        return Going(suspect, lambda phase, text: self._console.status(text)).watch

    def judged(self, judged: Judged) -> None:
        """See ``Listener``."""
        found, after = judged.finding, judged.after
        self._judged += 1
        self._console.status(lambda seconds: f"{self._judged} challenges judged, the last {human_s(seconds)} ago")
        strikes = f", {len(after.strikes)} strikes" if after.strikes else ""
        self._console.event(
            "verdict",
            f"{named(found.suspect)}: {figures(found)}; {after.audited} windows audited so far{strikes}",
            **finding_json(found),
            audited=after.audited,
            strikes=len(after.strikes),
            ejected=after.ejected,
        )
        if judged.ejected:
            shown = "others are shown the proof" if judged.accused else "there is no proof that convinces others"
            self._console.event(
                "ejected",
                f"{named(found.suspect)}: EJECTED, {after.ejected}; {shown}",
                peer=found.suspect.peer,
                reason=after.ejected,
                accused=judged.accused,
            )

    def uncheckable(self, server: Unchecked) -> None:
        """See ``Listener``."""
        others = "others can" if server.spot_checkable else "NOT SPOT-CHECKABLE: no two others can either"
        self._console.event(
            "unchecked",
            f"{name_of(server.name, server.peer)} layers {server.holds}: not checked here, {server.reason}; {others}",
            peer=server.peer,
            span=[server.holds.start, server.holds.end],
            reason=server.reason,
            spot_checkable=server.spot_checkable,
        )

    def trouble(self, what: str) -> None:
        """See ``Listener``."""
        self._console.event("trouble", what, message=what)
