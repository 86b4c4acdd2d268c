"""What happens with more clients than three loopback servers can carry: who is served, how well, and how fast others
hear that they are not.

The knee is the most tokens per second there are, over what one session has alone: so many sessions keep the servers
busy. Every client asks again and again; one that is turned away comes back when it was told to, as any client does. At
the knee and with twice as many clients it is counted what the sessions that were let in reach each, how many attempts
ended with BUSY, and how soon. Then one client with many sessions runs beside another with one. Rounds alternate; every
figure is a median over them.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from benchmarks.decode import one_answer
from benchmarks.setup import TEXT, demo_files, median, quantile, say, swarm_of
from swarm.client.blocking import SwarmModel
from swarm.client.tokenizer import Tokenizer
from swarm.core.errors import BusyError

SESSIONS = (1, 2, 4, 6, 8)
"""Where the knee is looked for."""
SETTLE_S = 3.0
"""Before counting begins."""
LEAST_WAIT_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=2, help="default: 2")
    parser.add_argument("--seconds", type=float, default=12.0, help="of counting in each run (default: 12)")
    parser.add_argument("--many", type=int, default=50, help="sessions of the client beside one (default: 50)")
    parser.add_argument("--prompt-tokens", type=int, default=16, help="default: 16")
    parser.add_argument("--new-tokens", type=int, default=64, help="default: 64")


@dataclass
class Tally:
    """What the sessions of one client did. Times are those of ``time.perf_counter``."""

    answers: list[tuple[float, ...]] = field(default_factory=list)
    """When the tokens of each answer came."""
    busy: list[tuple[float, float]] = field(default_factory=list)
    """When each BUSY came, and after how many seconds."""

    def rate(self, from_s: float, to_s: float) -> float:
        """Tokens per second in that time."""
        return sum(from_s < at_s <= to_s for answer in self.answers for at_s in answer) / (to_s - from_s)

    def each(self, from_s: float, to_s: float) -> float:
        """Tokens per second of a session while it decodes."""
        tokens, lasted_s = 0, 0.0
        for answer in self.answers:
            inside = [at_s for at_s in answer if from_s < at_s <= to_s]
            if len(inside) > 1:
                tokens += len(inside) - 1
                lasted_s += inside[-1] - inside[0]
        return tokens / lasted_s if lasted_s else 0.0


@dataclass(frozen=True)
class Outcome:
    """One run: tokens per second in all and of each session, the share of attempts that met BUSY, and how soon."""

    rate: float
    each: float
    refused: float
    busy_s: list[float]


class Crowd:
    """Clients that ask without end, each in a thread of its own."""

    def __init__(self, model: SwarmModel, prompts: Sequence[list[int]], options: argparse.Namespace) -> None:
        self._model = model
        self._prompts = prompts
        self._options = options

    def run(self, sessions: int, tally: Tally, until_s: float) -> None:
        """Ask with so many sessions until then; returns when all have their last answer."""
        stop = threading.Event()
        with ThreadPoolExecutor(sessions) as pool:
            for number in range(sessions):
                pool.submit(self._ask, number, tally, stop)
            time.sleep(max(until_s - time.perf_counter(), 0.0))
            stop.set()

    def _ask(self, number: int, tally: Tally, stop: threading.Event) -> None:
        dice = random.Random(number)
        while not stop.is_set():
            began_s = time.perf_counter()
            try:
                answer = one_answer(self._model, self._prompts[number], self._options.new_tokens)
            except BusyError as error:
                now_s = time.perf_counter()
                tally.busy.append((now_s, now_s - began_s))
                stop.wait(max(error.retry_after_s, LEAST_WAIT_S) * dice.uniform(0.5, 1.5))
                continue
            tally.answers.append(tuple(began_s + at_s for at_s in answer.at_s))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The knee, both loads and the two clients beside each other."""
    files = demo_files()
    most = max(options.many, 2 * max(SESSIONS))
    ids = (Tokenizer.of(files).encode(TEXT) * 64)[: options.prompt_tokens + most]
    prompts = [ids[index : index + options.prompt_tokens] for index in range(most)]
    with swarm_of(files, 3) as peers, _client(peers, busy_timeout_s=0.0) as model, _client(peers) as other:
        one_answer(model, prompts[0], 8)
        one_answer(other, prompts[0], 8)
        crowd = Crowd(model, prompts, options)
        found = [_knee(crowd, options) for _ in range(options.rounds)]
        knee = max(round(median([top / alone for alone, top in found])), 1)
        say(f"the knee is at {knee} sessions")
        at_knee, beyond = [], []
        for _ in range(options.rounds):
            at_knee.append(_loaded(crowd, knee, options))
            beyond.append(_loaded(crowd, 2 * knee, options))
        shares = [_beside(crowd, Crowd(other, prompts, options), options) for _ in range(options.rounds)]
    return _figures(knee, found, at_knee, beyond) | {
        "many_sessions": options.many,
        "one_tok_s_alone": median([alone for alone, _, _ in shares]),
        "one_tok_s_beside_many": median([one for _, one, _ in shares]),
        "one_kept": median([one / alone for alone, one, _ in shares]),
        "each_of_many_tok_s": median([each for _, _, each in shares]),
        "rounds": options.rounds,
    }


