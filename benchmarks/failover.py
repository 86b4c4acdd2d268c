"""How long an answer stands still when a server of its chain is killed or freezes, beside prefilling everything anew.

Three stages with a replica each, real processes on loopback. A session computes a context (its time to the first token
is the full prefill), answers, and in the middle of that a server of its chain is killed, just as a token comes. The
pause is the time to the next token, ``detection_s`` the part of it until the client says that it heals. Losses take
turns, so that a noisy machine slows all of them; every figure is a median over rounds. ``over_goal_s`` is what the
pause takes longer than detection and 1.2 times the lost span's own prefill, which is measured here in turns as well;
the transfer over loopback counts as nothing.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from benchmarks.fleet import Fleet, listings
from benchmarks.oracle import Oracle
from benchmarks.questions import Answered
from benchmarks.setup import TEXT, demo_files, median, say
from benchmarks.span_prefill import SpanPrefill
from swarm.client.blocking import SwarmModel
from swarm.client.request import Options, read_options
from swarm.client.results import GenerationResult, Progress
from swarm.client.tokenizer import Tokenizer
from swarm.core.errors import NetworkError, SwarmError
from swarm.core.spans import Span

SPANS = tuple(Span(start, start + 10) for start in (0, 10, 20))
STAGES = {"head": 0, "middle": 1, "tail": 2, "freeze": 1}
"""Which stage each loss takes; a freeze is SIGSTOP, the others SIGKILL."""
LEAD_TOKENS = 2
BEFORE_TOKENS = 6
AFTER_TOKENS = 6
LIVE_S = 30.0
"""For a server that came back to be in the directory, with metrics."""
PREFILL_SHARE = 1.2
ROOM_TOKENS = 64
"""KV beyond the context."""
TRIES = 3

Loss = Literal["head", "middle", "tail", "freeze"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--contexts", nargs="+", type=int, default=[128, 512, 1500], metavar="N", help="tokens of "
                        "context (default: 128 512 1500)")  # fmt: skip
    parser.add_argument("--losses", nargs="+", choices=list(STAGES), default=list(STAGES), help="what happens "
                        "(default: all; freeze only with the shortest context)")  # fmt: skip
    parser.add_argument("--rounds", type=int, default=3, help="default: 3")


@dataclass(frozen=True, slots=True)
class Sample:
    """One loss: times in seconds, ``step_s`` between two tokens before it."""

    pause_s: float
    detection_s: float
    step_s: float
    full_reprefill_s: float
    span_prefill_s: float

    @property
    def over_goal_s(self) -> float:
        return self.pause_s - self.detection_s - PREFILL_SHARE * self.span_prefill_s


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures, by loss and context; ``tokens_equal`` is transformers' verdict on every answer."""
    files = demo_files()
    longest = max(options.contexts)
    ids = (Tokenizer.of(files).encode(TEXT) * (1 + longest // 16))[: longest + options.rounds]
    samples: dict[str, dict[str, list[Sample]]] = {loss: {} for loss in options.losses}
    answers: list[Answered] = []
    spans = SpanPrefill(files, SPANS, longest)
    with tempfile.TemporaryDirectory(prefix="swarm-failover-") as folder, Fleet(SPANS * 2, Path(folder)) as fleet:
        fleet.start()
        stage = Theatre(fleet, spans, answers)
        for round_ in range(options.rounds):
            for loss, context in _cases(options):
                sample = stage.lose(loss, ids[round_ : round_ + context])
                samples[loss].setdefault(str(context), []).append(sample)
                say(f"round {round_ + 1}, {loss} at {context}: {sample}")
    return {
        **{loss: {context: _figures(each) for context, each in found.items()} for loss, found in samples.items()},
        "tokens_equal": not Oracle(files).judge(answers),
        "rounds": options.rounds,
    }


def _cases(options: argparse.Namespace) -> list[tuple[Loss, int]]:
    shortest = min(options.contexts)
    return [
        (loss, context)
        for context in options.contexts
        for loss in options.losses
        if loss != "freeze" or context == shortest
    ]


def _figures(samples: Sequence[Sample]) -> dict[str, float]:
    names = ("pause_s", "detection_s", "step_s", "full_reprefill_s", "span_prefill_s", "over_goal_s")
    return {
        **{name: median([getattr(sample, name) for sample in samples]) for name in names},
        "ratio": median([sample.pause_s / sample.full_reprefill_s for sample in samples]),
        "longest_pause_s": max(sample.pause_s for sample in samples),
    }


class Theatre:
    """Where servers are lost: the fleet, and every answer that its clients got."""

    def __init__(self, fleet: Fleet, spans: SpanPrefill, answers: list[Answered]) -> None:
        self._fleet = fleet
        self._spans = spans
        self._answers = answers

    def lose(self, loss: Loss, context: Sequence[int]) -> Sample:
        """One answer after ``context`` with a loss in its middle; everybody is back when this returns.

        Each time by a client that has lost no server before: it would avoid the one that failed last for a while. It is
        tried again where the server had been replaced before it was lost: the client found it too slow.
        """
        for _ in range(TRIES):
            with SwarmModel.connect("demo", initial_peers=self._fleet.addresses, host="127.0.0.1") as model:
                sample = self._lose(model, loss, context)
            if sample is not None:
                return sample
        raise SwarmError("servers were replaced before they could be lost", hint="measure on a machine that is idle")

    def _lose(self, model: SwarmModel, loss: Loss, context: Sequence[int]) -> Sample | None:
        self._await_live(model)
        span_prefill_s = self._spans.seconds(STAGES[loss], len(context))
        with model.session(max_tokens=len(context) + ROOM_TOKENS) as session:
            first = session.generate(**_options(LEAD_TOKENS, context))
            self._note(context, LEAD_TOKENS, first)
            lost = self._fleet.by_peer(first.chain[STAGES[loss]].peer).number
            harm = Harm(self._fleet, lost, freeze=loss == "freeze")
            asked = [*session.token_ids, context[0]]
            new_tokens = BEFORE_TOKENS + AFTER_TOKENS
            try:
                result = session.generate(progress=harm, **_options(new_tokens, context[:1]))
            finally:
                self._bring_back(lost)
            self._note(asked, new_tokens, result)
        if [stage.peer for heal in result.heals for stage in heal.lost] != [self._fleet.machines[lost].peer]:
            say(f"{loss} at {len(context)} does not count: {result.heals}")
            return None
        return Sample(*harm.times(), full_reprefill_s=first.ttft_s, span_prefill_s=span_prefill_s)

    def _note(self, context: Sequence[int], new_tokens: int, result: GenerationResult) -> None:
        params = read_options(_options(new_tokens, context)).params
        self._answers.append(Answered("failover", tuple(context), params, new_tokens, True, result))

    def _bring_back(self, number: int) -> None:
        if self._fleet.machines[number].frozen:
            self._fleet.wake(number)
        else:
            self._fleet.await_end(number)
            self._fleet.launch(number)
        self._fleet.await_ready([number])

    def _await_live(self, model: SwarmModel) -> None:
        until_s = time.monotonic() + LIVE_S
        while any(found is None for found in self._metrics(model)):
            if time.monotonic() > until_s:
                raise NetworkError("a server that came back does not show in the directory")
            time.sleep(0.1)

    def _metrics(self, model: SwarmModel) -> list[object]:
        seen = listings(model)
        return [seen[machine.peer].metrics if machine.peer in seen else None for machine in self._fleet.machines]


class Harm:
    """A progress callback that kills or freezes a machine just as a token comes, and notes what follows."""

    def __init__(self, fleet: Fleet, number: int, *, freeze: bool) -> None:
        self._fleet = fleet
        self._number = number
        self._freeze = freeze
        self._token_s: list[float] = []
        self._harmed_s = 0.0
        self._noticed_s = 0.0

    def __call__(self, progress: Progress) -> None:
        if progress.phase == "decode":
            self._token_s.append(time.perf_counter())
            if progress.done == BEFORE_TOKENS:
                (self._fleet.freeze if self._freeze else self._fleet.kill)(self._number)
                self._harmed_s = time.perf_counter()
        elif self._harmed_s and not self._noticed_s:
            self._noticed_s = time.perf_counter()

    def times(self) -> tuple[float, float, float]:
        """Pause, its part until the client noticed, and the usual step."""
        before = self._token_s[:BEFORE_TOKENS]
        step_s = (before[-1] - before[0]) / (len(before) - 1)
        return self._token_s[BEFORE_TOKENS] - self._harmed_s, self._noticed_s - self._harmed_s, step_s


def _options(new_tokens: int, input_ids: Sequence[int]) -> Options:
    return Options(input_ids=input_ids, max_new_tokens=new_tokens, ignore_eos=True, seed=0)
