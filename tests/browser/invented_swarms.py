"""Swarms that never were, of any size, as the health page's state."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Sequence
from typing import Any

import base58

from swarm.core.spans import Span
from swarm.health.state import (
    AdviceState,
    ChainState,
    CoverageState,
    EventState,
    HistoryState,
    LinkState,
    ModelState,
    ObserverState,
    ServerState,
    StageState,
    StandingState,
    StatsState,
    SwarmState,
)
from swarm.scheduling.reasons import layers_text

AT = time.time()
GREY = ("silent", "ejected")


def peer_id(number: int) -> str:
    """A well-formed peer id, the same for the same number."""
    return base58.b58encode(b"\x00\x24\x08\x01\x12\x20" + hashlib.sha256(str(number).encode()).digest()).decode()


def stats(dice: random.Random, at: float) -> StatsState:
    step_s = dice.uniform(0.01, 0.05)
    return StatsState(
        figures_at=at - dice.uniform(0, 8), uptime_s=dice.uniform(100, 9e5), busy_share=dice.random(),
        decode_tokens_per_s=dice.uniform(0, 90), prefill_tokens_per_s=dice.uniform(0, 900),
        answers_per_s=dice.uniform(0, 30), forward_p50_s=step_s * 0.8, forward_p99_s=step_s * 2, step_p50_s=step_s,
        step_p99_s=step_s * 3, sessions_total=dice.randrange(900), refused_total=dice.randrange(9),
        heals_total=dice.randrange(5), receipts_total=dice.randrange(9000),
    )  # fmt: skip


def server(number: int, start: int, end: int, **changes: Any) -> ServerState:
    """One that serves, unless ``changes`` say otherwise."""
    dice = random.Random(number)
    peer = peer_id(number)
    whole: dict[str, Any] = {
        "peer": peer, "short": peer[-8:], "name": f"volunteer-{number}", "region": dice.choice(("eu", "us", "")),
        "condition": "serving", "since_at": AT - dice.uniform(60, 9e4), "seen_at": AT - dice.uniform(0, 4),
        "reached": True, "start": start, "end": end, "intent": None, "head": False, "embeddings": start == 0,
        "numerics": dice.choice(("bfloat16", "bfloat16 nf4, KV bfloat16", "float32")), "software": "swarm 0.6.0",
        "started_at": AT - 9e4, "reach": dice.choice(("direct", "relayed", "dials out")),
        "memory_bytes": dice.randrange(4, 25) * 2**30, "kv_tokens": 65536, "kv_free_tokens": dice.randrange(65536),
        "tau_s": dice.uniform(0.0004, 0.006), "fixed_s": dice.uniform(0.0005, 0.003),
        "prefill_tokens_per_s": dice.uniform(100, 2000), "sessions": dice.randrange(6),
        "queued_steps": dice.randrange(3), "uplink_mbps": dice.uniform(5, 900), "rtt_s": dice.uniform(0.001, 0.25),
        "stats": stats(dice, AT), "stats_note": "",
        "standing": StandingState(audited_windows=dice.randrange(40), spot_checkable=dice.random() < 0.7),
    }  # fmt: skip
    if changes.get("condition") in GREY:
        whole |= {
            "reached": False, "kv_free_tokens": None, "tau_s": None, "fixed_s": None, "prefill_tokens_per_s": None,
            "sessions": None, "queued_steps": None, "uplink_mbps": None, "rtt_s": None, "stats": None,
            "stats_note": "unreachable",
        }  # fmt: skip
    return ServerState(**(whole | changes))


def coverage(servers: Sequence[ServerState], layers: int) -> list[CoverageState]:
    """Stretches of layers with one number of servers, of live and of silent ones."""
    stretches: list[CoverageState] = []
    for layer in range(layers):
        here = [one for one in servers if one.start <= layer < one.end]
        live = sum(one.condition == "serving" for one in here)
        silent = sum(one.condition == "silent" for one in here)
        last = stretches[-1] if stretches else None
        if last and (last.replicas, last.silent) == (live, silent):
            stretches[-1] = CoverageState(start=last.start, end=layer + 1, replicas=live, silent=silent)
        else:
            stretches.append(CoverageState(start=layer, end=layer + 1, replicas=live, silent=silent))
    return stretches


def links(servers: Sequence[ServerState], each: int = 4) -> list[LinkState]:
    """From every server to the next ``each``; every third is an estimate."""
    dice = random.Random(len(servers))
    made: list[LinkState] = []
    for i, source in enumerate(servers):
        for step in range(1, min(each, len(servers) - 1) + 1):
            estimated = (i + step) % 3 == 0
            link = LinkState(
                source=source.peer, target=servers[(i + step) % len(servers)].peer, rtt_s=dice.uniform(0.001, 0.3),
                estimated=estimated, goodput_mbps=None if estimated else dice.uniform(1, 900),
                noop_age_s=None if estimated else dice.uniform(0, 0.2),
            )  # fmt: skip
            made.append(link)
    return made


def chain(label: str, servers: Sequence[ServerState]) -> ChainState:
    """A live chain through ``servers``, each with its whole span."""
    dice = random.Random(label)
    stages = [
        StageState(
            peer=one.peer, stage=i, start=one.start, end=one.end, wait_s=dice.uniform(0, 0.004),
            compute_s=dice.uniform(0.008, 0.03), send_s=dice.uniform(0.0005, 0.006), figures_at=AT - dice.uniform(0, 9),
        )
        for i, one in enumerate(servers)
    ]  # fmt: skip
    spent_s = sum((one.wait_s or 0) + (one.compute_s or 0) + (one.send_s or 0) for one in stages)
    elsewhere_s = dice.uniform(0.01, 0.05)
    period_s = spent_s + elsewhere_s
    return ChainState(
        label=label, tokens_per_s=1 / period_s, period_s=period_s, elsewhere_s=elsewhere_s, complete=True,
        open_s=dice.uniform(1, 500), stages=stages,
    )  # fmt: skip


def advice(name: str, span: Span) -> AdviceState:
    return AdviceState(
        start=span.start, end=span.end,
        reason=f"Nobody serves {layers_text([span])}: without them there are no answers.",
        command=f"python -m swarm.server --model {name} --blocks {span} "
        "--initial-peers /ip4/192.0.2.7/tcp/31330/p2p/" + peer_id(0),
    )  # fmt: skip


def model(name: str, layers: int, servers: Sequence[ServerState], **changes: Any) -> ModelState:
    """What the page would be told of ``servers``."""
    stretches = coverage(servers, layers)
    missing = [(one.start, one.end) for one in stretches if not one.replicas]
    said = "Usable now: about 14 tokens/s for a new session; 3 of about 24 sessions before it gets slower."
    if missing:
        said = f"Not usable: nobody serves {layers_text([Span(*hole) for hole in missing])}."
    whole: dict[str, Any] = {
        "model": f"{name}@main#0123456789abcdef", "name": name, "layers": layers, "usable": not missing,
        "sentence": said, "missing": missing, "coverage": stretches,
        "tokens_per_s": None if missing else 14.2, "served_tokens_per_s": 37.5, "sessions": 3, "knee_sessions": 24.0,
        "fullness": 0.125, "rebalances_per_hour": 0.5, "step_p50_s": 0.071, "step_p99_s": 0.19,
        "servers": list(servers), "links": links(servers), "chains": [],
        "advice": [advice(name, Span(*hole)) for hole in missing],
    }  # fmt: skip
    return ModelState(**(whole | changes))


def swarm(*models: ModelState, revision: int = 1, at: float = AT, events: Sequence[EventState] = ()) -> SwarmState:
    observer = ObserverState(
        peer=peer_id(-1), since_at=AT - 7200, directory_at=at - 1, problem="", software="swarm 0.6.0"
    )
    return SwarmState(at=at, revision=revision, observer=observer, models=list(models), events=list(events))


def three(**third: Any) -> list[ServerState]:
    """Three servers of ten layers each; ``third`` changes the last."""
    return [server(1, 0, 10), server(2, 10, 20), server(3, 20, 30, head=True, **third)]


def crowd(count: int, layers: int = 80) -> list[ServerState]:
    """Many servers with spans all over, some of them silent, ejected, joining."""
    dice = random.Random(count)
    conditions = ("serving",) * 12 + ("silent", "joining", "draining", "ejected")
    made: list[ServerState] = []
    for number in range(count):
        start = dice.randrange(layers - 3)
        end = min(layers, start + dice.randrange(3, 24))
        made.append(server(number, start, end, condition=dice.choice(conditions)))
    return made


def events(count: int) -> list[EventState]:
    kinds = (
        "joined",
        "left",
        "silent",
        "back",
        "moved",
        "healed",
        "struck",
        "accused",
        "ejected",
        "usable",
        "unusable",
    )
    made: list[EventState] = []
    for number in range(1, count + 1):
        kind = kinds[number % len(kinds)]
        proof = hashlib.sha256(bytes([number])).hexdigest() if kind in ("struck", "ejected") else ""
        text = f"volunteer-{number} {kind}"
        at = AT - 60.0 * (count - number)
        made.append(
            EventState(number=number, at=at, kind=kind, model="m", peer=peer_id(number), text=text, proof=proof)
        )
    return made


def history(model: str, hours: float, until: float = AT) -> HistoryState:
    """A day with a hole in it, as far back as is asked."""
    dice = random.Random(5)
    step_s = 60.0
    rows = int(hours * 60)
    at = [until - step_s * (rows - i) for i in range(rows)]
    hole = range(rows // 3, rows // 3 + rows // 12)

    def column(low: float, high: float) -> list[float | None]:
        return [None if i in hole else dice.uniform(low, high) for i in range(rows)]

    return HistoryState(
        model=model, step_s=step_s, at=at, tokens_per_s=column(20, 30), served_tokens_per_s=column(30, 60),
        covered_share=column(0.9, 1.0),
        servers=[None if i in hole else 40 + i % 7 for i in range(rows)], step_p50_s=column(0.05, 0.08),
        step_p99_s=column(0.1, 0.4),
    )  # fmt: skip
