"""What one node makes of another over time: probation, audit rate, strikes, ejection. A state and its transitions.

Local: every node keeps its own, and acts only on what it saw or on proofs that it checked itself. Nothing here is
ever forgiven by time (DESIGN 9): a strike that expired would invite the slow cheater.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from swarm.core.errors import ConfigError, MisuseError
from swarm.core.ids import PeerId
from swarm.verification.standings.answering import Requests, shuns_audits
from swarm.verification.standings.sequential import FALSE_ALARM, Suspicion
from swarm.verification.verdicts.verdict import Outcome

TRUSTED = ""
"""The reference that is this node's own replica of the span, in place of an auditor's peer id."""
MAX_REFERENCES = 16
"""Auditors whose comparisons are kept apart for one server; beyond, the one with the least evidence is dropped."""
MAX_OCCASIONS = 64
"""Strikes kept by name; after ejection more of them change nothing."""
MAX_APART = 4096
"""Pairs of neighbours with a broken link that are remembered; beyond, the oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How strict to be. ``audit_rate`` is q, the rate of a server that has been good for long.

    A new one is audited in every window for ``probation_windows``, then the rate halves every ``halving_windows``
    audited windows until it is q: 126 windows more for q = 3 %. ``escalation_windows`` are audited after a strike or
    an accusation. ``strikes_to_eject`` is K; ``false_alarm`` bounds how often each test ever errs about an honest
    server.
    """

    audit_rate: float = 0.03
    probation_windows: int = 50
    halving_windows: int = 25
    escalation_windows: int = 200
    strikes_to_eject: int = 2
    false_alarm: float = FALSE_ALARM

    def __post_init__(self) -> None:
        counts = self.probation_windows, self.escalation_windows, self.halving_windows - 1, self.strikes_to_eject - 1
        if min(counts) < 0 or not (0 <= self.audit_rate <= 1 and 0 < self.false_alarm < 1):
            raise ConfigError(f"no such policy: {self}")


class Evidence(msgspec.Struct, frozen=True, array_like=True):
    """The suspicion by one ``reference``: an auditor's peer id, or ``TRUSTED``; ``accused``: it was ever enough."""

    reference: str
    suspicion: Suspicion
    accused: bool = False


class Standing(msgspec.Struct, frozen=True):
    """What is known of one server. The default is that of a stranger.

    ``audited``: windows audited that counted. ``raised``: windows that are still to be audited at rate 1.
    ``strikes``: the occasions, each once. ``ejected``: why, or nothing. ``voided``: windows about which arbitration
    could say nothing: a mark for routing, nothing more.
    """

    audited: int = 0
    raised: int = 0
    strikes: tuple[bytes, ...] = ()
    ejected: str = ""
    voided: int = 0
    evidence: tuple[Evidence, ...] = ()
    audits: Requests = Requests()
    traffic: Requests = Requests()

    def to_bytes(self) -> bytes:
        """For the local store."""
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> Standing:
        """Read what ``to_bytes`` wrote; ``MisuseError`` if the store is damaged."""
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise MisuseError("a damaged entry in the store of reputations", hint="restore it from a copy") from error


def on_probation(standing: Standing, policy: Policy) -> bool:
    """True until ``probation_windows`` were audited and counted: till then the server's work earns no credit.

    Audited ones, not served ones: whoever avoids audits stays here.
    """
    return standing.audited < policy.probation_windows


def audit_rate(standing: Standing, policy: Policy) -> float:
    """The share of its windows to audit now, in [q, 1]: 1 on probation, while raised, and for the ejected."""
    if standing.ejected or standing.raised or on_probation(standing, policy):
        return 1.0
    halvings = (standing.audited - policy.probation_windows) / policy.halving_windows
    return max(policy.audit_rate, float(0.5**halvings))


def window_audited(
    standing: Standing, policy: Policy, outcome: Outcome, error: float, *, reference: str, ceiling: float | None
) -> Standing:
    """After one audited window, whatever its outcome; an uncounted one changes nothing.

    ``error`` is e against ``reference``, ``ceiling`` what an honest server may reach (``sequential.honest_ceiling``),
    None where nobody knows: for mixtures of experts without own thresholds, and for rows as a lossy codec left them.
    It feeds the sequential test of that reference alone, for an auditor that lies a little could else accuse anybody
    without ever being outvoted: ejection takes the own replica's evidence, or that of two auditors. An auditor's
    standing deserves the same window with the roles exchanged. A hard failure by itself is no strike: arbitration
    confirms it (``struck``) or not.
    """
    if outcome is Outcome.UNCOUNTED:
        return standing
    evidence = standing.evidence
    if ceiling is not None:
        evidence = _with_window(evidence, reference, error, ceiling, policy.false_alarm)
    changed = msgspec.structs.replace(
        standing, audited=standing.audited + 1, raised=max(standing.raised - 1, 0), evidence=evidence
    )
    accusers = {entry.reference for entry in evidence if entry.accused}
    if TRUSTED in accusers or len(accusers) >= 2:
        return _eject(changed, "its errors are above what honest servers reach, window after window")
    return changed


