"""From what is known of a model to what people see of it. Pure; what takes time in it is routing.

A server counts as a replica of its layers only if a session could use it, this page reached it (or has not come to try
it in the few seconds since it came), and nothing was proven against it here. Everything else only claims its layers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from swarm.client.finding.snapshot import NEEDS, Snapshot
from swarm.core.announcement import Reach, State
from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.core.spans import Span
from swarm.core.text import clip, legible
from swarm.health.picture.advice import advice
from swarm.health.picture.chains import chains_of
from swarm.health.picture.figures import rounded, rounded_or_none, stats_of, together, window_s
from swarm.health.picture.links import links_of
from swarm.health.picture.sentence import Outlook, sentence
from swarm.health.sight import NOTHING_HEARD, STRANGER, Heard, Repute, Seen, Sight
from swarm.health.state import CoverageState, ModelState, ServerState, StandingState
from swarm.scheduling.bounds import Bounds, likely
from swarm.scheduling.coverage import holders, runs, usable
from swarm.scheduling.knee import swarm_knee
from swarm.scheduling.routing import Route
from swarm.wire.status import StatusReport

FIGURES_S = 120.0
"""Older figures of a server are not shown: they say nothing of how it is."""
SHORT_CHARS = 8
MAX_NAME_CHARS = 120
MOST_SESSIONS = 1024
"""Of one server that count; sixteen times what one takes by itself."""
MOST_TOKENS_PER_S = 1e5
"""Of one server that count; no machine computes more."""
AUDITORS = 2
"""Others that must hold all layers of a server so that its work can be judged: if one of them disagrees, the other
decides."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What routing says of a model: how long a step of a new session takes (None: there is no chain), and how many
    sessions there is room for."""

    step: Bounds | None
    knee_sessions: float | None
    reason: str


NO_PREDICTION = Prediction(None, None, "")


def condition(seen: Seen, heard: Heard, *, ejected: bool, as_of: float) -> str:
    """A server's state in one word (``ServerState``)."""
    state, metrics = seen.listing.announcement.state, seen.listing.metrics
    if ejected:
        return "ejected"
    if seen.gone:
        return "silent"
    if state is State.JOINING:
        return "joining"
    live = metrics is not None and metrics.expires_s > as_of
    if state is State.DRAINING and (heard.reached or (live and heard.reached is None)):
        return "draining"  # without metrics, too: it may be loading other layers by now
    if heard.reached is False or heard.waiting or not live or seen.listing.announcement.reach is Reach.UNREACHABLE:
        return "silent"
    return "serving"


def replicas(sight: Sight) -> list[Listing]:
    """The servers that count."""
    found = []
    for seen in sight.servers:
        if seen.gone or not usable(seen.listing):
            continue
        heard = sight.heard.get(seen.peer, NOTHING_HEARD)
        ejected = sight.repute.get(seen.peer, STRANGER).ejected
        if condition(seen, heard, ejected=ejected, as_of=sight.as_of) == "serving":
            found.append(seen.listing)
    return found


def predict(sight: Sight, serving: Sequence[Listing]) -> Prediction:
    """What a new session from here would get of ``serving``. Takes as long as a route does; nothing where a layer is
    missing."""
    if not sight.layers or 0 in holders((listing.announcement.span for listing in serving), sight.layers):
        return NO_PREDICTION
    rtts: dict[str, float] = {peer: heard.rtt_s for peer, heard in sight.heard.items() if heard.rtt_s is not None}
    snapshot = Snapshot(
        model=sight.model,
        layers=sight.layers,
        listings=serving,
        client_rtt_s=rtts,
        hidden_size=sight.hidden_size,
    )
    route = snapshot.route
    if not isinstance(route, Route):
        return Prediction(None, None, route.message)
    nodes = {node.id: node for node in snapshot.cluster.nodes}
    chain = [(nodes[stage.peer], len(stage.span)) for stage in route.stages]
    most = swarm_knee(likely(snapshot.cluster, chain), chain, NEEDS)
    return Prediction(snapshot.expected, None if math.isinf(most) else most, "")


