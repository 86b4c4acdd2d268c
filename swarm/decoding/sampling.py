"""The one definition of the next token, for both heads, with and without speculation.

Order of the steps (that of transformers' ``generate``, where presence and frequency have no counterpart): logit bias,
repetition, presence and frequency penalties, temperature, top-k, top-p, softmax. Bias and penalties are float32, as
transformers has them, so greedy choices agree with it bit for bit; everything after is float64. The token is the
inverse CDF, in token-id order, of those probabilities at a counter-based uniform: no generator state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import BadLogitsError, ConfigError, MisuseError
from swarm.core.sampling import MAX_BIAS, SamplingParams
from swarm.decoding.history import History
from swarm.decoding.uniform import uniform

Logits = NDArray[np.float32]
Probabilities = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen token.

    ``logprob`` and ``top`` speak of the model's own distribution, the log softmax of the raw logits, whatever bias,
    penalties, temperature or filters did; natural logarithm. ``logprob`` is None and ``top`` empty where
    ``top_logprobs`` is -1. ``top`` is (id, logprob) from the likeliest down, ties by the lower id.
    """

    token_id: int
    logprob: float | None
    top: tuple[tuple[int, float], ...]


def check_bias(params: SamplingParams, vocabulary: int) -> None:
    """Raise ``ConfigError`` if ``logit_bias`` names a token outside ``[0, vocabulary)``."""
    for token, _ in params.logit_bias:
        if not 0 <= token < vocabulary:
            raise ConfigError(
                f"logit_bias names token {token}, but the model has {vocabulary} tokens",
                hint="name tokens of this model's vocabulary",
            )


def choose(logits: Logits, history: History, position: int, params: SamplingParams) -> Choice:
    """The token at absolute ``position``, which follows ``history``. ``logits``: ``[V]`` float32.

    Temperature 0 takes the largest logit after bias and penalties, ties to the lowest id; it is one argmax where there
    is neither. Otherwise the token is the inverse CDF of ``warp`` at ``uniform(seed, sample, position)``, and never one
    of probability zero. ``-inf`` logits are allowed and mean "never". Raises ``BadLogitsError`` for NaN, ``+inf`` or
    nothing but ``-inf``, ``ConfigError`` for a bias outside the vocabulary, ``MisuseError`` for a wrong shape or a
    history with ids outside it.
    """
    adjusted = adjust(logits, history, params)
    if params.temperature == 0.0:
        token_id = int(np.argmax(adjusted))
        _finite_or_raise(float(adjusted[token_id]))
    else:
        ids, weights = _support(adjusted, params)
        token_id = int(ids[_inverse_cdf(weights, uniform(params.seed, params.sample, position))])
    if params.top_logprobs < 0:
        return Choice(token_id, None, ())
    logprobs = _log_softmax(logits)
    return Choice(token_id, float(logprobs[token_id]), _largest(logprobs, params.top_logprobs))


def warp(logits: Logits, history: History, params: SamplingParams) -> Probabilities:
    """``[V]`` float64: the distribution ``choose`` draws from (one-hot if temperature is 0). Raises as it does."""
    adjusted = adjust(logits, history, params)
    probabilities = np.zeros(len(adjusted), np.float64)
    if params.temperature == 0.0:
        token_id = int(np.argmax(adjusted))
        _finite_or_raise(float(adjusted[token_id]))
        probabilities[token_id] = 1.0
        return probabilities
    ids, weights = _support(adjusted, params)
    probabilities[ids] = weights / weights.sum()
    return probabilities


def adjust(logits: Logits, history: History, params: SamplingParams) -> Logits:
    """``[V]`` float32 after bias and penalties: a copy, or ``logits`` itself where neither is asked for.

    Repetition divides positive and multiplies negative logits of every id in ``history`` (Keskar et al., CTRL, 2019);
    presence subtracts its penalty from every id of the answer, frequency subtracts its own once per occurrence
    (OpenAI's API reference).
    """
    if logits.ndim != 1 or logits.dtype != np.float32 or len(logits) == 0:
        raise MisuseError(f"logits are {logits.dtype}{list(logits.shape)}, not float32[V]")
    repeats = params.repetition_penalty != 1.0
    counts = params.presence_penalty != 0.0 or params.frequency_penalty != 0.0
    if not (params.logit_bias or repeats or counts):
        return logits
    adjusted = logits.copy()
    if params.logit_bias:
        check_bias(params, len(logits))
        biased, biases = zip(*params.logit_bias, strict=True)
        np.add.at(adjusted, np.array(biased), np.clip(biases, -MAX_BIAS, MAX_BIAS).astype(np.float32))
    if repeats or counts:
        _penalise(adjusted, history, params)
    return adjusted


