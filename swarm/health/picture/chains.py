"""Live chains, put together from what each of their servers tells of its own stage. Pure.

Anybody may claim any stage of any label, with any figures. So stages are only ever laid side by side: nothing is
believed of one because of another, and times that cannot be are not shown. Labels are public once a server has told
one, so whoever claims a place later than another has to wait until that one falls silent. And anybody may tell of
chains that never were; so those that servers of the same networks tell share what room there is.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import msgspec

from swarm.core.ids import PeerId
from swarm.core.limits import MAX_STAGES
from swarm.health.networks import first_network
from swarm.health.picture.figures import rounded, rounded_or_none
from swarm.health.sight import STRANGER, Sight
from swarm.health.state import ChainState, StageState
from swarm.wire.status import WINDOW_S, StageFigures

MAX_CHAINS = 64
"""Of a model, complete ones first; of those the latest ones of each set of networks in turn."""
MOST_SPENT = 2.0
"""So many times its chain's period a stage's means may be; what takes longer did not happen once a token."""
SLOWEST_PERIOD_S = 60.0
FASTEST_PERIOD_S = 1e-4
"""Nobody decodes faster; what says so has not measured."""
QUIET_PERIODS = 10
LOYAL_S = 5.0
"""So much older than that of other known stages may a known stage's last step be before another takes its place."""
QUIET_S = 5.0
"""A chain whose last step is older than that, and than so many periods, makes no tokens at present."""


@dataclass(frozen=True, slots=True)
class _Claim:
    """One server's word about one stage; ``at`` is the wall time of its last step."""

    peer: PeerId
    figures: StageFigures
    at: float


def chains_of(sight: Sight) -> list[ChainState]:
    """The chains of a model, those with the latest steps first.

    A stage counts if it lies within the layers its server announces and had a step in the last ``WINDOW_S``. Of several
    claims to the same layers the one known longer counts, once it is over ``LOYAL_S`` late the one with the latest
    step, as after a heal. Who was ejected claims nothing. A chain of which neither all stages nor two decode steps were
    heard of is left out: servers that probe themselves at their start make such.

    O(claims log claims).
    """
    now_s, layers = sight.at, sight.layers
    claims: dict[bytes, list[_Claim]] = defaultdict(list)
    homes: dict[str, str] = {}
    for server in sight.servers:
        told = sight.heard.get(server.peer)
        if told is None or told.report is None or sight.repute.get(server.peer, STRANGER).ejected:
            continue
        homes[server.peer] = told.network or first_network(server.listing.announcement.addresses)
        span = server.listing.announcement.span
        for figures in told.report.chains:
            at = told.report_at - figures.age_s
            if span.start <= figures.start < figures.end <= min(span.end, layers) and now_s - at <= WINDOW_S:
                claims[figures.label].append(_Claim(server.peer, figures, at))
    dated = []
    for label, theirs in claims.items():
        chain = _chain(label, _ranked(theirs, sight.chains.get(label.hex(), frozenset())), layers, now_s)
        if chain.complete or any(claim.figures.period_s is not None for claim in theirs):
            dated.append((max(claim.at for claim in theirs), chain))
    dated.sort(key=lambda one: (-one[0], one[1].label))
    return [chain for _, chain in dated] if len(dated) <= MAX_CHAINS else _some(dated, homes)


def _some(dated: Sequence[tuple[float, ChainState]], homes: Mapping[str, str]) -> list[ChainState]:
    """``MAX_CHAINS`` of them in the order they have, complete ones before others, going round the networks."""
    before: Counter[tuple[bool, frozenset[str]]] = Counter()
    ranked = []
    for place, (_, chain) in enumerate(dated):
        crowd = chain.complete, frozenset(homes[stage.peer] for stage in chain.stages)
        ranked.append((not chain.complete, before[crowd], place))
        before[crowd] += 1
    ranked.sort()
    return [dated[place][1] for place in sorted(place for _, _, place in ranked[:MAX_CHAINS])]


