"""Answers for minutes on end while servers are killed, frozen, woken and started again; then, what leaked.

Machines are real processes on loopback, several sessions run at once, every answer is judged by transformers. Trouble
comes in rounds of a seeded schedule; at the end of each everybody serves again.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.oracle import Oracle
from benchmarks.ordeal import Outcome, arena
from benchmarks.setup import demo_files, quantile, say
from swarm.core.spans import Span

REPLICAS = ("0:10", "10:20", "20:30") * 2
ROUND_EVENTS = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=10.0, metavar="M", help="of trouble (default: 10)")
    parser.add_argument("--seed", type=int, default=1, help="of schedule and questions (default: 1)")
    parser.add_argument("--askers", type=int, default=4, metavar="N", help="sessions at once (default: 4)")
    parser.add_argument("--spans", nargs="+", default=REPLICAS, metavar="A:B", help="a machine each (default: three "
                        "thirds, twice)")  # fmt: skip


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures, by name. Rounds begin until the minutes are over."""
    files = demo_files()
    oracle = Oracle(files)
    whole, wrong, memory = Outcome(), list[str](), list[dict[int, int]]()
    with arena(files, [Span.parse(text) for text in options.spans]) as stage:
        until_s = time.monotonic() + 60.0 * options.minutes
        while time.monotonic() < until_s:
            outcome = stage.trouble(1000 * options.seed + len(memory), ROUND_EVENTS, askers=options.askers)
            memory.append(stage.resident())
            wrong += oracle.judge(outcome.answers)
            say(
                f"round {len(memory)}: {len(outcome.answers)} answers, {len(wrong)} wrong, {len(outcome.errors)} errors"
            )
            whole.add(outcome)
        found = stage.leaks()
        ended = stage.end()
    return {
        **figures(whole),
        "wrong": wrong,
        "leaks": found,
        "ends": ended,
        "server_rss_growth_mb": growth_mb(memory),
        "rounds": len(memory),
        "seed": options.seed,
    }


def growth_mb(memory: Sequence[Mapping[int, int]]) -> list[float]:
    """Megabytes a round by which each server grew that lived through more than one, from what was resident after each.

    Only what was there after its first round counts as its start: by then it has served.
    """
    grown = []
    for pid in sorted({pid for resident in memory for pid in resident}):
        sizes = [resident[pid] for resident in memory if pid in resident]
        if len(sizes) > 1:
            grown.append(round((sizes[-1] - sizes[0]) / 1e6 / (len(sizes) - 1), 2))
    return grown


def figures(outcome: Outcome) -> dict[str, Any]:
    """What happened, counted; pauses are the longest wait between two tokens of each answer."""
    pauses_s = outcome.pauses_s or [0.0]
    return {
        "answers": len(outcome.answers),
        "answers_by_kind": dict(Counter(answered.kind for answered in outcome.answers)),
        "tokens": sum(len(answered.result.token_ids) for answered in outcome.answers),
        "errors": outcome.errors,
        "events": dict(outcome.acts),
        "heals": sum(len(answered.result.heals) for answered in outcome.answers),
        "longest_pause_s": max(pauses_s),
        "pause_p90_s": quantile(pauses_s, 0.9),
    }
