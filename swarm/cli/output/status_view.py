"""What `status` shows: pure functions of what was read from a directory."""

from __future__ import annotations

import json
from collections.abc import Sequence

from swarm.cli.output.tables import ms, table
from swarm.cli.what_if import chain_text, stages_json
from swarm.client.finding.snapshot import Snapshot
from swarm.core.errors import NoRouteError
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.core.spans import Span
from swarm.core.text import clip
from swarm.health.picture.advice import command
from swarm.scheduling.bounds import Bounds
from swarm.scheduling.coverage import holders, runs
from swarm.scheduling.reasons import layers_text
from swarm.scheduling.routing import Route

MAX_ROWS = 200
"""Servers a person is shown; a program gets them all."""
NAME_CHARS = 20
SERVER_HEAD = ("server", "name", "layers", "state", "reach", "numerics", "a layer", "fixed", "from here", "nearest",
               "sessions", "free KV", "uplink")  # fmt: skip


def models_text(entries: Sequence[ModelEntry]) -> str:
    """The model index for a person."""
    if not entries:
        return "no server of this swarm has told of its model yet; name the model you mean: --model demo"
    rows = [(clip(entry.model, 120), str(entry.layer_count)) for entry in entries]
    return "models of this swarm:\n" + table(("model", "layers"), rows)


def models_json(entries: Sequence[ModelEntry]) -> str:
    """The model index alone, for a program."""
    return json.dumps({"models": [{"model": entry.model, "layers": entry.layer_count} for entry in entries]})


def status_text(snapshot: Snapshot, contacts: Sequence[str] = ()) -> str:
    """Everything for a person; ``contacts`` are addresses to join by. What peers wrote is clipped and printable."""
    quiet = sum(one.metrics is None for one in snapshot.shown)
    heard = f", {quiet} of them not heard of lately" if quiet else ""
    parts = [f"{clip(snapshot.model, 120)}: {snapshot.layers} layers, {_servers(len(snapshot.shown))}{heard}"]
    if snapshot.shown:
        shown = snapshot.shown[:MAX_ROWS]
        parts.append(table(SERVER_HEAD, [_row(one, snapshot.client_rtt_s.get(one.peer)) for one in shown]))
        if len(shown) < len(snapshot.shown):
            parts.append(f"  and {len(snapshot.shown) - len(shown)} more; --json has them all")
    held = holders((one.announcement.span for one in snapshot.shown), snapshot.layers)
    coverage = [coverage_text(snapshot.counts)]
    if snapshot.holes:
        bare, idle = _holes(snapshot.counts, held)
        start = command(snapshot.model, contacts, (bare or idle)[0], snapshot.layers)
        coverage += [f"{holes_text(bare, idle)}; start one:", f"  {start}"]
    parts += ["\n".join(coverage), _route_text(snapshot)]
    return "\n\n".join(parts)


def coverage_text(counts: Sequence[int]) -> str:
    """How many servers hold which layers."""
    rows = [(str(span), str(count)) for span, count in runs(counts)]
    return "coverage by servers that sessions can use:\n" + table(("layers", "servers"), rows)


def holes_text(bare: Sequence[Span], idle: Sequence[Span]) -> str:
    """What is missing: layers of no server at all, and layers only of servers that no session can use."""
    told = [f"nobody holds {layers_text(bare)}"] if bare else []
    if idle:
        text = layers_text(idle)
        told.append(
            f"{text} {'is' if text.startswith('layer ') else 'are'} held only by servers that cannot be used now"
        )
    return "; ".join(told)


def _holes(counts: Sequence[int], held: Sequence[int]) -> tuple[list[Span], list[Span]]:
    """The layers without a usable server: those that nobody holds, and the others."""
    bare = [span for span, count in runs(held) if count == 0]
    unused = [int(any_one > 0 and usable == 0) for usable, any_one in zip(counts, held, strict=True)]
    return bare, [span for span, flag in runs(unused) if flag]


