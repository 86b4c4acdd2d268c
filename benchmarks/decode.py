"""One session over three loopback servers of ten layers against transformers generate, one thread each.

Rounds alternate between the two, so that a noisy machine slows both; every figure is a median over rounds, every ratio
the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.dht_load import busy_dht
from benchmarks.setup import TEXT, Reference, Timing, demo_files, median, quantile, say, swarm_of
from benchmarks.wire_bytes import decode_step_bytes
from swarm.client.blocking import SwarmModel
from swarm.client.results import Progress
from swarm.client.tokenizer import Tokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=5, help="default: 5")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="default: 128")
    parser.add_argument("--new-tokens", type=int, default=64, help="default: 64")
    parser.add_argument("--head", choices=("remote", "local"), default="remote")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures, by name."""
    files = demo_files()
    tokenizer = Tokenizer.of(files)
    ids = (tokenizer.encode(TEXT) * 64)[: options.prompt_tokens]
    reference = Reference(files)
    ours: list[Timing] = []
    theirs: list[Timing] = []
    with (
        swarm_of(files, 3) as peers,
        SwarmModel.connect("demo", initial_peers=peers, head=options.head, host="127.0.0.1") as model,
    ):
        one_answer(model, ids, 8)
        reference.run(ids, 8)
        for round_ in range(options.rounds):
            theirs.append(reference.run(ids, options.new_tokens))
            ours.append(one_answer(model, ids, options.new_tokens))
            say(f"round {round_ + 1}: single process {theirs[-1].tok_s:.1f}, swarm {ours[-1].tok_s:.1f} tok/s")
        calm, busy = _dht(model, ids, options, peers)
    return {
        "single_process_tok_s": median([t.tok_s for t in theirs]),
        "swarm_tok_s": median([t.tok_s for t in ours]),
        "ratio": median([a.tok_s / b.tok_s for a, b in zip(ours, theirs, strict=True)]),
        "single_process_ttft_s": median([t.ttft_s for t in theirs]),
        "swarm_ttft_s": median([t.ttft_s for t in ours]),
        "ttft_ratio": median([a.ttft_s / b.ttft_s for a, b in zip(ours, theirs, strict=True)]),
        "tokens_equal": all(a.token_ids == b.token_ids for a, b in zip(ours, theirs, strict=True)),
        **decode_step_bytes(files),
        "decode_p99_s": calm,
        "decode_p99_busy_dht_s": busy,
        "busy_dht_p99_ratio": busy / calm,
        "rounds": options.rounds,
    }


def one_answer(model: SwarmModel, ids: list[int], new_tokens: int) -> Timing:
    """A greedy answer of exactly ``new_tokens``, with the time of each token."""
    timing = Timing()
    began_s = time.perf_counter()

    def note(progress: Progress) -> None:
        if progress.phase == "decode":
            timing.at_s.append(time.perf_counter() - began_s)

    result = model.generate(input_ids=ids, max_new_tokens=new_tokens, ignore_eos=True, progress=note)
    timing.token_ids = list(result.token_ids)
    return timing


def _dht(model: SwarmModel, ids: list[int], options: argparse.Namespace, peers: list[str]) -> tuple[float, float]:
    """p99 of the gap between tokens, in turns without and with load on the DHT, over the gaps of all rounds."""
    calm: list[float] = []
    busy: list[float] = []
    for _ in range(options.rounds):
        calm += one_answer(model, ids, options.new_tokens).gaps_s
        with busy_dht(peers):
            busy += one_answer(model, ids, options.new_tokens).gaps_s
    say(f"p99 {quantile(calm, 0.99) * 1e3:.0f} ms, with a busy DHT {quantile(busy, 0.99) * 1e3:.0f} ms")
    return quantile(calm, 0.99), quantile(busy, 0.99)
