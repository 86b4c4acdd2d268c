"""Whether a server answers audits as often as it answers traffic. Busy is no crime; busy for audits only is one."""

from __future__ import annotations

import math

import msgspec

from swarm.verification.standings.economics import log_choose

FIRST_LOOK = 8
"""Audit requests after which the counts are looked at first, then whenever their number has doubled."""


class Requests(msgspec.Struct, frozen=True, array_like=True):
    """How many requests of one kind a server was sent, and how many of them it refused or left unanswered."""

    asked: int = 0
    refused: int = 0

    def one_more(self, *, answered: bool) -> Requests:
        return Requests(self.asked + 1, self.refused + (not answered))


def shuns_audits(audits: Requests, traffic: Requests, *, false_alarm: float) -> bool:
    """True if audits were refused so much more often than traffic that it is no accident. Ask after every audit.

    Fisher's exact test, one-sided: if it cannot tell or does not care which request is an audit, then every choice of
    ``audits.asked`` among all requests is as likely to be the audits, and P(at least so many refusals among them) is
    hypergeometric. Looked at when the audits number 8, 16, 32, …; the n-th look may err with probability
    ``false_alarm / (n(n + 1))``, so an honest server is ever accused with ``false_alarm`` at most, however long it
    serves (union bound). It rests on audits being sent at the hours of traffic: sent when everybody is busy, they
    would accuse the honest. O(refusals).
    """
    looks = _look(audits.asked)
    if looks == 0 or audits.refused == 0:
        return False
    return refusals_by_chance(audits, traffic) <= false_alarm / (looks * (looks + 1))


def refusals_by_chance(audits: Requests, traffic: Requests) -> float:
    """P(at least ``audits.refused`` of the audits are refused) if requests do not differ: the hypergeometric tail."""
    total, refused = audits.asked + traffic.asked, audits.refused + traffic.refused
    whole = log_choose(total, audits.asked)
    terms = (
        math.exp(log_choose(refused, count) + log_choose(total - refused, audits.asked - count) - whole)
        for count in range(audits.refused, min(refused, audits.asked) + 1)
        if audits.asked - count <= total - refused
    )
    return min(1.0, math.fsum(terms))


def _look(asked: int) -> int:
    """Which look is due after so many audits: 1 at ``FIRST_LOOK``, 2 at twice as many and so on, 0 for none."""
    rounds, rest = divmod(asked, FIRST_LOOK)
    due = rest == 0 and rounds > 0 and rounds & (rounds - 1) == 0
    return rounds.bit_length() if due else 0