def _with_window(
    evidence: tuple[Evidence, ...], reference: str, error: float, ceiling: float, false_alarm: float
) -> tuple[Evidence, ...]:
    """With one more window by ``reference``; beyond ``MAX_REFERENCES`` the weakest of the others is dropped."""
    known = {entry.reference: entry for entry in evidence}
    before = known.get(reference, Evidence(reference, Suspicion()))
    suspicion = before.suspicion.after(error, ceiling=ceiling)
    known[reference] = Evidence(reference, suspicion, before.accused or suspicion.accuses(false_alarm))
    if len(known) > MAX_REFERENCES:
        others = [entry for entry in known.values() if entry.reference not in (TRUSTED, reference)]
        weakest = min(others, key=lambda entry: (entry.accused, entry.suspicion.log_evidence))
        del known[weakest.reference]
    return tuple(known.values())


def struck(standing: Standing, policy: Policy, occasion: bytes) -> Standing:
    """After a confirmed hard failure. ``occasion`` names what it was about, best the session: it gives one strike.

    For what goes wrong once in a session (a flipped bit in a cache) goes wrong in every window after it. A second
    strike for the same occasion changes nothing. Raises the audit rate; what is kept of the server's earlier work
    deserves audits too.
    """
    if occasion in standing.strikes or len(standing.strikes) >= MAX_OCCASIONS:
        return standing
    changed = msgspec.structs.replace(
        standing, strikes=(*standing.strikes, occasion), raised=max(standing.raised, policy.escalation_windows)
    )
    count = len(changed.strikes)
    return _eject(changed, f"{count} confirmed failures") if count >= policy.strikes_to_eject else changed


def equivocated(standing: Standing) -> Standing:
    """After two different receipts with one counter, both signed: ejection on sight."""
    return _eject(standing, "it signed two different receipts with one counter")


def accused(standing: Standing, policy: Policy) -> Standing:
    """After an accusation that is signed but not yet checked: audit everything, and avoid it meanwhile."""
    return msgspec.structs.replace(standing, raised=max(standing.raised, policy.escalation_windows))


def window_void(standing: Standing) -> Standing:
    """After a window about which arbitration could say nothing."""
    return msgspec.structs.replace(standing, voided=standing.voided + 1)


def traffic_asked(standing: Standing, *, answered: bool) -> Standing:
    """After an ordinary request: busy and unreachable count as not answered, and are no strike."""
    return msgspec.structs.replace(standing, traffic=standing.traffic.one_more(answered=answered))


def audit_asked(standing: Standing, policy: Policy, *, answered: bool) -> Standing:
    """After a challenge or a request for rows to audit. Answering those more rarely than traffic is a strike."""
    audits = standing.audits.one_more(answered=answered)
    changed = msgspec.structs.replace(standing, audits=audits)
    if not shuns_audits(audits, standing.traffic, false_alarm=policy.false_alarm):
        return changed
    return struck(changed, policy, b"unanswered audits %d" % audits.asked)


def _eject(standing: Standing, reason: str) -> Standing:
    return standing if standing.ejected else msgspec.structs.replace(standing, ejected=reason)


class Apart(msgspec.Struct, frozen=True):
    """Pairs of servers whose common link broke: nobody knows which of them lies, so they are not put side by side.

    In the order in which they came; within a pair the smaller id first.
    """

    pairs: tuple[tuple[PeerId, PeerId], ...] = ()

    def and_also(self, one: PeerId, other: PeerId) -> Apart:
        """With the pair ``one`` and ``other``; ``MisuseError`` if they are the same."""
        if one == other:
            raise MisuseError("a server is no neighbour of its own")
        pair = (min(one, other), max(one, other))
        others = tuple(known for known in self.pairs if known != pair)
        return Apart((*others, pair)[-MAX_APART:])

    def allow(self, one: PeerId, other: PeerId) -> bool:
        """True if the two may be neighbours in a chain, in either order."""
        return (min(one, other), max(one, other)) not in self.pairs