def build(sight: Sight, prediction: Prediction) -> ModelState:
    """The whole state of one model; servers by layers, then by peer id."""
    serving = replicas(sight)
    counting = {listing.peer for listing in serving}
    counts = holders((listing.announcement.span for listing in serving), sight.layers)
    missing = [span for span, count in runs(counts) if count == 0] if counts else []
    servers = _servers(sight, serving)
    sessions = _sessions(serving, sight.layers)
    knee = rounded_or_none(prediction.knee_sessions)
    reports = {peer: told.report for peer in counting if (told := sight.heard.get(peer)) is not None and told.report}
    steps = together([report.step_s for report in reports.values()])
    usable_now = bool(counts) and not missing and prediction.step is not None
    speed = prediction.step if usable_now else None
    outlook = Outlook(sight.layers, missing, prediction.step, sessions, knee, prediction.reason)
    name = sight.model.partition("#")[0].partition("@")[0]
    return ModelState(
        model=sight.model,
        name=clip(name, MAX_NAME_CHARS),
        layers=sight.layers,
        since_at=sight.since_at,
        usable=usable_now,
        sentence=sentence(outlook),
        missing=[(span.start, span.end) for span in missing],
        coverage=_coverage(sight, counts, counting),
        tokens_per_s=None if speed is None else rounded(1 / speed.middle_s, 3),
        tokens_per_s_range=None if speed is None else (rounded(1 / speed.most_s, 3), rounded(1 / speed.least_s, 3)),
        served_tokens_per_s=_served(serving, reports, sight.layers),
        sessions=sessions,
        knee_sessions=knee,
        fullness=None if not knee else rounded(sessions / knee),
        rebalances_per_hour=float(sight.moves),
        step_p50_s=rounded_or_none(steps.quantile_s(0.5)),
        step_p99_s=rounded_or_none(steps.quantile_s(0.99)),
        servers=servers,
        links=links_of([seen for seen in sight.servers if seen.peer in counting], sight.heard),
        chains=chains_of(sight),
        advice=advice(counts, _slowest(serving, counts), sight.model, sight.contacts),
    )


def _coverage(sight: Sight, counts: Sequence[int], counting: set[PeerId]) -> list[CoverageState]:
    """Stretches of layers with equal numbers of both kinds; together they tile the model."""
    claims = [
        seen.listing.announcement.span
        for seen in sight.servers
        if seen.peer not in counting and seen.listing.announcement.state is not State.JOINING
    ]
    if not sight.layers:
        return []
    kinds = np.array([counts, holders(claims, sight.layers)])
    edges = [0, *(np.flatnonzero(np.any(np.diff(kinds), axis=0)) + 1).tolist(), sight.layers]
    return [
        CoverageState(start=start, end=end, replicas=int(kinds[0, start]), silent=int(kinds[1, start]))
        for start, end in pairwise(edges)
    ]


def _served(serving: Sequence[Listing], reports: Mapping[PeerId, StatusReport], layers: int) -> float | None:
    """Tokens a second that all sessions got, by the tails' word; None if no server says.

    Every token takes a row through every layer, so what tails claim is bounded by the rows at any layer all of whose
    servers tell of theirs.
    """
    if not reports:
        return None
    claimed = sum(min(report.answers / window_s(report), MOST_TOKENS_PER_S) for report in reports.values())
    rows = np.zeros(layers)
    for listing in serving:
        report = reports.get(listing.peer)
        span = slice(listing.announcement.start, listing.announcement.end)
        rows[span] += np.inf if report is None else (report.decode_rows + report.prefill_rows) / window_s(report)
    return rounded(min(claimed, float(rows.min())))


def _sessions(serving: Sequence[Listing], layers: int) -> int:
    """How many sessions there are at most: each passes one holder of every layer, so the least layer bounds them."""
    if not layers or not serving:
        return 0
    passing = np.zeros(layers, dtype=np.int64)
    for listing in serving:
        if listing.metrics is not None:
            sessions = min(listing.metrics.sessions, MOST_SESSIONS)
            passing[listing.announcement.start : listing.announcement.end] += sessions
    return int(passing.min())


def _slowest(serving: Sequence[Listing], counts: Sequence[int]) -> list[Span]:
    """The span of the server whose layers take longest even at their fastest holder; none where all are alike."""
    if not serving or 0 in counts:
        return []
    fastest_s = np.full(len(counts), np.inf)
    for listing in serving:
        if listing.metrics is not None:
            part = fastest_s[listing.announcement.start : listing.announcement.end]
            np.minimum(part, listing.metrics.tau_s, out=part)
    worst = int(fastest_s.argmax())
    if not fastest_s[worst] > 1.1 * float(np.median(fastest_s)):
        return []
    alike = fastest_s == fastest_s[worst]
    end = worst
    while end < len(counts) and alike[end]:
        end += 1
    return [Span(worst, end)]