def _figures(
    knee: int, found: Sequence[tuple[float, float]], at_knee: Sequence[Outcome], beyond: Sequence[Outcome]
) -> dict[str, Any]:
    busy_s = [seconds for outcome in beyond for seconds in outcome.busy_s]
    return {
        "one_session_tok_s": median([alone for alone, _ in found]),
        "most_tok_s": median([top for _, top in found]),
        "knee_sessions": knee,
        "each_at_knee_tok_s": median([outcome.each for outcome in at_knee]),
        "each_at_twice_tok_s": median([outcome.each for outcome in beyond]),
        "kept_at_twice": median([b.each / a.each for a, b in zip(at_knee, beyond, strict=True)]),
        "all_at_knee_tok_s": median([outcome.rate for outcome in at_knee]),
        "all_at_twice_tok_s": median([outcome.rate for outcome in beyond]),
        "refused_at_knee": median([outcome.refused for outcome in at_knee]),
        "refused_at_twice": median([outcome.refused for outcome in beyond]),
        "busy_p50_s": quantile(busy_s, 0.5) if busy_s else None,
        "busy_p99_s": quantile(busy_s, 0.99) if busy_s else None,
    }


def _client(peers: Sequence[str], **options: Any) -> SwarmModel:
    return SwarmModel.connect("demo", initial_peers=peers, host="127.0.0.1", **options)


def _knee(crowd: Crowd, options: argparse.Namespace) -> tuple[float, float]:
    """Tokens per second of one session, and the most of several."""
    rates = {count: _loaded(crowd, count, options).rate for count in SESSIONS}
    say(", ".join(f"{count}: {rate:.1f}" for count, rate in rates.items()) + " tok/s")
    return rates[1], max(rates.values())


def _loaded(crowd: Crowd, sessions: int, options: argparse.Namespace) -> Outcome:
    """So many clients for a while."""
    tally = Tally()
    from_s = time.perf_counter() + SETTLE_S
    to_s = from_s + options.seconds
    crowd.run(sessions, tally, to_s)
    busy_s = [seconds for at_s, seconds in tally.busy if from_s < at_s <= to_s]
    begun = sum(from_s < answer[0] <= to_s for answer in tally.answers)
    refused = len(busy_s) / max(len(busy_s) + begun, 1)
    say(f"{sessions} sessions: {tally.each(from_s, to_s):.1f} tok/s each, {refused:.0%} of the attempts met BUSY")
    return Outcome(tally.rate(from_s, to_s), tally.each(from_s, to_s), refused, busy_s)


def _beside(many: Crowd, one: Crowd, options: argparse.Namespace) -> tuple[float, float, float]:
    """Tokens per second of one session alone, of the same beside many of another client, and of each of those."""
    alone = _loaded(one, 1, options).each
    crowd, single = Tally(), Tally()
    from_s = time.perf_counter() + SETTLE_S
    to_s = from_s + options.seconds
    with ThreadPoolExecutor(2) as pool:
        pool.submit(many.run, options.many, crowd, to_s)
        time.sleep(SETTLE_S / 2)
        pool.submit(one.run, 1, single, to_s)
    beside, each = single.each(from_s, to_s), crowd.each(from_s, to_s)
    say(f"one session alone {alone:.1f} tok/s, beside {options.many} {beside:.1f}, each of those {each:.1f}")
    return alone, beside, each