def _ranked(claims: Sequence[_Claim], known: Collection[str]) -> list[_Claim]:
    """Those of ``known`` servers that keep up with one another first, then by their latest steps."""
    latest_at = max((claim.at for claim in claims if claim.peer in known), default=0.0)
    return sorted(claims, key=lambda one: (one.peer not in known or latest_at - one.at > LOYAL_S, -one.at, one.peer))


def _chain(label: bytes, claims: Sequence[_Claim], layers: int, now_s: float) -> ChainState:
    stages = _tiling(claims, layers)
    complete = stages is not None
    if stages is None:
        stages = _beside(claims)
    periods_s = [stage.figures.period_s for stage in stages if stage.figures.period_s is not None]
    period_s = median(periods_s) if periods_s else None
    if period_s is not None and not FASTEST_PERIOD_S <= period_s <= SLOWEST_PERIOD_S:
        period_s = None
    stages = [_believed(stage, period_s) for stage in stages]
    spent = [_spent_s(stage.figures) for stage in stages]
    elsewhere_s = None
    if complete and period_s is not None and None not in spent:
        elsewhere_s = max(period_s - sum(one for one in spent if one is not None), 0.0)
    quiet_s = now_s - max(stage.at for stage in stages)
    moving = period_s is not None and quiet_s <= max(QUIET_S, QUIET_PERIODS * period_s)
    return ChainState(
        label=label.hex(),
        tokens_per_s=rounded(1 / period_s) if period_s is not None and moving else None,
        period_s=rounded_or_none(period_s),
        elsewhere_s=rounded_or_none(elsewhere_s),
        complete=complete,
        open_s=float(round(max(stage.figures.open_s for stage in stages))),
        stages=[_stage(stage) for stage in stages],
    )


def _tiling(claims: Sequence[_Claim], layers: int) -> list[_Claim] | None:
    """Claims that tile ``[0, layers)``, wherever there is a choice the first that leads to the end; None without a way.

    O(claims).
    """
    by_start: dict[int, list[_Claim]] = defaultdict(list)
    for claim in claims:
        by_start[claim.figures.start].append(claim)
    onward: dict[int, _Claim] = {}  # the first claim of a way from here to the end
    for start in sorted(by_start, reverse=True):
        for claim in by_start[start]:
            if claim.figures.end == layers or claim.figures.end in onward:
                onward[start] = claim
                break
    way: list[_Claim] = []
    at = 0
    while at < layers:
        if at not in onward or len(way) == MAX_STAGES:
            return None
        way.append(onward[at])
        at = onward[at].figures.end
    return way


def _beside(claims: Sequence[_Claim]) -> list[_Claim]:
    """Claims that do not overlap, the first ones of those that do, in order of layers."""
    chosen: list[_Claim] = []
    for claim in claims:
        figures = claim.figures
        if all(other.figures.end <= figures.start or figures.end <= other.figures.start for other in chosen):
            chosen.append(claim)
        if len(chosen) == MAX_STAGES:
            break
    return sorted(chosen, key=lambda claim: claim.figures.start)


def _believed(claim: _Claim, period_s: float | None) -> _Claim:
    """``claim``, without its times if they cannot be."""
    spent_s = _spent_s(claim.figures)
    if spent_s is None or period_s is None or spent_s <= MOST_SPENT * period_s:
        return claim
    return replace(claim, figures=msgspec.structs.replace(claim.figures, wait_s=None, compute_s=None, send_s=None))


def _spent_s(figures: StageFigures) -> float | None:
    parts = figures.wait_s, figures.compute_s, figures.send_s
    return None if None in parts else sum(part for part in parts if part is not None)


def _stage(claim: _Claim) -> StageState:
    figures = claim.figures
    return StageState(
        peer=claim.peer,
        stage=figures.stage,
        start=figures.start,
        end=figures.end,
        wait_s=rounded_or_none(figures.wait_s),
        compute_s=rounded_or_none(figures.compute_s),
        send_s=rounded_or_none(figures.send_s),
        figures_at=claim.at,
    )