def spot_checkable(serving: Sequence[Listing]) -> set[PeerId]:
    """Those whose work enough others could compute again: ``AUDITORS`` that hold all their layers in the same dtype and
    quantization (for layer 0 with the embeddings), as ``client.auditing.auditors`` chooses them. O(servers²) in numpy.
    """
    told = [listing.announcement for listing in serving]
    starts, ends = np.array([one.start for one in told]), np.array([one.end for one in told])
    kinds = {
        kind: number for number, kind in enumerate({(one.numerics.dtype, one.numerics.quantization) for one in told})
    }
    kind = np.array([kinds[one.numerics.dtype, one.numerics.quantization] for one in told])
    embeddings = np.array([one.embeddings for one in told], dtype=bool)
    found = set()
    for place, listing in enumerate(serving):
        fit = (starts <= starts[place]) & (ends >= ends[place]) & (kind == kind[place])
        if starts[place] == 0:
            fit &= embeddings
        fit[place] = False
        if int(fit.sum()) >= AUDITORS:
            found.add(listing.peer)
    return found


def _servers(sight: Sight, serving: Sequence[Listing]) -> list[ServerState]:
    checkable = spot_checkable(serving)
    servers = [_server(sight, seen, checkable) for seen in sight.servers]
    if len(servers) > sight.most_servers:  # those that serve first, of them who has been reached for longest
        servers.sort(key=lambda server: (server.condition != "serving", not server.reached, _since_at(sight, server)))
        del servers[sight.most_servers :]
    servers.sort(key=lambda server: (server.start, server.end, server.peer))
    return servers


def _since_at(sight: Sight, server: ServerState) -> tuple[float, str]:
    return sight.heard.get(PeerId(server.peer), NOTHING_HEARD).since_at, server.peer


def _server(sight: Sight, seen: Seen, checkable: set[PeerId]) -> ServerState:
    told, peer = seen.listing.announcement, seen.peer
    heard, repute = sight.heard.get(peer, NOTHING_HEARD), sight.repute.get(peer, STRANGER)
    report = heard.report if sight.at - heard.report_at <= FIGURES_S else None
    state = condition(seen, heard, ejected=repute.ejected, as_of=sight.as_of)
    metrics = None if state == "silent" else seen.listing.metrics  # its last ones tell of a time that is over
    return ServerState(
        peer=peer,
        short=peer[-SHORT_CHARS:],
        name=legible(told.public_name),
        region=legible(told.region),
        condition=state,
        since_at=sight.at,
        seen_at=max(seen.seen_at, heard.heard_at or 0.0),
        reached=heard.reached,
        start=told.start,
        end=told.end,
        intent=None if told.intent is None else (told.intent.start, told.intent.end),
        head=told.head,
        embeddings=told.embeddings,
        numerics=str(told.numerics),
        software=legible(told.software),
        started_at=told.started_s,
        reach=told.reach.value,
        memory_bytes=told.memory_bytes,
        kv_tokens=told.kv_tokens,
        kv_free_tokens=None if metrics is None else metrics.kv_free_tokens,
        tau_s=None if metrics is None else rounded(metrics.tau_s),
        fixed_s=None if metrics is None else rounded(metrics.fixed_s),
        prefill_tokens_per_s=None if metrics is None else rounded(metrics.prefill_tokens_per_s),
        sessions=None if metrics is None else metrics.sessions,
        queued_steps=None if metrics is None else metrics.queued_steps,
        uplink_mbps=None if metrics is None else rounded_or_none(metrics.uplink_mbps),
        rtt_s=rounded_or_none(heard.rtt_s),
        stats=None if report is None else stats_of(report, heard.report_at),
        stats_note=heard.note,
        standing=_standing(repute, checkable=peer in checkable),
    )


def _standing(repute: Repute, *, checkable: bool) -> StandingState:
    return StandingState(
        audited_windows=repute.audited,
        strikes=repute.strikes,
        ejected=repute.ejected,
        accused=repute.accused,
        spot_checkable=checkable or repute.trusted,
        proofs=list(repute.proofs),
    )
