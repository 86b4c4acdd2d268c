"""What receipts cost: the servers' compute, tokens a second, and bytes on the wire.

Two chains of three servers stand side by side, float32 and one thread each; those of one sign nothing. They answer the
same prompt in turns, so that a noisy machine slows both. ``receipt_overhead`` is what signing adds to the processor
time that a chain's servers spend on an answer, their event loops included; ``decode_overhead`` what it takes from
tokens a second. Each is a median over rounds. Bytes are counted where the client's frames come and go.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.decode import one_answer
from benchmarks.frame_count import bytes_per_token_hop, counted_frames
from benchmarks.nursery import Nursery
from benchmarks.processes import Node, Processes
from benchmarks.setup import TEXT, Timing, demo_files, median, say
from benchmarks.trials import FLOAT32, HEAD, MIDDLE, TAIL
from swarm.client.blocking import SwarmModel
from swarm.client.tokenizer import Tokenizer

SPANS = (HEAD, MIDDLE, TAIL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=12, help="default: 12")
    parser.add_argument("--prompt-tokens", type=int, default=128, help="default: 128")
    parser.add_argument("--new-tokens", type=int, default=129, help="default: 129")


@dataclass(frozen=True, slots=True)
class Chain:
    """Three servers and a client of theirs."""

    nodes: Sequence[Node]
    model: SwarmModel

    @property
    def cpu_s(self) -> float:
        """Processor time that the servers have used so far, without their network daemons."""
        times = [node.process.cpu_times() for node in self.nodes]
        return float(sum(time.user + time.system for time in times))


@dataclass(frozen=True, slots=True)
class Answered:
    """One answer of one chain: what it took the servers, and when its tokens came."""

    cpu_s: float
    timing: Timing


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures, by name."""
    ids = (Tokenizer.of(demo_files()).encode(TEXT) * 64)[: options.prompt_tokens]
    signing: list[Answered] = []
    silent: list[Answered] = []
    with chain() as with_receipts, chain("--no-receipts") as without:
        for each in (with_receipts, without):
            answer(each, ids, 16)
        for round_ in range(options.rounds):
            pair = [(with_receipts, signing), (without, silent)]
            for each, answers in pair if round_ % 2 else reversed(pair):
                answers.append(answer(each, ids, options.new_tokens))
            say(f"round {round_ + 1}: {signing[-1].cpu_s:.2f} s and {silent[-1].cpu_s:.2f} s of processor time, "
                f"{signing[-1].timing.tok_s:.1f} and {silent[-1].timing.tok_s:.1f} tok/s")  # fmt: skip
        with counted_frames() as frames:
            answer(with_receipts, ids, options.new_tokens)
            with_receipts.model.close()  # it settles before it goes
    rows = options.prompt_tokens + options.new_tokens - 1
    pairs = list(zip(signing, silent, strict=True))
    return {
        "receipt_overhead": median([on.cpu_s / off.cpu_s - 1 for on, off in pairs]),
        "decode_overhead": median([off.timing.tok_s / on.timing.tok_s - 1 for on, off in pairs]),
        "server_cpu_s": median([on.cpu_s for on in signing]),
        "server_cpu_unsigned_s": median([off.cpu_s for off in silent]),
        "decode_tok_s": median([on.timing.tok_s for on in signing]),
        "decode_unsigned_tok_s": median([off.timing.tok_s for off in silent]),
        "bytes_per_token_hop": bytes_per_token_hop(frames, rows, len(SPANS)),
        "receipts_signed_bytes": frames["Signed"],
        "tokens_equal": all(on.timing.token_ids == off.timing.token_ids for on, off in pairs),
        "rounds": options.rounds,
    }


@contextmanager
def chain(*options: str) -> Iterator[Chain]:
    """A swarm of three servers with ``options``, and a client."""
    with tempfile.TemporaryDirectory(prefix="swarm-verification-") as name, ExitStack() as stack:
        processes, nodes = Processes(stack.enter_context(Nursery()), Path(name)), list[Node]()
        for span in SPANS:
            join = [node.address for node in nodes[:1]]
            nodes.append(stack.enter_context(processes.serving(span, join, options=(*FLOAT32, *options))))
        addresses = [node.address for node in nodes]
        joining = SwarmModel.connect("demo", initial_peers=addresses, host="127.0.0.1", reputation=":memory:")
        yield Chain(nodes, stack.enter_context(joining))


def answer(chain: Chain, ids: list[int], new_tokens: int) -> Answered:
    before_s = chain.cpu_s
    timing = one_answer(chain.model, ids, new_tokens)
    return Answered(chain.cpu_s - before_s, timing)
