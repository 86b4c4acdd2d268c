"""A tail's answers: is each token the one that follows from the row its head read, by the sampler's own definition?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from swarm.client.auditing.material import Material
from swarm.core.errors import BadLogitsError
from swarm.core.numerics import Numerics
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import Logits, adjust, warp
from swarm.decoding.uniform import uniform
from swarm.verification.signed.leaves import Leaf
from swarm.verification.signed.receipts import WINDOW_ROWS
from swarm.verification.verdicts.verdict import (
    LOGIT_ERROR,
    Outcome,
    cdf_tolerance,
    judge_greedy_token,
    judge_sampled_token,
)


@dataclass(frozen=True, slots=True)
class TokenTally:
    """How the answers of one window look, given the rows that the tail's head read."""

    passed: int = 0
    soft: int = 0
    hard: int = 0
    uncounted: int = 0

    def one_more(self, outcome: Outcome) -> TokenTally:
        counts = {Outcome.PASS: "passed", Outcome.SOFT: "soft", Outcome.HARD: "hard", Outcome.UNCOUNTED: "uncounted"}
        name = counts[outcome]
        return replace(self, **{name: getattr(self, name) + 1})


def answered(material: Material) -> list[Leaf]:
    """The leaves of rows after which the tail chose a token, in order."""
    return [leaf for leaf in material.leaves if leaf.token_id is not None]


def tally(material: Material, logits: Logits, reference: Numerics) -> dict[int, TokenTally]:
    """Judge the ``answered`` rows by window; ``logits`` ``[n, vocabulary]`` are recomputed from their outputs.

    A token is hard, too, if it is not what the client was told, or if the tail says that its head read another row
    than the one it computed. O(n · vocabulary).
    """
    record = material.record
    told = dict(record.answers)
    error = max(LOGIT_ERROR[numerics.dtype] for numerics in (material.numerics, reference))
    found: dict[int, TokenTally] = {}
    history = History(answer_start=0)
    for leaf, row in zip(answered(material), logits, strict=True):
        token, place = leaf.token_id or 0, leaf.position + 1
        start, params = _params_at(record.params, place)
        if history.answer_start != start:
            history = History(record.token_ids[:place], answer_start=start)
        history.extend(record.token_ids[len(history) : place])
        if leaf.final != leaf.output or told.get(leaf.position, token) != token:
            outcome = Outcome.HARD
        elif params is None:
            outcome = Outcome.UNCOUNTED
        else:
            outcome = judge_token(token, row, history, params, error)
        window = leaf.position // WINDOW_ROWS
        found[window] = found.get(window, TokenTally()).one_more(outcome)
    return found


def judge_token(token: int, logits: Logits, history: History, params: SamplingParams, logit_error: float) -> Outcome:
    """Whether ``token`` follows ``history``; see ``judge_sampled_token`` and ``judge_greedy_token``.

    ``logit_error`` is how far honest logits may lie apart; a repetition penalty stretches it. Where top-k or top-p cut
    the distribution other honest logits may cut elsewhere, and leave other tokens to the same point of the CDF: what
    one of these cuts leads to is soft. O(vocabulary · log vocabulary).
    """
    error = logit_error * max(params.repetition_penalty, 1 / params.repetition_penalty)
    try:
        adjusted = adjust(logits, history, params)
        if params.temperature == 0.0:
            return judge_greedy_token(token, adjusted, tolerance=error)
        cumulative = np.cumsum(warp(logits, history, params))
    except BadLogitsError:
        return Outcome.UNCOUNTED
    point, reach = uniform(params.seed, params.sample, len(history)), cdf_tolerance(error, params.temperature)
    outcome = judge_sampled_token(token, cumulative, point, tolerance=reach)
    cut = 0 < params.top_k < len(adjusted) or params.top_p < 1.0
    if outcome is Outcome.HARD and cut and 0 <= token < len(adjusted):
        low, high = _widest_part(token, adjusted, params, error)
        return Outcome.SOFT if low - reach <= point <= high + reach else Outcome.HARD
    return outcome


def _widest_part(token: int, adjusted: Logits, params: SamplingParams, error: float) -> tuple[float, float]:
    """From where to where ``token``'s part of the CDF may lie, over all cuts that logits off by ``error`` may make.

    It begins lowest if of the tokens before it only those remain that surely do, and of those behind it all that may;
    it ends highest the other way round. (1, 0), which nothing lies in, if it is surely cut off.
    """
    lowest, highest = _edges(adjusted, params, error)
    may, must = adjusted >= lowest - error, adjusted > highest + error
    if not may[token]:
        return 1.0, 0.0
    weights = np.exp((adjusted.astype(np.float64) - float(adjusted.max())) / params.temperature)
    own, before, behind = float(weights[token]), slice(0, token), slice(token + 1, None)
    must_before, may_before = (float(weights[before][mask[before]].sum()) for mask in (must, may))
    must_behind, may_behind = (float(weights[behind][mask[behind]].sum()) for mask in (must, may))
    if own == 0.0:  # it may be there, but has no weight to be met by
        return 1.0, 0.0
    return must_before / (must_before + own + may_behind), (may_before + own) / (may_before + own + must_behind)


def _edges(adjusted: Logits, params: SamplingParams, error: float) -> tuple[float, float]:
    """The smallest logit that top-k and top-p keep: the lowest and the highest that it can be, top-k's place aside.

    The k-th largest logit moves by no more than each does; what a share of the whole is, by ``cdf_tolerance``.
    """
    kept = np.sort(adjusted)[::-1].astype(np.float64)
    kept = kept[: params.top_k] if params.top_k else kept
    kept = kept[np.isfinite(kept)]
    if params.top_p == 1.0:
        return float(kept[-1]), float(kept[-1])
    shares = np.cumsum(np.exp((kept - kept[0]) / params.temperature))
    shares /= shares[-1]
    reach = cdf_tolerance(error, params.temperature)
    places = np.searchsorted(shares, [params.top_p + reach, params.top_p - reach])
    lowest, highest = (float(kept[min(int(place), len(kept) - 1)]) for place in places)
    return lowest, highest


def _params_at(params: Sequence[tuple[int, SamplingParams]], place: int) -> tuple[int, SamplingParams | None]:
    """The answer that the token at ``place`` belongs to: where it starts, and how it was sampled."""
    begun = [(start, chosen) for start, chosen in params if start <= place]
    return max(begun, key=lambda answer: answer[0]) if begun else (0, None)
