"""The judgement of a tail's tokens: what the sampler chooses passes, what close logits would choose is never hard."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.client.auditing.tokens import judge_token
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import Logits, choose
from swarm.verification.verdicts.verdict import LOGIT_ERROR, Outcome

VOCABULARY = 60
ERROR = LOGIT_ERROR["bfloat16"]
PROMPT = [3, 9, 9, 17, 40, 3, 55]


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    """Anything that people ask for."""
    return SamplingParams(
        temperature=draw(st.sampled_from([0.0, 0.3, 0.7, 1.0, 1.5])),
        top_k=draw(st.sampled_from([0, 1, 5, 40, 100])),
        top_p=draw(st.sampled_from([1.0, 0.95, 0.5, 0.1])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.2])),
        logit_bias=draw(st.sampled_from([(), ((5, 2.0), (9, -100.0))])),
        seed=draw(st.integers(0, 2**40)),
    )


def logits_of(seed: int, spread: float) -> Logits:
    return np.random.default_rng(seed).normal(0, spread, VOCABULARY).astype(np.float32)


def history(answered: int = 3) -> History:
    return History([*PROMPT, *range(20, 20 + answered)], answer_start=len(PROMPT))


def chosen(logits: Logits, how: SamplingParams) -> int:
    past = history()
    return choose(logits, past, len(past), how).token_id


@given(params(), st.integers(0, 2**32), st.sampled_from([0.5, 3.0]))
@settings(max_examples=100, deadline=None)
def test_what_the_sampler_chooses_passes(how: SamplingParams, seed: int, spread: float) -> None:
    logits = logits_of(seed, spread)
    assert judge_token(chosen(logits, how), logits, history(), how, ERROR) is Outcome.PASS


@given(params(), st.integers(0, 2**32), st.sampled_from([0.5, 3.0]))
@settings(max_examples=150, deadline=None)
def test_what_other_kernels_logits_would_choose_is_never_hard(how: SamplingParams, seed: int, spread: float) -> None:
    logits = logits_of(seed, spread)
    noise = np.random.default_rng(seed + 1).uniform(-ERROR / 2, ERROR / 2, VOCABULARY)
    other = (logits + noise).astype(np.float32)
    assert judge_token(chosen(other, how), logits, history(), how, ERROR) is not Outcome.HARD


@pytest.mark.parametrize(
    "how",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, seed=3),
        SamplingParams(temperature=0.7, top_p=0.9, seed=4),
        SamplingParams(temperature=1.0, top_k=5, repetition_penalty=1.3, seed=5),
    ],
)
def test_a_token_from_nowhere_is_hard_most_of_the_time(how: SamplingParams) -> None:
    outcomes = []
    for seed in range(100):
        logits = logits_of(seed, 3.0)
        likely = np.argsort(logits)[: VOCABULARY // 2]  # one of those that hardly ever come
        outcomes.append(judge_token(int(likely[seed % len(likely)]), logits, history(), how, LOGIT_ERROR["float32"]))
    assert outcomes.count(Outcome.HARD) >= 80


def test_an_id_outside_the_vocabulary_is_hard() -> None:
    for how in (SamplingParams(), SamplingParams(temperature=1.0, top_p=0.5)):
        assert judge_token(VOCABULARY, logits_of(1, 1.0), history(), how, ERROR) is Outcome.HARD


def test_logits_that_say_nothing_fail_nobody() -> None:
    logits = np.full(VOCABULARY, np.nan, np.float32)
    for how in (SamplingParams(), SamplingParams(temperature=1.0), SamplingParams(repetition_penalty=1.2)):
        assert judge_token(3, logits, history(), how, ERROR) is Outcome.UNCOUNTED


def test_a_seed_that_was_not_asked_for_is_found() -> None:
    how = SamplingParams(temperature=1.5, seed=1)
    outcomes = []
    for seed in range(60):
        logits = logits_of(seed, 1.0)
        token = chosen(logits, SamplingParams(temperature=1.5, seed=2 + seed))
        outcomes.append(judge_token(token, logits, history(), how, LOGIT_ERROR["float32"]))
    assert outcomes.count(Outcome.HARD) >= 40
