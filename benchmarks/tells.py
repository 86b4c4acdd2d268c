"""Numbers about a session that a server could tell challenges by, in groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import fmean, pstdev

import numpy as np
import numpy.typing as npt

from benchmarks.onlooker import Seen

Floats = npt.NDArray[np.float64]
GRAM = 5
"""Tokens that are looked up in all that earlier sessions said."""
FULL_STOPS = (".", "?", "!")


def opening(seen: Seen) -> list[float]:
    """What OPEN says, and how its random fields begin."""
    opened = seen.opened
    return [
        opened.kv_tokens,
        opened.stage,
        len(opened.numerics),
        float(opened.priority == "batch"),
        float(opened.codec == "raw"),
        float(opened.feedback),
        opened.generation,
        opened.signed_rows,
        float(opened.embed),
        float(opened.head),
        opened.nonce[0],
        opened.commitment[0],
        opened.session[0],
    ]


def shape(seen: Seen) -> list[float]:
    """Lengths of prompt and answer, steps, and what the client did at the end."""
    steps = [item.step for item in seen.steps]
    prompt, rows = seen.prompt_rows, sum(step.rows for step in steps)
    names = [name for _, name in seen.others]
    return [
        prompt,
        rows - prompt,
        seen.opened.kv_tokens - rows,
        seen.opened.kv_tokens - prompt,
        sum(step.rows > 1 for step in steps),
        max((step.rows for step in steps), default=0),
        sum(step.want for step in steps),
        max((step.epoch for step in steps), default=0),
        max((step.horizon for step in steps), default=0),
        *(names.count(name) for name in ("Noop", "Relink", "Settle", "Countersign", "Close")),
    ]


def sampling(seen: Seen) -> list[float]:
    """How the client wants tokens to be chosen."""
    params = next((item.step.answer.params for item in seen.steps if item.step.answer is not None), None)
    if params is None:
        return [0.0] * 6
    return [
        params.temperature,
        params.top_k,
        params.top_p,
        params.repetition_penalty,
        params.seed % 997,
        params.top_logprobs,
    ]


def timing(seen: Seen) -> list[float]:
    """Seconds between frames: to the first step, between steps, to the end."""
    at_s = [item.at_s for item in seen.steps]
    last_s = at_s[-1] if at_s else seen.opened_s
    gaps_s = [after - before for before, after in pairwise(at_s)] or [0.0]
    ends_s = [time_s for time_s, name in seen.others if name in ("Settle", "Countersign", "Close")] or [last_s]
    return [
        (at_s[0] if at_s else seen.opened_s) - seen.opened_s,
        gaps_s[0],
        fmean(gaps_s),
        pstdev(gaps_s),
        min(gaps_s),
        max(gaps_s),
        min(ends_s) - last_s,
        max(ends_s) - last_s,
    ]


def client(seen: Seen, arrival: Sequence[float]) -> list[float]:
    """Age and habits of the client's id; ``arrival`` are seconds of the schedule that the benchmark skips."""
    return [seen.number, seen.fetches_before, *arrival]


def activations(seen: Seen) -> list[float]:
    """Sizes and shapes of the rows that come in, of the prompt and of what follows it; position 0 left out."""
    parts = [item.rows for item in seen.steps if item.rows is not None]
    if not parts:
        return []
    rows = np.concatenate(parts).astype(np.float64)
    found = [float(np.sqrt(np.mean(rows[0] ** 2)))]
    for part in (rows[1 : seen.prompt_rows], rows[seen.prompt_rows :]):
        found += _statistics(part if len(part) > 1 else rows[:2])
    return found


def mean_row(seen: Seen) -> Floats:
    """The mean of the prompt's rows that come in, each at length 1; position 0 left out. Shape ``[hidden]``."""
    rows = np.concatenate([item.rows for item in seen.steps if item.rows is not None]).astype(np.float64)
    prompt = rows[1 : max(seen.prompt_rows, 2)]
    found: Floats = np.mean(prompt / np.linalg.norm(prompt, axis=1, keepdims=True), axis=0)
    return found


def _statistics(rows: Floats) -> list[float]:
    square = rows**2
    rms = np.sqrt(square.mean(axis=1))
    top = np.sort(square, axis=1)[:, ::-1]
    energy = square.sum(axis=1)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    near = (unit[1:] * unit[:-1]).sum(axis=1)
    kurtosis = (rows**4).mean(axis=1) / square.mean(axis=1) ** 2
    return [
        float(value)
        for values in (rms, np.log(rms), top[:, 0] / energy, top[:, :8].sum(axis=1) / energy, near, kurtosis)
        for value in (values.mean(), values.std(), values.min(), values.max())
    ]


class Memory:
    """Everything that sessions have said so far, as the head server could remember it."""

    def __init__(self) -> None:
        self._grams: set[tuple[int, ...]] = set()

    def known_share(self, ids: Sequence[int]) -> float:
        """How many of the runs of ``GRAM`` tokens were said before; and from now on all of them were."""
        grams = {tuple(ids[start : start + GRAM]) for start in range(max(len(ids) - GRAM + 1, 1))}
        known = len(grams & self._grams) / len(grams)
        self._grams |= grams
        return known


def text(ids: Sequence[int], said: str, surprise: Mapping[str, float], known: float) -> list[float]:
    """How what was asked reads: ``surprise`` is the model's own, by name; ``known`` the share that is no news."""
    count = max(len(ids), 1)
    letters = max(len(said), 1)
    pairs = set(pairwise(ids))
    return [
        len(ids),
        len(set(ids)) / count,
        len(pairs) / max(count - 1, 1),
        known,
        float(said.rstrip().endswith(FULL_STOPS)),
        float(said[:1].isupper()),
        said.count("\n"),
        sum(letter.isupper() for letter in said) / letters,
        sum(letter.isdigit() for letter in said) / letters,
        sum(not (letter.isalnum() or letter.isspace()) for letter in said) / letters,
        letters / count,
        *surprise.values(),
    ]
