"""A verifier: challenges whoever serves layers that it holds itself, one after the other, for as long as it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from swarm.client.auditing.accusing import prove
from swarm.client.auditing.audit import AuditMeans
from swarm.client.auditing.budget import Budget
from swarm.client.auditing.challenges import Finding, examined, sent, standings_after
from swarm.client.auditing.reference import Reference
from swarm.client.auditing.suspects import Suspect, Unchecked, next_suspect, sort_servers
from swarm.client.auditing.traffic import Script
from swarm.client.auditing.watch import UNWATCHED, Watch
from swarm.client.judging.consequences import Consequences
from swarm.client.judging.jury import Jury
from swarm.client.model import AsyncSwarmModel
from swarm.client.plan import draw_secret
from swarm.core.clock import Clock
from swarm.core.errors import MisuseError, NetworkError, SwarmError
from swarm.core.ids import ModelId, PeerId
from swarm.core.spans import Span
from swarm.dht.protocol import Directory
from swarm.runtime.reputation import ReputationStore
from swarm.verification.challenges.challenge import Challenge
from swarm.verification.standings.strikes import Policy, Standing, audit_asked, traffic_asked
from swarm.verification.verdicts.calibration import Calibration
from swarm.verification.verdicts.verdict import DENSE, Thresholds

LOOK_EVERY_S = 10.0
"""While there is nobody to challenge, or the directory does not answer."""
FRESH_TRIES = 64
"""Before a prompt is sent again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierParts:
    """What a verifier works with. ``reference`` computes any part of ``span``; ``calibration`` is the model's.

    ``client`` makes an ordinary client that no server has seen. ``jury`` enters proofs into ``store`` and tells others
    of them, over a node of its own. ``provable`` is False where no proof convinces anybody (``convict``).
    """

    directory: Directory
    clock: Clock
    model: ModelId
    store: ReputationStore
    reference: Reference
    span: Span
    calibration: Calibration
    script: Script
    client: Callable[[], Awaitable[AsyncSwarmModel]]
    jury: Jury
    provable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierOptions:
    """``rate``: the share of a challenge's windows that is drawn. ``bytes_per_h``: rows to fetch in an hour at most."""

    rate: float = 1.0
    bytes_per_h: float = 1e9
    thresholds: Thresholds = DENSE
    policy: Policy = field(default_factory=Policy)


@dataclass(frozen=True, slots=True)
class Judged:
    """A challenge, and what it made of its server's standing. ``accused``: others are told, with a proof."""

    finding: Finding
    before: Standing
    after: Standing
    accused: bool = False

    @property
    def struck(self) -> bool:
        """True if this was a strike."""
        return len(self.after.strikes) > len(self.before.strikes)

    @property
    def ejected(self) -> bool:
        """True if this was the end of it."""
        return bool(self.after.ejected) and not self.before.ejected


class Listener:
    """Who is told what the verifier does; does nothing itself."""

    def sending(self, suspect: Suspect, challenge: Challenge) -> None:
        """A challenge is on its way."""

    def watch(self, suspect: Suspect, challenge: Challenge) -> Watch:
        """Who hears how this challenge goes; nobody, unless it is said."""
        return UNWATCHED

    def judged(self, judged: Judged) -> None:
        """It has come to something, and the store knows."""

    def uncheckable(self, server: Unchecked) -> None:
        """A server was seen for the first time that this verifier cannot check."""

    def trouble(self, what: str) -> None:
        """Something did not work, through nobody's fault in particular; it goes on."""


