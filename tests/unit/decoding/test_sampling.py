"""The sampler against transformers' own logits processors, and its laws."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats
from transformers import GenerationConfig, LlamaConfig
from transformers.generation.utils import GenerationMixin

from swarm.core.errors import BadLogitsError, ConfigError, MisuseError
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import choose, warp

VOCABULARY = 40
# Quarter steps make exact ties common; the continuous strategy makes them absent.
coarse = hnp.arrays(np.float32, VOCABULARY, elements=st.integers(-24, 24).map(lambda step: step / 4))
fine = hnp.arrays(np.float32, VOCABULARY, elements=st.floats(-20, 20, width=32))
any_logits = st.one_of(coarse, fine)
token_ids = st.integers(0, VOCABULARY - 1)
histories = st.lists(token_ids, min_size=1, max_size=30)
params_strategy = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.9]),
    top_k=st.sampled_from([0, 1, 3, 10, 40, 60]),
    top_p=st.sampled_from([1.0, 0.97, 0.83, 0.31, 0.01]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.8]),
    logit_bias=st.lists(
        st.tuples(token_ids, st.sampled_from([-7.5, 3.25, -100.0])), max_size=3, unique_by=lambda b: b[0]
    ).map(tuple),
)


class Host(GenerationMixin):
    """What ``_get_logits_processor`` needs of a model: its configuration."""

    config = LlamaConfig(vocab_size=VOCABULARY)


def reference_scores(logits: np.ndarray, history: list[int], params: SamplingParams, dtype: torch.dtype) -> np.ndarray:
    """Scores after the processors transformers itself lines up for these parameters, in its own order."""
    sampling = params.temperature > 0
    warpers = {"temperature": params.temperature, "top_k": params.top_k, "top_p": params.top_p} if sampling else {}
    config = GenerationConfig(
        do_sample=sampling,
        repetition_penalty=params.repetition_penalty,
        sequence_bias={(token,): bias for token, bias in params.logit_bias} or None,
        **warpers,
    )
    ids = torch.tensor([history], dtype=torch.long)
    processors = Host()._get_logits_processor(generation_config=config, input_ids_seq_length=len(history))
    return processors(ids, torch.tensor(logits, dtype=dtype)[None])[0].numpy()


def softmax(scores: np.ndarray) -> np.ndarray:
    weights = np.exp(scores - scores.max())
    return weights / weights.sum()


def far_from_the_cut(logits: np.ndarray, history: list[int], params: SamplingParams) -> bool:
    """True unless some ascending cumulative probability equals 1 - top_p up to rounding, where either side is right."""
    if params.top_p == 1.0:
        return True
    without = SamplingParams(*(1.0 if name == "top_p" else getattr(params, name) for name in params.__struct_fields__))
    chances = np.sort(softmax(reference_scores(logits, history, without, torch.float64)))
    return bool(np.abs(np.cumsum(chances) - (1 - params.top_p)).min() > 1e-6)


@settings(max_examples=300)
@given(logits=any_logits, history=histories, params=params_strategy)
def test_warp_equals_transformers_processors(logits: np.ndarray, history: list[int], params: SamplingParams) -> None:
    if not far_from_the_cut(logits, history, params):
        return
    expected = softmax(reference_scores(logits, history, params, torch.float64))
    actual = warp(logits, History(history, answer_start=0), params)
    assert actual.dtype == np.float64
    assert abs(actual.sum() - 1) < 1e-12
    # Of equals at the edge of the nucleus transformers keeps any: as many, but not the same. All others agree by id.
    np.testing.assert_allclose(np.sort(actual), np.sort(expected), rtol=2e-5, atol=1e-12)
    above = (actual > actual[actual > 0].min() * 1.0001) | (params.top_p == 1.0)
    np.testing.assert_allclose(actual[above], expected[above], rtol=2e-5, atol=1e-12)


@settings(max_examples=300)
@given(logits=any_logits, history=histories, params=params_strategy)
def test_greedy_equals_transformers_in_float32(logits: np.ndarray, history: list[int], params: SamplingParams) -> None:
    greedy = SamplingParams(repetition_penalty=params.repetition_penalty, logit_bias=params.logit_bias)
    expected = reference_scores(logits, history, greedy, torch.float32)
    choice = choose(logits, History(history, answer_start=0), len(history), greedy)
    assert choice.token_id == int(np.flatnonzero(expected == expected.max())[0])
    assert (choice.logprob, choice.top) == (None, ())


CHI_SQUARE_CASES = {
    "plain": SamplingParams(temperature=1.0),
    "cold": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=0.9, top_k=7),
    "top_p": SamplingParams(temperature=1.2, top_p=0.8),
    "repetition": SamplingParams(temperature=1.0, repetition_penalty=1.5),
    "everything": SamplingParams(
        temperature=0.8, top_k=20, top_p=0.9, repetition_penalty=1.2, logit_bias=((3, 2.0), (9, -100.0))
    ),
}


@pytest.mark.parametrize("vary", ["seed", "sample", "position"])
@pytest.mark.parametrize("name", CHI_SQUARE_CASES)
def test_draws_follow_transformers_distribution(name: str, vary: str) -> None:
    params, draws = CHI_SQUARE_CASES[name], 8000
    logits = np.random.default_rng(5).normal(0, 2, VOCABULARY).astype(np.float32)
    tokens = [1, 4, 4, 9, 30]
    history = History(tokens, answer_start=2)
    expected = softmax(reference_scores(logits, tokens, params, torch.float64))
    fields = {field: getattr(params, field) for field in params.__struct_fields__}
    seen: Counter[int] = Counter()
    for step in range(draws):
        coordinates = {"seed": 11, "sample": 0, "position": 5}
        coordinates[vary] += step
        fields |= {"seed": coordinates["seed"], "sample": coordinates["sample"]}
        seen[choose(logits, history, coordinates["position"], SamplingParams(**fields)).token_id] += 1
    assert all(expected[token] > 0 for token in seen)
    frequent = expected * draws >= 5
    observed = np.array([seen[token] for token in range(VOCABULARY)])
    groups_seen = np.append(observed[frequent], observed[~frequent].sum())
    groups_expected = np.append(expected[frequent], expected[~frequent].sum()) * draws
    filled = groups_expected > 0
    assert stats.chisquare(groups_seen[filled], groups_expected[filled]).pvalue > 1e-3


def test_choices_do_not_depend_on_the_order_of_evaluation() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (50, VOCABULARY)).astype(np.float32)
    params = SamplingParams(temperature=1.0, seed=3)
    history = History(answer_start=0)
    forward = [choose(logits[position], history, position, params) for position in range(50)]
    order = rng.permutation(50)
    shuffled = {int(position): choose(logits[position], history, int(position), params) for position in order}
    assert [shuffled[position] for position in range(50)] == forward
    assert len({choice.token_id for choice in forward}) > 10


@given(logits=any_logits, params=params_strategy, position=st.integers(0, 10**6))
def test_a_choice_always_has_positive_probability(logits: np.ndarray, params: SamplingParams, position: int) -> None:
    history = History(answer_start=0)
    assert warp(logits, history, params)[choose(logits, history, position, params).token_id] > 0


@pytest.mark.parametrize(("u", "expected"), [(0.0, 1), (0.2499999, 1), (0.25, 3), (1 - 2**-53, 4)])
def test_inverse_cdf_at_its_edges(monkeypatch: pytest.MonkeyPatch, u: float, expected: int) -> None:
    """Probabilities 0, 1/4, 0, 1/2, 1/4, 0: the zeros at both ends and inside are never drawn."""
    monkeypatch.setattr("swarm.decoding.sampling.uniform", lambda seed, sample, position: u)
    logits = np.array([-np.inf, 0, -np.inf, math.log(2), 0, -np.inf], np.float32)
    assert choose(logits, History(answer_start=0), 0, SamplingParams(temperature=1.0)).token_id == expected


def test_presence_and_frequency_count_the_answer_only() -> None:
    logits = np.zeros(6, np.float32)
    history = History([0, 0, 1, 2, 2, 2], answer_start=2)
    params = SamplingParams(temperature=1.0, presence_penalty=0.5, frequency_penalty=0.25)
    expected = softmax(np.array([0, -0.75, -1.25, 0, 0, 0]))
    np.testing.assert_allclose(warp(logits, history, params), expected, rtol=1e-6)


def test_repetition_counts_prompt_and_answer() -> None:
    logits = np.array([2, -2, 2, -2], np.float32)
    history = History([0, 1], answer_start=1)
    params = SamplingParams(temperature=1.0, repetition_penalty=2.0)
    np.testing.assert_allclose(warp(logits, history, params), softmax(np.array([1.0, -4, 2, -2])), rtol=1e-6)


def test_penalties_leave_the_callers_logits_alone() -> None:
    logits = np.ones(8, np.float32)
    params = SamplingParams(repetition_penalty=2.0, presence_penalty=1.0, logit_bias=((1, 5.0),))
    choose(logits, History([3], answer_start=0), 1, params)
    assert (logits == 1).all()


def test_greedy_takes_the_lowest_of_equals() -> None:
    assert choose(np.array([1, 3, 3, 2], np.float32), History(answer_start=0), 0, SamplingParams()).token_id == 1


def test_of_equals_at_the_edge_of_the_nucleus_the_lowest_stay() -> None:
    logits = np.array([0, 1, 0, 1, 1, 0], np.float32)
    kept = warp(logits, History(answer_start=0), SamplingParams(temperature=1.0, top_p=0.4)) > 0
    assert kept.tolist() == [False, True, False, True, False, False]


@given(logits=coarse, position=st.integers(0, 1000))
def test_the_smallest_nucleus_is_greedy(logits: np.ndarray, position: int) -> None:
    history, tiny = History(answer_start=0), SamplingParams(temperature=1.0, top_p=1e-9)
    assert choose(logits, history, position, tiny) == choose(logits, history, position, SamplingParams())


def test_biases_on_one_token_add_up() -> None:
    params = SamplingParams(logit_bias=((2, 0.75), (2, 0.75)))
    assert choose(np.array([1, 0, 0], np.float32), History(answer_start=0), 0, params).token_id == 2


@pytest.mark.parametrize("temperature", [5e-324, 1e-38, 1e-9])
def test_the_coldest_temperatures_are_greedy(temperature: float) -> None:
    logits = np.array([1, 3, 2], np.float32)
    np.testing.assert_array_equal(
        warp(logits, History(answer_start=0), SamplingParams(temperature=temperature)), [0, 1, 0]
    )


@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_logprobs_are_the_raw_models(count: int) -> None:
    logits = np.random.default_rng(2).normal(0, 3, VOCABULARY).astype(np.float32)
    logits[7] = logits[11] = logits.max() + 1
    params = SamplingParams(temperature=0.4, top_k=5, repetition_penalty=1.7, top_logprobs=count, seed=9)
    choice = choose(logits, History([7], answer_start=0), 1, params)
    reference = torch.log_softmax(torch.tensor(logits, dtype=torch.float64), -1).numpy()
    assert choice.logprob == pytest.approx(reference[choice.token_id], abs=1e-12)
    ranked = sorted(range(VOCABULARY), key=lambda token: (-reference[token], token))[:count]
    assert [token for token, _ in choice.top] == ranked
    assert [logprob for _, logprob in choice.top] == pytest.approx(reference[ranked], abs=1e-12)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("values", [[0, math.nan, 1], [0, math.inf, 1], [-math.inf] * 3, [math.nan] * 3])
@pytest.mark.parametrize("top_logprobs", [-1, 2])
def test_logits_that_are_not_finite_are_refused(temperature: float, values: list[float], top_logprobs: int) -> None:
    params = SamplingParams(temperature=temperature, top_logprobs=top_logprobs)
    for function in (lambda *a: choose(a[0], a[1], 0, a[2]), warp):
        with pytest.raises(BadLogitsError, match="not finite"):
            function(np.array(values, np.float32), History(answer_start=0), params)


@pytest.mark.parametrize("logits", [np.zeros((1, 4), np.float32), np.zeros(4), np.zeros(0, np.float32)])
def test_wrong_shapes_and_dtypes_are_refused(logits: np.ndarray) -> None:
    with pytest.raises(MisuseError, match="float32"):
        choose(logits, History(answer_start=0), 0, SamplingParams())


def test_ids_outside_the_vocabulary_are_refused() -> None:
    logits = np.zeros(4, np.float32)
    with pytest.raises(ConfigError, match="token 4"):
        choose(logits, History(answer_start=0), 0, SamplingParams(logit_bias=((4, 1.0),)))
    with pytest.raises(MisuseError, match="token 4"):
        choose(logits, History([4], answer_start=0), 0, SamplingParams(repetition_penalty=1.1))
