"""What the benchmarks share: the reference, the swarm under test, the prompt, and medians."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from swarm.cli.commands.demo import servers
from swarm.core.spans import Span
from swarm.models.files import ModelFiles
from swarm.models.resolve import resolve

TEXT = (
    "The river rises in the hills and crosses three valleys before it reaches the sea. Each valley has a mill, and "
    "each mill grinds what its neighbours bring. "
)


def say(text: str) -> None:
    """Tell a person how far it is; figures go to standard output, this does not."""
    print(text, file=sys.stderr, flush=True)


@dataclass
class Timing:
    """When the tokens of one answer came, in seconds from the call."""

    token_ids: list[int] = field(default_factory=list)
    at_s: list[float] = field(default_factory=list)

    @property
    def ttft_s(self) -> float:
        return self.at_s[0]

    @property
    def tok_s(self) -> float:
        """Tokens after the first, per second."""
        return (len(self.at_s) - 1) / (self.at_s[-1] - self.at_s[0])

    @property
    def gaps_s(self) -> list[float]:
        return [b - a for a, b in pairwise(self.at_s)]


class _Stopwatch:
    """A transformers streamer that only notes when tokens come."""

    def __init__(self) -> None:
        self.timing = Timing()
        self._began_s = time.perf_counter()
        self._prompt_seen = False

    def put(self, value: Any) -> None:
        if not self._prompt_seen:  # generate() hands over the prompt first
            self._prompt_seen = True
            return
        self.timing.at_s.append(time.perf_counter() - self._began_s)
        self.timing.token_ids.extend(value.flatten().tolist())

    def end(self) -> None:
        """Nothing to flush."""


class Reference:
    """transformers' own generate, one process, one thread, float32, on the same files."""

    def __init__(self, files: ModelFiles) -> None:
        torch.set_num_threads(1)
        self._model: Any = AutoModelForCausalLM.from_pretrained(files.tokenizer_path.parent, dtype=torch.float32)
        self._model.eval()

    def run(self, prompt_ids: list[int], new_tokens: int) -> Timing:
        """Greedy, exactly ``new_tokens`` long."""
        ids = torch.tensor([prompt_ids])
        watch = _Stopwatch()
        self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=0,
            streamer=watch,
        )
        return watch.timing


@contextmanager
def swarm_of(files: ModelFiles, count: int, model: str = "demo") -> Iterator[list[str]]:
    """``count`` server processes with equal spans and one thread each; gives their addresses."""
    cuts = [files.layer_count * index // count for index in range(count + 1)]
    spans = [Span(a, b) for a, b in pairwise(cuts)]
    with tempfile.TemporaryDirectory(prefix="swarm-bench-") as folder, servers(model, spans, Path(folder)) as peers:
        yield peers


def demo_files() -> ModelFiles:
    """The demo model, which must have been fetched."""
    return resolve("demo")


def median(values: list[float]) -> float:
    return statistics.median(values)


def quantile(values: list[float], q: float) -> float:
    """The smallest value that at least a share ``q`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(q * len(ordered) + 0.5) - 1))]