class Verifier:
    """Runs until it is told to stop. Not for concurrent use."""

    def __init__(self, parts: VerifierParts, options: VerifierOptions, listener: Listener) -> None:
        self._parts = parts
        self._options = options
        self._listener = listener
        self._challenged_s: dict[PeerId, float] = {}
        self._known: set[PeerId] = set()
        self._sent: set[int] = set()
        self._budget = Budget(options.bytes_per_h)

    async def run(self, stop: asyncio.Event) -> None:
        """Challenge servers at times like traffic's until ``stop`` is set.

        A challenge that is not answered yet when that happens is dropped, one that is, is judged first. Everything
        found is in the store before it is told, so whatever ends the process, nothing of it is lost.
        """
        while not stop.is_set():
            challenge = self._next()
            wait_s = self._budget.wait_s(self._parts.clock.monotonic_s())
            if await self._pause(max(challenge.wait_s, wait_s), stop):
                return
            suspect = next(iter(await self._whose_turn()), None)
            if suspect is None:
                await self._pause(LOOK_EVERY_S, stop)
                continue
            await self._challenge(suspect, challenge, stop)

    async def once(self, stop: asyncio.Event) -> list[Judged]:
        """Challenge everybody once, and whoever fails until it passes or is ejected; what came of it, in order."""
        found: list[Judged] = []
        for suspect in await self._suspects():
            while not stop.is_set() and not self._parts.store.standing(suspect.peer).ejected:
                challenge = self._next()
                if await self._pause(challenge.wait_s, stop):
                    break
                judged = await self._challenge(suspect, challenge, stop)
                if judged is None:
                    break
                found.append(judged)
                if not judged.struck:
                    break
        return found

    def _next(self) -> Challenge:
        """A challenge whose prompt was not sent before, while there are any: a server would know it again."""
        for _ in range(FRESH_TRIES):
            challenge = self._parts.script.challenge(draw_secret())
            if hash(challenge.prompt) not in self._sent:
                break
        self._sent.add(hash(challenge.prompt))
        return challenge

    # -- whose turn it is -----------------------------------------------------------------------------------

    async def _suspects(self) -> tuple[Suspect, ...]:
        parts = self._parts
        try:
            listings = await parts.directory.servers(parts.model)
        except NetworkError as error:
            self._listener.trouble(f"the directory does not answer: {error.message}")
            return ()
        suspects, others = sort_servers(listings, parts.span, parts.reference.numerics)
        for server in others:
            if server.peer not in self._known:
                self._known.add(server.peer)
                self._listener.uncheckable(server)
        return suspects

    async def _whose_turn(self) -> list[Suspect]:
        """Nobody, or the one."""
        suspects = await self._suspects()
        now_s = self._parts.clock.monotonic_s()
        standings = {suspect.peer: self._parts.store.standing(suspect.peer) for suspect in suspects}
        waited_s = {peer: now_s - at_s for peer, at_s in self._challenged_s.items()}
        found = next_suspect(suspects, standings, waited_s, self._options.policy)
        return [] if found is None else [found]

    async def _pause(self, seconds: float, stop: asyncio.Event) -> bool:
        """Wait, unless told to stop: then True."""
        return await _unless(stop, self._parts.clock.sleep(seconds)) is _STOPPED

    # -- one challenge --------------------------------------------------------------------------------------

    async def _challenge(self, suspect: Suspect, challenge: Challenge, stop: asyncio.Event) -> Judged | None:
        """None if it was stopped, or this machine could not send it."""
        parts, options = self._parts, self._options
        self._challenged_s[suspect.peer] = parts.clock.monotonic_s()
        try:
            model = await parts.client()
        except SwarmError as error:
            self._listener.trouble(f"no client to send a challenge with: {error.message}")
            return None
        asked: list[tuple[PeerId, bool]] = []
        model.witness.on_asked.append(lambda peer, answered: asked.append((peer, answered)))
        try:
            self._listener.sending(suspect, challenge)
            watch = self._listener.watch(suspect, challenge)
            found = await _unless(stop, sent(model, challenge, suspect, watch))
            if not isinstance(found, Finding):
                return None
            means = AuditMeans(
                transport=model.parts.transport,
                calibration=parts.calibration,
                thresholds=options.thresholds,
                watch=watch,
            )
            found = await examined(found, parts.reference, means, rate=options.rate)
        finally:
            await asyncio.shield(model.close())
            await asyncio.to_thread(self._note_answers, suspect.peer, asked)
        judged = await self._noted(found, model.parts.transport.peer_id)
        self._listener.judged(judged)
        return judged

    def _note_answers(self, suspect: PeerId, asked: list[tuple[PeerId, bool]]) -> None:
        """Who answered OPEN. To the others of the chain it was traffic, and to the suspect it looked the same."""
        policy = self._options.policy
        for peer in dict.fromkeys(peer for peer, _ in asked):
            answers = [answered for one, answered in asked if one == peer]

            def counted(standing: Standing, answers: list[bool] = answers, target: bool = peer == suspect) -> Standing:
                for answered in answers:
                    if target:
                        standing = audit_asked(standing, policy, answered=answered)
                    else:
                        standing = traffic_asked(standing, answered=answered)
                return standing

            self._parts.store.change(peer, counted)

    async def _noted(self, found: Finding, me: PeerId) -> Judged:
        """The finding and its session in the store, and the proof told to others if there is one."""
        parts, peer = self._parts, found.suspect.peer
        if found.audit is not None:
            self._budget.spend(parts.clock.monotonic_s(), found.audit.fetched_bytes)
        before = parts.store.standing(peer)
        proof = self._fraud(found)  # kept before the strike is entered: a crash between loses neither
        told = bool(proof) and await parts.jury.hold("fraud", proof, verified=True)
        await asyncio.to_thread(self._enter, found)
        if found.record is not None:
            consequences = Consequences(parts.store, parts.jury, me, self._options.policy)
            await asyncio.to_thread(consequences.enter, found.record)
            await consequences.of(found.record)
        return Judged(found, before, parts.store.standing(peer), told or bool(found.equivocation))

    def _enter(self, found: Finding) -> None:
        suspect = found.suspect.peer
        for peer, transition in standings_after(found, self._options.policy).items():
            self._parts.store.change(peer, transition, error=found.worst if peer == suspect else None)

    def _fraud(self, found: Finding) -> bytes:
        """What convinces others; empty where nothing does, and then only this node acts on what it found."""
        if found.kind != "failed" or found.audit is None:
            return b""
        try:
            if not self._parts.provable:
                raise MisuseError("in this model rows depend on the text's length, which no receipt tells")
            text = self._parts.script.text(found.challenge)
            return prove(found.audit, text, self._parts.calibration).to_bytes()
        except MisuseError as error:
            self._listener.trouble(f"no proof for others against {found.suspect.peer[-8:]}: {error.message}")
            return b""


_STOPPED = object()


async def _unless(stop: asyncio.Event, work: Awaitable[object]) -> object:
    """What ``work`` comes to, or ``_STOPPED``, and then it was cancelled."""
    task, stopping = asyncio.ensure_future(work), asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else _STOPPED
    finally:
        for one in (task, stopping):
            one.cancel()
        await asyncio.gather(task, stopping, return_exceptions=True)
