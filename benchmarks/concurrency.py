"""Aggregate decode throughput of several sessions at once over three loopback servers of ten layers."""

from __future__ import annotations

import argparse
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.decode import one_answer
from benchmarks.setup import TEXT, demo_files, median, say, swarm_of
from swarm.client.blocking import SwarmModel
from swarm.client.tokenizer import Tokenizer

SESSIONS = (1, 2, 4, 8)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")
    parser.add_argument("--prompt-tokens", type=int, default=32, help="default: 32")
    parser.add_argument("--new-tokens", type=int, default=64, help="default: 64")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second of all sessions together, by how many there are, and their ratios to one session."""
    files = demo_files()
    ids = (Tokenizer.of(files).encode(TEXT) * 64)[: options.prompt_tokens + max(SESSIONS)]
    rates: dict[int, list[float]] = {count: [] for count in SESSIONS}
    with swarm_of(files, 3) as peers, SwarmModel.connect("demo", initial_peers=peers, host="127.0.0.1") as model:
        one_answer(model, ids, 8)
        for round_ in range(options.rounds):
            for count in SESSIONS:
                rates[count].append(together(model, ids, count, options))
            say(f"round {round_ + 1}: " + ", ".join(f"{c}: {rates[c][-1]:.1f}" for c in SESSIONS) + " tok/s")
    one = rates[1]
    return {
        **{f"tok_s_{count}": median(rates[count]) for count in SESSIONS},
        **{f"gain_{c}": median([a / b for a, b in zip(rates[c], one, strict=True)]) for c in SESSIONS[1:]},
        "eight_over_four": median([a / b for a, b in zip(rates[8], rates[4], strict=True)]),
        "rounds": options.rounds,
    }


def together(model: SwarmModel, ids: list[int], count: int, options: argparse.Namespace) -> float:
    """Decode tokens per second of ``count`` sessions from the first token of the last to start to the end of the first.

    Only the time in which all of them decode counts, so that neither prefills nor stragglers dilute it.
    """
    prompts = [ids[index : index + options.prompt_tokens] for index in range(count)]
    with ThreadPoolExecutor(count) as pool:
        began_s = time.perf_counter()
        starts: list[float] = []

        def run(prompt: list[int]) -> list[float]:
            starts.append(time.perf_counter() - began_s)
            offset_s = starts[-1]
            return [offset_s + at_s for at_s in one_answer(model, prompt, options.new_tokens).at_s]

        times = list(pool.map(run, prompts))
    from_s, to_s = max(each[0] for each in times), min(each[-1] for each in times)
    tokens = sum(sum(from_s < at_s <= to_s for at_s in each) for each in times)
    return tokens / (to_s - from_s)
