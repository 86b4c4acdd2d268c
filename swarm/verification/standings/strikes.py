"""What one node makes of another over time: probation, audit rate, strikes, ejection. A state and its transitions.

Local: every node keeps its own, and acts only on what it saw or on proofs that it checked itself. What was proven, to
anybody or by this node's own weights, is never forgiven by time (DESIGN 9): such a strike that expired would invite the
slow cheater. What rests on this node's own books or on the word of others, and nobody else could check, is not
*proven*: a fault there, or two who lie together, must not eject the honest for good. It ejects for a *term* that grows
each time; after it the server is on probation, and one such failure more is enough for the next.

The transitions know no time: ``dated`` says when what they did happened, ``lapsed`` what is over by now.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from swarm.core.errors import ConfigError, MisuseError
from swarm.verification.standings.answering import Requests, shuns_audits
from swarm.verification.standings.apart import DAY_S, Pauses
from swarm.verification.standings.sequential import FALSE_ALARM, Suspicion
from swarm.verification.verdicts.verdict import Outcome

TRUSTED = ""
"""The reference that is this node's own replica of the span, in place of an auditor's peer id."""
MAX_REFERENCES = 16
"""Auditors whose comparisons are kept apart for one server; beyond, the one with the least evidence is dropped."""
MAX_OCCASIONS = 64
"""Strikes kept by name; after ejection more of them change nothing."""
EQUIVOCATED = "it signed two different receipts with one counter"
TERMS = Pauses(3600.0, 4.0, 30 * DAY_S)
"""For how long an ejection lasts that was not proven: an hour, 4 h, 16 h, 2.7 days, 10.7 days, 30 days."""
UNPROVEN_S = 30 * DAY_S
"""So long a strike counts that was not proven."""
TERMS_KEPT_S = 90 * DAY_S
"""So long after a term's end the next is a longer one, and one strike enough for it."""


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


class Unproven(msgspec.Struct, frozen=True, array_like=True):
    """A strike by this node's books or others' word alone, since the wall time ``since_s``; 0: not dated yet."""

    occasion: bytes
    since_s: float = 0.0


class Standing(msgspec.Struct, frozen=True):
    """What is known of one server. The default is that of a stranger.

    ``audited``: windows audited that counted. ``raised``: windows that are still to be audited at rate 1.
    ``strikes``: the occasions, each once; ``unproven`` are those among them that expire. ``ejected``: why, or nothing.
    ``voided``: windows about which arbitration could say nothing: a mark for routing, nothing more. ``passing``: the
    ejection is not proven, and ends at the wall time ``until_s``; ``terms`` so many such ejections still count.
    """

    audited: int = 0
    raised: int = 0
    strikes: tuple[bytes, ...] = ()
    ejected: str = ""
    voided: int = 0
    evidence: tuple[Evidence, ...] = ()
    audits: Requests = Requests()
    traffic: Requests = Requests()
    unproven: tuple[Unproven, ...] = ()
    passing: bool = False
    until_s: float = 0.0
    terms: int = 0

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
    without ever being outvoted: ejection takes the own replica's evidence, or that of two auditors, and then it is for
    a term, for these may lie together. An auditor's standing deserves the same window with the roles exchanged. A hard
    failure by itself is no strike: arbitration confirms it (``struck``) or not.
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
        reason = "its errors are above what honest servers reach, window after window"
        return _eject(changed, reason, proven=TRUSTED in accusers)
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


def struck(standing: Standing, policy: Policy, occasion: bytes, *, proven: bool = True) -> Standing:
    """After a confirmed hard failure. ``occasion`` names what it was about, best the session: it gives one strike.

    For what goes wrong once in a session (a flipped bit in a cache) goes wrong in every window after it. A second
    strike for the same occasion changes nothing, but that it may be ``proven`` now. Raises the audit rate; what is kept
    of the server's earlier work deserves audits too. K strikes eject; for good if K of them are proven. After a term
    one is enough for the next.
    """
    unproven, strikes = standing.unproven, standing.strikes
    if occasion in strikes:
        if not proven or all(entry.occasion != occasion for entry in unproven):
            return standing
        unproven = tuple(entry for entry in unproven if entry.occasion != occasion)
    elif len(strikes) >= MAX_OCCASIONS:
        return standing
    else:
        strikes = (*strikes, occasion)
        unproven = unproven if proven else (*unproven, Unproven(occasion))
    raised = max(standing.raised, policy.escalation_windows)
    changed = msgspec.structs.replace(standing, strikes=strikes, unproven=unproven, raised=raised)
    count, most = len(strikes), policy.strikes_to_eject
    if count + bool(standing.terms) < most:
        return changed
    reason = f"{count} confirmed failures" if count >= most else "it failed again after it was let back in"
    return _eject(changed, reason, proven=count - len(unproven) >= most)


