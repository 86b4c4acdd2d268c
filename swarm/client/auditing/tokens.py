"""A tail's answers: is each token the one that follows from the row its head read, by the sampler's own definition?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from swarm.client.auditing.material import Material
from swarm.core.errors import BadLogitsError
from swarm.core.numerics import Numerics
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import Logits, adjust, warp
from swarm.decoding.uniform import uniform
from swarm.verification.leaves import Leaf
from swarm.verification.receipts import WINDOW_ROWS
from swarm.verification.verdict import LOGIT_ERROR, Outcome, cdf_tolerance, judge_greedy_token, judge_sampled_token


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
    the distribution, another cut within that error is as good: a token that one of them leads to is soft.
    """
    stretch = max(params.repetition_penalty, 1 / params.repetition_penalty)
    error = logit_error * stretch
    try:
        adjusted = adjust(logits, history, params)
        if params.temperature == 0.0:
            return judge_greedy_token(token, adjusted, tolerance=error)
        outcome = _sampled(token, logits, history, params, error)
        if outcome is not Outcome.HARD:
            return outcome
        near = (_sampled(token, logits, history, other, error) for other in _other_cuts(adjusted, params, error))
        return Outcome.SOFT if any(outcome is not Outcome.HARD for outcome in near) else Outcome.HARD
    except BadLogitsError:
        return Outcome.UNCOUNTED


def _sampled(token: int, logits: Logits, history: History, params: SamplingParams, error: float) -> Outcome:
    cumulative = np.cumsum(warp(logits, history, params))
    point = uniform(params.seed, params.sample, len(history))
    return judge_sampled_token(token, cumulative, point, tolerance=cdf_tolerance(error, params.temperature))


def _other_cuts(adjusted: Logits, params: SamplingParams, error: float) -> Iterator[SamplingParams]:
    """The parameters that cut where other honest logits might."""
    counts, parts = [params.top_k], [params.top_p]
    if 0 < params.top_k < len(adjusted):
        edge = np.partition(adjusted, len(adjusted) - params.top_k)[len(adjusted) - params.top_k]
        fewest, most = int((adjusted > edge + 2 * error).sum()), int((adjusted >= edge - 2 * error).sum())
        counts += [max(fewest, 1), most]
    if params.top_p < 1.0:
        reach = cdf_tolerance(error, params.temperature)
        parts += [max(params.top_p - reach, 1e-6), min(params.top_p + reach, 1.0)]
    for top_k in dict.fromkeys(counts):
        for top_p in dict.fromkeys(parts):
            if (top_k, top_p) != (params.top_k, params.top_p):
                yield msgspec.structs.replace(params, top_k=top_k, top_p=top_p)


def _params_at(params: Sequence[tuple[int, SamplingParams]], place: int) -> tuple[int, SamplingParams | None]:
    """The answer that the token at ``place`` belongs to: where it starts, and how it was sampled."""
    begun = [(start, chosen) for start, chosen in params if start <= place]
    return max(begun, key=lambda answer: answer[0]) if begun else (0, None)