def _penalise(adjusted: Logits, history: History, params: SamplingParams) -> None:
    ids = history.distinct_ids
    if len(ids) == 0:
        return
    if int(ids.max()) >= len(adjusted):
        raise MisuseError(f"the history holds token {int(ids.max())}, but the model has {len(adjusted)} tokens")
    seen = adjusted[ids]
    with np.errstate(over="ignore"):  # an overflow shows as an infinite maximum, which is refused
        if params.repetition_penalty != 1.0:
            penalty = np.float32(params.repetition_penalty)
            seen = np.where(seen < 0, seen * penalty, seen / penalty)
        answered = history.answer_counts
        seen -= (params.presence_penalty * (answered > 0) + params.frequency_penalty * answered).astype(np.float32)
    adjusted[ids] = seen


def _support(adjusted: Logits, params: SamplingParams) -> tuple[NDArray[np.int64], Probabilities]:
    """Ids (ascending) and unnormalised positive weights of the tokens that pass temperature, top-k and top-p."""
    largest = float(adjusted.max())  # NaN if any is
    _finite_or_raise(largest)
    if 0 < params.top_k < len(adjusted):
        threshold = np.partition(adjusted, len(adjusted) - params.top_k)[len(adjusted) - params.top_k]
        ids = np.flatnonzero(adjusted >= threshold)  # ties at the k-th value all stay, as in transformers
        weights = adjusted[ids].astype(np.float64)
    else:
        ids = np.arange(len(adjusted), dtype=np.int64)
        weights = adjusted.astype(np.float64)
    weights -= largest
    with np.errstate(over="ignore", under="ignore"):  # a tiny temperature sends all but the largest to -inf, then 0
        weights /= params.temperature
        np.exp(weights, out=weights)
    if params.top_p < 1.0:
        inside = _nucleus(weights / weights.sum(), params.top_p)
        ids, weights = ids[inside], weights[inside]
    return ids, weights


def _nucleus(probabilities: Probabilities, top_p: float) -> NDArray[np.bool_]:
    """Mask of the tokens top-p keeps.

    A token goes if its ascending cumulative probability is at most ``1 - top_p``; the likeliest always stays. Among
    equals the lower ids stay (transformers' unstable sort keeps any of them).
    """
    cut = 1.0 - top_p
    # Tokens of at most cut / 2V have together at most cut / 2: they all go, and only the others need sorting.
    candidates = probabilities > 0.5 * cut / len(probabilities)
    ascending = np.sort(probabilities[candidates])
    below = 1.0 - float(ascending.sum()) if len(ascending) < len(probabilities) else 0.0
    first = int(np.searchsorted(below + np.cumsum(ascending), cut, side="right"))
    first = min(first, len(ascending) - 1)
    smallest = ascending[first]
    kept_equals = int(np.searchsorted(ascending, smallest, side="right")) - first
    mask: NDArray[np.bool_] = probabilities > smallest
    mask[np.flatnonzero(probabilities == smallest)[:kept_equals]] = True
    return mask


def _inverse_cdf(weights: Probabilities, u: float) -> int:
    """The first index whose cumulative weight exceeds ``u`` times the total: never one of weight zero."""
    cumulative = np.cumsum(weights)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    if index < len(weights):
        return index
    return int(np.flatnonzero(weights)[-1])  # u * total rounded up to the total


def _log_softmax(logits: Logits) -> Probabilities:
    shifted = logits.astype(np.float64)
    largest = float(shifted.max())
    _finite_or_raise(largest)
    shifted -= largest
    with np.errstate(under="ignore"):
        shifted -= math.log(np.exp(shifted).sum())
    return shifted


def _largest(logprobs: Probabilities, count: int) -> tuple[tuple[int, float], ...]:
    if count == 0:
        return ()
    count = min(count, len(logprobs))
    threshold = np.partition(logprobs, len(logprobs) - count)[len(logprobs) - count]
    ids = np.flatnonzero(logprobs >= threshold)
    ids = ids[np.argsort(-logprobs[ids], kind="stable")][:count]
    return tuple((int(token_id), float(logprobs[token_id])) for token_id in ids)


def _finite_or_raise(largest: float) -> None:
    """The maximum tells all: it is NaN if any logit is, ``+inf`` if one is, ``-inf`` only if all are."""
    if not np.isfinite(largest):
        raise BadLogitsError(
            f"the model's logits are not finite (largest: {largest})",
            hint="check the weights, or use a dtype of wider range such as bfloat16 or float32",
        )
