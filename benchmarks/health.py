"""What the health page's interface costs for a large swarm: bytes and milliseconds of a state, a patch and a scrape."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from random import Random
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from swarm.core.keys import Identity
from swarm.health.state import (
    CoverageState,
    LinkState,
    ModelState,
    ObserverState,
    ServerState,
    StandingState,
    StatsState,
    SwarmState,
)
from swarm.health.web.feed import Encoded
from swarm.health.web.patches import difference
from swarm.health.web.prometheus import EventCounts, ModelLabels, Scrape, text

T = TypeVar("T")
AT = 1_800_000_000.0
LAYERS = 80
SPAN = 8
LINKS = 512
"""A watch shows so many of a model at most."""
ROUNDS = 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--servers", type=int, default=500, metavar="N", help="of one model (default: 500)")
    parser.add_argument("--changed", type=float, default=0.25, metavar="SHARE",
                        help="of servers and links, from one state to the next (default: 0.25)")  # fmt: skip


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Fastest of ``ROUNDS`` rounds each; everything in this process, no network."""
    dice = Random(7)
    peers = [str(Identity(dice.randbytes(32)).peer_id) for _ in range(options.servers)]
    old, fresh = _state(dice, peers, 1), _state(dice, peers, 2)
    new = _mixed(old, fresh, options.changed)
    labels = ModelLabels()
    labels.take(new)
    scrape = Scrape(state=new, labels=labels, events=EventCounts().counts, now_s=AT, uptime_s=0.0, streams=0)
    return {
        "servers": options.servers,
        "state": _encoded(lambda: msgspec.json.encode(new)),
        f"patch, {options.changed:.0%} changed": _encoded(lambda: msgspec.json.encode(difference(old, new))),
        "metrics": _timed(lambda: text(scrape))[0],
    }


def _encoded(make: Callable[[], bytes]) -> dict[str, float]:
    made, plain = _timed(make)
    packed, data = _timed(lambda: Encoded(plain).packed)
    return made | {"packed_kB": len(data) / 1e3, "packed_ms": packed["ms"]}


def _timed(work: Callable[[], bytes]) -> tuple[dict[str, float], bytes]:
    fastest_s = float("inf")
    for _ in range(ROUNDS):
        began_s = time.perf_counter()
        data = work()
        fastest_s = min(fastest_s, time.perf_counter() - began_s)
    return {"kB": len(data) / 1e3, "ms": fastest_s * 1e3}, data


def _mixed(old: SwarmState, new: SwarmState, share: float) -> SwarmState:
    """``old`` with the first ``share`` of servers and links as in ``new``, the others the same objects."""
    [before], [after] = old.models, new.models
    servers, links = int(share * len(before.servers)), int(share * len(before.links))
    model = replace(
        after,
        servers=[*after.servers[:servers], *before.servers[servers:]],
        links=[*after.links[:links], *before.links[links:]],
    )
    return replace(new, models=[model])


def _state(dice: Random, peers: list[str], revision: int) -> SwarmState:
    servers = [_server(dice, peer, number) for number, peer in enumerate(peers)]
    ring = len(peers)
    pairs = [(place % ring, (place + 1 + place // ring) % ring) for place in range(min(LINKS, ring * (ring - 1)))]
    links = [_link(dice, peers[source], peers[target]) for source, target in pairs]
    model = ModelState(
        model="model@main#0123456789abcdef", name="model", layers=LAYERS, usable=True, sentence="Usable now.",
        missing=[], coverage=[CoverageState(start=0, end=LAYERS, replicas=len(peers) * SPAN // LAYERS, silent=0)],
        tokens_per_s=20.0, served_tokens_per_s=400.0, sessions=40, knee_sessions=100.0, fullness=0.4,
        rebalances_per_hour=1.0, step_p50_s=0.01, step_p99_s=0.05, servers=servers, links=links, chains=[], advice=[],
    )  # fmt: skip
    observer = ObserverState(peer=peers[0], since_at=AT, directory_at=AT, problem="", software="swarm")
    return SwarmState(at=AT, revision=revision, observer=observer, models=[model], events=[])


def _server(dice: Random, peer: str, number: int) -> ServerState:
    start = number * SPAN % LAYERS
    return ServerState(
        peer=peer, short=peer[-8:], name=f"somebody's machine {number}", region="eu-west", condition="serving",
        since_at=AT, seen_at=AT + dice.random(), reached=True, start=start, end=start + SPAN, intent=None,
        head=start + SPAN == LAYERS, embeddings=start == 0, numerics="bfloat16", software="swarm 0.1.0", started_at=AT,
        reach="direct", memory_bytes=dice.randrange(2**34), kv_tokens=65536, kv_free_tokens=dice.randrange(65536),
        tau_s=_figure(dice), fixed_s=_figure(dice), prefill_tokens_per_s=_figure(dice), sessions=dice.randrange(9),
        queued_steps=dice.randrange(9), uplink_mbps=_figure(dice), rtt_s=_figure(dice), stats=_stats(dice),
        stats_note="", standing=StandingState(),
    )  # fmt: skip


def _stats(dice: Random) -> StatsState:
    return StatsState(
        figures_at=AT + dice.random(), uptime_s=dice.random() * 1e6, busy_share=_figure(dice),
        decode_tokens_per_s=_figure(dice), prefill_tokens_per_s=_figure(dice), answers_per_s=_figure(dice),
        forward_p50_s=_figure(dice), forward_p99_s=_figure(dice), step_p50_s=_figure(dice), step_p99_s=_figure(dice),
        sessions_total=dice.randrange(10**4), refused_total=dice.randrange(10**3), heals_total=dice.randrange(99),
        receipts_total=dice.randrange(10**5),
    )  # fmt: skip


def _link(dice: Random, source: str, target: str) -> LinkState:
    return LinkState(source=source, target=target, rtt_s=_figure(dice), goodput_mbps=_figure(dice))


def _figure(dice: Random) -> float:
    """Of as many digits as a watch shows."""
    return float(f"{dice.random():.3g}")
