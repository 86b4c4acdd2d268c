"""Activations like a model's: a stream that one sink position and a few channels dominate, and small updates in it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from swarm.core.ids import ModelId
from swarm.verification.verdicts.calibration import Calibration, calibrate

Floats = npt.NDArray[np.float64]

MODEL = ModelId("toy", "main", "0123456789abcdef")
LAYERS, HIDDEN = 4, 96
HUGE = (3, 40)
"""Channels that are hundreds of times larger than the others in the stream, and hardly change."""


def stream(rng: np.random.Generator, rows: int, *, sink: bool = True) -> Floats:
    """Hidden states ``[LAYERS + 1, rows, HIDDEN]`` of one text; its first row is the sink's."""
    spread = np.exp(rng.normal(0, 0.1, HIDDEN)) * np.where(np.arange(HIDDEN) % 5, 1.0, 2.0)
    states = [rng.normal(0, 1, (rows, HIDDEN)) * 4]
    states[0][:, HUGE] += 300
    if sink:
        states[0][0, HUGE] = 30_000
    for _ in range(LAYERS):
        states.append(states[-1] + rng.normal(0, 1, (rows, HIDDEN)) * spread)
    return np.stack(states)


def toy_calibration(rows: int = 513) -> Calibration:
    states = stream(np.random.default_rng(11), rows)
    return calibrate(MODEL, states, np.arange(rows) > 0, text="normal 11")
