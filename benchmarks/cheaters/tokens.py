"""Tails that do not say the token that the distribution and the seed lead to."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.cheaters.cheat import Cheat
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import Choice, Logits, adjust, warp
from swarm.decoding.uniform import uniform
from swarm.verification.verdicts.verdict import LOGIT_ERROR, cdf_tolerance

REPLACED = 0.01
TARGET = "swarm.server.sessions.tail.choose"
Choose = Callable[[Logits, History, int, SamplingParams], Choice]


def replaced() -> Cheat:
    """One token in a hundred is another one, as likely to be drawn as any: by the distribution, with other dice."""
    dice = random.Random(13)

    def change(choose: Choose) -> Any:
        def choose_other(logits: Logits, history: History, position: int, params: SamplingParams) -> Choice:
            chosen = choose(logits, history, position, params)
            if dice.random() >= REPLACED:
                return chosen
            return replace(chosen, token_id=_another(logits, history, params, chosen.token_id, dice))

        return choose_other

    return Cheat(summary=f"replaces {REPLACED:.0%} of the tokens", server=((TARGET, change),))


def in_reach() -> Cheat:
    """Every token is the one within half of the audit's tolerance of the drawn point that has the largest id.

    For greedy sampling: of those within that of the largest logit. Half, for the audit's own logits lie elsewhere. To
    be started with ``--dtype bfloat16``, where tolerances are wide.
    """

    def change(_: Choose) -> Any:
        def choose_in_reach(logits: Logits, history: History, position: int, params: SamplingParams) -> Choice:
            error = LOGIT_ERROR["bfloat16"] / 2
            if params.temperature == 0.0:
                adjusted = adjust(logits, history, params)
                near = np.flatnonzero(adjusted >= adjusted.max() - error)
            else:
                sums = np.cumsum(warp(logits, history, params))
                point = uniform(params.seed, params.sample, position)
                reach = cdf_tolerance(error, params.temperature)
                low = np.concatenate(([0.0], sums[:-1]))
                near = np.flatnonzero((low - reach <= point) & (point <= sums + reach))
            return Choice(int(near[-1]), None, ())

        return choose_in_reach

    return Cheat(summary="chooses among the tokens in an audit's tolerance", server=((TARGET, change),))


def _another(logits: Logits, history: History, params: SamplingParams, token: int, dice: random.Random) -> int:
    """A token drawn from the distribution without ``token``; from the model's own where that leaves nothing."""
    weights = warp(logits, history, params)
    weights[token] = 0.0
    if not weights.sum() > 0:
        weights = warp(logits, history, SamplingParams(temperature=1.0))
        weights[token] = 0.0
    sums = np.cumsum(weights)
    return int(np.searchsorted(sums, dice.random() * sums[-1], side="right"))