def equivocated(standing: Standing) -> Standing:
    """After two different receipts with one counter, both signed: ejection on sight."""
    return _eject(standing, EQUIVOCATED, proven=True)


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
    """After a challenge or a request for rows to audit. Answering those more rarely than traffic is a strike.

    By this node's count alone, so it is not proven.
    """
    audits = standing.audits.one_more(answered=answered)
    changed = msgspec.structs.replace(standing, audits=audits)
    if not shuns_audits(audits, standing.traffic, false_alarm=policy.false_alarm):
        return changed
    return struck(changed, policy, b"unanswered audits %d" % audits.asked, proven=False)


def _eject(standing: Standing, reason: str, *, proven: bool) -> Standing:
    if standing.ejected and not (standing.passing and proven):
        return standing
    until_s = standing.until_s if standing.terms and not proven else 0.0
    return msgspec.structs.replace(standing, ejected=reason, passing=not proven, until_s=until_s)


# -- time ---------------------------------------------------------------------------------------------------


def dated(before: Standing, after: Standing, now_s: float) -> Standing:
    """``after``, to which a transition led at the wall time ``now_s``: a new term begins, new strikes have a date."""
    unproven = tuple(entry if entry.since_s else Unproven(entry.occasion, now_s) for entry in after.unproven)
    dated = msgspec.structs.replace(after, unproven=unproven)
    if not after.passing or before.passing or after.until_s > now_s:
        return dated
    terms = after.terms + 1
    return msgspec.structs.replace(dated, terms=terms, until_s=now_s + TERMS.after(terms))


def lapsed(standing: Standing, now_s: float) -> Standing:
    """What is left of a dated standing at the wall time ``now_s``.

    At the end of a term the server is let back in on probation: with its proven strikes and the evidence of own
    weights, without what others found, and without counts of answers that would tell against it at once. Dates in the
    future are of a clock that was wrong: what they stand for is over.
    """
    if standing.passing and not now_s < standing.until_s <= now_s + TERMS.most_s:
        standing = _let_back(standing)
    old = {entry.occasion for entry in standing.unproven if not 0.0 <= now_s - entry.since_s < UNPROVEN_S}
    if old and not standing.passing:
        standing = _without_strikes(standing, old)
    if standing.terms and not standing.passing and now_s >= standing.until_s + TERMS_KEPT_S:
        standing = msgspec.structs.replace(standing, terms=0, until_s=0.0)
    return standing


def forgiven(standing: Standing, *, proven: bool = False) -> Standing:
    """As if nothing unproven had been held against it, terms included; if ``proven``, that of a stranger."""
    if proven:
        return Standing()
    left = _let_back(standing) if standing.passing else _without_strikes(standing, _occasions(standing))
    evidence = tuple(entry for entry in left.evidence if entry.reference == TRUSTED)
    raised = left.raised if left.strikes else 0
    return msgspec.structs.replace(left, evidence=evidence, raised=raised, terms=0, until_s=0.0)


def doubted(standing: Standing) -> Standing:
    """An ejection by a version that did not note what was proven, where no proof is kept: for a term, to be ``dated``.

    It stays for good where own weights have compared (their strikes need no proof), and after two receipts with one
    counter, of which the proof may have made room for later ones.
    """
    own = any(entry.reference == TRUSTED for entry in standing.evidence)
    if not standing.ejected or standing.passing or own or standing.ejected == EQUIVOCATED:
        return standing
    unproven = tuple(Unproven(occasion) for occasion in standing.strikes)
    return msgspec.structs.replace(standing, passing=True, unproven=unproven)


def _let_back(standing: Standing) -> Standing:
    evidence = tuple(entry for entry in standing.evidence if entry.reference == TRUSTED)
    left = _without_strikes(standing, _occasions(standing))
    return msgspec.structs.replace(
        left, ejected="", passing=False, audited=0, evidence=evidence, audits=Requests(), traffic=Requests()
    )


def _occasions(standing: Standing) -> set[bytes]:
    return {entry.occasion for entry in standing.unproven}


def _without_strikes(standing: Standing, occasions: set[bytes]) -> Standing:
    return msgspec.structs.replace(
        standing,
        strikes=tuple(occasion for occasion in standing.strikes if occasion not in occasions),
        unproven=tuple(entry for entry in standing.unproven if entry.occasion not in occasions),
    )
