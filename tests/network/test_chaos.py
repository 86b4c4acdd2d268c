"""Real servers are killed, frozen, woken and started again under several sessions: every answer is transformers'.

The tests share one swarm, three spans with a replica each; the last one ends it. What fails says its seed and schedule.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from benchmarks.fleet import KV_TOKENS, listings
from benchmarks.oracle import Oracle
from benchmarks.ordeal import Arena, arena
from benchmarks.questions import Answered
from benchmarks.trouble import COUNTED
from swarm.client.evidence.records import ReceiptProblem
from swarm.client.request import Options, read_options
from swarm.core.spans import Span
from swarm.models import ModelFiles

SPANS = [Span(0, 10), Span(10, 20), Span(20, 30)] * 2
SEED = int(os.environ.get("SWARM_CHAOS_SEED", "1"))
EVENTS = int(os.environ.get("SWARM_CHAOS_EVENTS", "12"))
ASKERS = 3
PIECES = 6
LONGEST_PAUSE_S = 60.0
"""No answer stands still for longer, a machine that has to come back first included."""


def accusations(answered: Answered) -> list[ReceiptProblem]:
    """What the client holds against servers, who are all honest here; what the dead did not sign is no accusation."""
    problems = answered.result.verification.problems
    return [problem for problem in problems if problem.kind not in ("missing", "unwilling")]


@pytest.fixture(scope="module")
def children() -> set[psutil.Process]:
    """Processes below this one before anything here began."""
    return set(psutil.Process().children(recursive=True))


@pytest.fixture(scope="module")
def oracle(demo_files: ModelFiles) -> Oracle:
    return Oracle(demo_files)


@pytest.fixture(scope="module")
def stage(children: set[psutil.Process], oracle: Oracle, demo_files: ModelFiles) -> Iterator[Arena]:
    """After the oracle: what a local head needs to be loaded is imported by then."""
    with arena(demo_files, SPANS) as built:
        yield built


def test_a_frozen_server_wakes_after_its_replacement(
    stage: Arena, oracle: Oracle, eventually: Callable[..., None]
) -> None:
    """While the answer goes on without it. It has nothing to say there any more, and gives back what it held."""
    options = Options(max_new_tokens=48, ignore_eos=True, temperature=0.8, seed=7)
    question = stage.tokenizer.encode("Once upon a time, in a village between two rivers, there lived")
    with stage.models[0].session(max_tokens=512) as session:
        chain = session.generate(input_ids=question, max_new_tokens=2).chain
        context = [*session.token_ids, *question]
        frozen = stage.fleet.by_peer(chain[1].peer)
        with session.stream(input_ids=question, **options) as stream:
            for _ in range(PIECES):
                next(stream)
            began_s = time.monotonic()
            stage.fleet.freeze(frozen.number)
            next(stream), next(stream)  # a token may have been under way
            assert time.monotonic() - began_s < LONGEST_PAUSE_S
            stage.fleet.wake(frozen.number)
            for _ in stream:
                continue
            result = stream.result
        assert frozen.peer not in [item.peer for item in result.chain]
        params = read_options(options).params
        assert oracle.verdict(Answered("frozen", tuple(context), params, 48, True, result)) == ""

        def idle() -> bool:
            metrics = listings(stage.models[0])[frozen.peer].metrics
            return metrics is not None and metrics.sessions == 0 and metrics.kv_free_tokens == KV_TOKENS

        eventually(idle, 20.0)


def test_every_answer_survives_kills_freezes_and_restarts(
    stage: Arena, oracle: Oracle, children: set[psutil.Process]
) -> None:
    outcome = stage.trouble(SEED, EVENTS, askers=ASKERS)
    leaks = stage.leaks()
    ended = stage.end()

    assert sum(outcome.acts[act] for act in COUNTED) >= EVENTS
    assert outcome.errors == []
    assert {answered.params.temperature > 0 for answered in outcome.answers} == {False, True}
    assert oracle.judge(outcome.answers) == []
    assert [problem for answered in outcome.answers for problem in accusations(answered)] == []
    assert any(answered.result.heals for answered in outcome.answers), "the trouble met nobody"
    assert max(outcome.pauses_s) < LONGEST_PAUSE_S
    assert leaks == []
    assert ended == []
    stage.fleet.close()
    assert set(psutil.Process().children(recursive=True)) <= children

    assert any(answered.result.verification.rows for answered in outcome.answers), "nobody signed anything"

    right = outcome.answers[0]
    *kept, last = right.result.token_ids
    wrong = dataclasses.replace(right.result, token_ids=(*kept, (last + 1) % 1000))
    assert oracle.verdict(dataclasses.replace(right, result=wrong)), "the judge would say so"