def status_json(snapshot: Snapshot, entries: Sequence[ModelEntry]) -> str:
    """Everything for a program; figures that nobody measured are null."""
    route, expected = snapshot.route, snapshot.expected
    return json.dumps(
        {
            "model": snapshot.model,
            "layers": snapshot.layers,
            "models": [{"model": entry.model, "layers": entry.layer_count} for entry in entries],
            "servers": [_server(one, snapshot.client_rtt_s.get(one.peer)) for one in snapshot.shown],
            "coverage": snapshot.counts,
            "holes": [[hole.start, hole.end] for hole in snapshot.holes],
            "chain": stages_json((str(s.peer), s.span) for s in route.stages) if isinstance(route, Route) else [],
            "latency_s": None if expected is None else expected.middle_s,
            "latency_range_s": None if expected is None else [expected.least_s, expected.most_s],
            "reason": None if isinstance(route, Route) else route.message,
            "activation_bytes": snapshot.cluster.activation_bytes,
        }
    )


def _servers(count: int) -> str:
    return "1 server" if count == 1 else f"{count} servers"


def _route_text(snapshot: Snapshot) -> str:
    route, expected = snapshot.route, snapshot.expected
    if isinstance(route, NoRouteError):
        return f"no chain: {route.message if snapshot.holes else route}"  # what to start is said of the holes
    assert expected is not None, "there is a chain"
    chain = chain_text((stage.peer[-8:], stage.span) for stage in route.stages)
    size = "" if snapshot.hidden_size else f", if a row takes {snapshot.cluster.activation_bytes} bytes"
    return f"the fastest chain from here: {chain}\n  {_expected_text(expected)} predicted for a new session{size}"


def _expected_text(step: Bounds) -> str:
    if not step.vague:
        return f"{ms(step.middle_s)} a token, {1 / step.middle_s:.2f} tokens/s"
    range_s, rates = f"{ms(step.least_s)} to {ms(step.most_s)}", f"{1 / step.most_s:.2f} to {1 / step.least_s:.2f}"
    return f"{range_s} a token, {rates} tokens/s ({step.doubts})"


def _nearest(listing: Listing) -> tuple[str, float] | None:
    rtt_s = {} if listing.metrics is None else listing.metrics.rtt_s
    return min(rtt_s.items(), key=lambda item: (item[1], item[0]), default=None)


def _row(listing: Listing, client_rtt_s: float | None) -> tuple[str, ...]:
    announced, metrics = listing.announcement, listing.metrics
    nearest = _nearest(listing)
    state = announced.state.value if metrics is not None else "not heard of lately"
    if announced.intent is not None:
        state += f", to {announced.intent.span}"
    return (
        announced.peer[-8:],
        clip(announced.public_name, NAME_CHARS) or "-",
        str(announced.span),
        state,
        announced.reach.value,
        str(announced.numerics),
        ms(None if metrics is None else metrics.tau_s),
        ms(None if metrics is None else metrics.fixed_s),
        ms(client_rtt_s),
        "-" if nearest is None else f"{clip(nearest[0], 64)[-8:]} {ms(nearest[1])}",
        "-" if metrics is None else f"{metrics.sessions}" + (f" +{metrics.queued_steps}" * bool(metrics.queued_steps)),
        str(announced.kv_tokens if metrics is None else metrics.kv_free_tokens),
        "-" if metrics is None or metrics.uplink_mbps is None else f"{metrics.uplink_mbps:.1f} Mbit/s",
    )


def _server(listing: Listing, client_rtt_s: float | None) -> dict[str, object]:
    announced, metrics = listing.announcement, listing.metrics
    nearest = _nearest(listing)
    shown: dict[str, object] = {
        "id": announced.peer,
        "public_name": announced.public_name,
        "span": [announced.start, announced.end],
        "state": announced.state.value,
        "live": metrics is not None,
        "reach": announced.reach.value,
        "numerics": str(announced.numerics),
        "head": announced.head,
        "embeddings": announced.embeddings,
        "region": announced.region,
        "capacity_layers": announced.capacity_layers,
        "power": announced.power_layers_per_s,
        "kv_tokens": announced.kv_tokens,
        "software": announced.software,
        "intent": None if announced.intent is None else [announced.intent.start, announced.intent.end],
        "client_rtt_s": client_rtt_s,
        "nearest": None if nearest is None else {"id": nearest[0], "rtt_s": nearest[1]},
    }
    live = ("tau_s", "fixed_s", "step_s", "rtt_s", "sessions", "queued_steps", "kv_free_tokens", "uplink_mbps",
            "prefill_tokens_per_s")  # fmt: skip
    return shown | {name: None if metrics is None else getattr(metrics, name) for name in live}
