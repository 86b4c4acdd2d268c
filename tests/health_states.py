"""States of a swarm, made by hand, and a watch that shows them: for what stands above the watch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NoReturn

import base58

from swarm.health.state import (
    CoverageState,
    EventState,
    HistoryState,
    LinkState,
    ModelState,
    ObserverState,
    ServerState,
    StandingState,
    StatsState,
    SwarmState,
)

BEGAN_AT = 1_800_000_000.0
MODEL = "demo@main#0123456789abcdef"


def peer_of(number: int) -> str:
    """A peer id as real ones look."""
    return base58.b58encode(b"\x00\x24\x08\x01\x12\x20" + number.to_bytes(32, "big")).decode()


def server(number: int, **fields: Any) -> ServerState:
    """A serving one, of ten layers."""
    start = number % 3 * 10
    known = {
        "peer": peer_of(number), "short": peer_of(number)[-8:], "name": f"server {number}", "region": "eu",
        "condition": "serving", "since_at": BEGAN_AT, "seen_at": BEGAN_AT, "reached": True, "start": start,
        "end": start + 10, "intent": None, "head": start == 20, "embeddings": start == 0, "numerics": "float32",
        "software": "swarm 0.1.0", "started_at": BEGAN_AT - 100, "reach": "direct", "memory_bytes": 2**30,
        "kv_tokens": 4096, "kv_free_tokens": 4000, "tau_s": 0.001, "fixed_s": 0.002, "prefill_tokens_per_s": 100.0,
        "sessions": 1, "queued_steps": 0, "uplink_mbps": 50.0, "rtt_s": 0.02, "stats": None, "stats_note": "",
        "standing": StandingState(),
    }  # fmt: skip
    return ServerState(**known | fields)


def stats(**fields: Any) -> StatsState:
    """What a server told at ``BEGAN_AT``."""
    known = {
        "figures_at": BEGAN_AT, "uptime_s": 100.0, "busy_share": 0.5, "decode_tokens_per_s": 12.5,
        "prefill_tokens_per_s": 80.0, "answers_per_s": 12.5, "forward_p50_s": 0.01, "forward_p99_s": 0.02,
        "step_p50_s": 0.012, "step_p99_s": 0.03, "sessions_total": 7, "refused_total": 1, "heals_total": 0,
        "receipts_total": 9,
    }  # fmt: skip
    return StatsState(**known | fields)


def link(source: int, target: int, **fields: Any) -> LinkState:
    return LinkState(source=peer_of(source), target=peer_of(target), **{"rtt_s": 0.02} | fields)


def model(servers: Sequence[ServerState] = (), **fields: Any) -> ModelState:
    """One of thirty layers, usable unless ``fields`` say otherwise."""
    known = {
        "model": MODEL, "name": "demo", "layers": 30, "usable": True, "sentence": "demo is usable.", "missing": [],
        "coverage": [CoverageState(start=0, end=30, replicas=1, silent=0)], "tokens_per_s": 20.0,
        "served_tokens_per_s": 12.5, "sessions": 1, "knee_sessions": 8.0, "fullness": 0.125,
        "rebalances_per_hour": 0.0, "step_p50_s": 0.05, "step_p99_s": 0.09, "servers": list(servers), "links": [],
        "chains": [], "advice": [],
    }  # fmt: skip
    return ModelState(**known | fields)


def event(number: int, kind: str = "joined", **fields: Any) -> EventState:
    known = {"at": BEGAN_AT + number, "model": MODEL, "peer": peer_of(number), "text": f"{kind}: {number}"}
    return EventState(number=number, kind=kind, **known | fields)


def state(revision: int = 1, models: Sequence[ModelState] = (), **fields: Any) -> SwarmState:
    observer = ObserverState(
        peer=peer_of(2**200), since_at=BEGAN_AT, directory_at=BEGAN_AT, problem="", software="swarm 0.1.0"
    )
    known = {"at": BEGAN_AT + revision, "observer": observer, "models": list(models), "events": []}
    return SwarmState(revision=revision, **known | fields)


def crowd(count: int, revision: int = 1) -> SwarmState:
    """A model with ``count`` servers, each with figures, and four links from each."""
    servers = [server(number, stats=stats(), rtt_s=number / 1e4) for number in range(count)]
    links = [link(number, (number + step) % count) for number in range(count) for step in range(1, 5)]
    return state(revision, [model(servers, links=links)])


class HandWatch:
    """A watch whose states a test sets."""

    def __init__(self, first: SwarmState | None = None) -> None:
        self._state = first or state()
        self._moved = asyncio.Event()
        self.all_events: list[EventState] = []
        self.proofs: dict[str, bytes] = {}
        self.histories: dict[str, HistoryState] = {}
        self.failure: Exception | None = None
        self.asked_hours = 0.0

    async def run(self) -> NoReturn:
        while self.failure is None:
            await self._moved.wait()
        raise self.failure

    def show(self, state: SwarmState) -> None:
        self._state = state
        self._ring()

    def fail(self, error: Exception) -> None:
        self.failure = error
        self._ring()

    def _ring(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    def state(self) -> SwarmState:
        return self._state

    async def changed(self, revision: int) -> SwarmState:
        while self._state.revision == revision:
            await self._moved.wait()
        return self._state

    async def history(self, model: str, hours: float) -> HistoryState:
        self.asked_hours = hours
        empty = HistoryState(
            model=model, step_s=30.0, at=[], tokens_per_s=[], covered_share=[], servers=[], step_p50_s=[], step_p99_s=[]
        )
        return self.histories.get(model, empty)

    def events(self, after: int = 0, limit: int = 100) -> list[EventState]:
        return [one for one in self.all_events if one.number > after][-limit:]

    async def proof(self, digest: str) -> bytes | None:
        return self.proofs.get(digest)
