"""Sampling parameters: what is refused, by whom, and what travels."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError
from swarm.core.limits import MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS, MAX_VOCABULARY
from swarm.core.sampling import SamplingParams

good = st.builds(
    SamplingParams,
    temperature=st.floats(0, 100) | st.just(1),
    top_k=st.integers(0, MAX_VOCABULARY),
    top_p=st.floats(0, 1, exclude_min=True) | st.just(1),
    repetition_penalty=st.floats(0.01, 100),
    presence_penalty=st.floats(-100, 100),
    frequency_penalty=st.floats(-100, 100),
    logit_bias=st.lists(st.tuples(st.integers(0, MAX_VOCABULARY - 1), st.floats(-100, 100)), max_size=4).map(tuple),
    seed=st.integers(0, 2**63 - 1),
    sample=st.integers(0, 65535),
    top_logprobs=st.integers(-1, MAX_TOP_LOGPROBS),
)


@given(good)
def test_good_parameters_pass_and_travel_unchanged(params: SamplingParams) -> None:
    assert params.checked() is params
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


BAD: list[tuple[str, Any]] = [
    *[
        (name, value)
        for name in ("temperature", "top_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
        for value in (math.nan, math.inf, -math.inf, 1e9, -101.0, "1", None, True, 10**400)
    ],
    ("temperature", -0.1),
    ("top_p", 0.0),
    ("top_p", 1.01),
    ("repetition_penalty", 0.0),
    *[(name, value) for name in ("top_k", "seed", "sample", "top_logprobs") for value in (-2, 2**63, 5.0, "5", True)],
    ("top_logprobs", MAX_TOP_LOGPROBS + 1),
    ("sample", 65536),
]


@pytest.mark.parametrize(("name", "value"), BAD)
def test_a_bad_value_is_named_with_its_range(name: str, value: object) -> None:
    params = SamplingParams(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=name) as caught:
        params.checked()
    assert caught.value.hint
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("bias", "why"),
    [
        (((-1, 0.0),), "names token -1"),
        (((MAX_VOCABULARY, 0.0),), "names token"),
        ((("a", 0.0),), "names token 'a'"),
        (((1, math.nan),), "of token 1 is nan"),
        (((1, math.inf),), "of token 1 is inf"),
        (((1, "2"),), "of token 1 is '2'"),
        (tuple((token, 0.0) for token in range(MAX_LOGIT_BIAS + 1)), "1025 entries"),
    ],
)
def test_a_bad_bias_is_refused(bias: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        SamplingParams(logit_bias=bias).checked()


@given(good, st.sampled_from(["top_k", "seed", "sample", "top_logprobs"]), st.sampled_from([-2, 2**63]))
def test_whole_numbers_out_of_range_do_not_even_decode(params: SamplingParams, name: str, value: int) -> None:
    data = msgspec.msgpack.encode(msgspec.structs.replace(params, **{name: value}))
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(data, type=SamplingParams)
