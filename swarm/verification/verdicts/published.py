"""The comparison others have published, kept under its own name: whole activations, cosine and relative norm.

It is blind. In the residual stream one sink position and a few channels hold 99 % of the energy, and a span passes
them on as they came: a server that returns its input unchanged scores a cosine of 0.9990 to 0.9998 on real
activations of middle layers (docs/verification.md) and passes. It is here so that anyone can see that, beside
``verdict``; nothing in the package decides by it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from swarm.core.errors import MisuseError
from swarm.verification.verdicts.calibration import Floats

LEAST_COSINE = 0.99
MOST_NORM_DIFFERENCE = 0.05


@dataclass(frozen=True, slots=True)
class PublishedComparison:
    """``cosine`` of the two outputs as one vector each; ``norm_difference`` of their norms over the reference's."""

    cosine: float
    norm_difference: float

    @property
    def passes(self) -> bool:
        """Cosine at least 0.99 and relative norm difference under 0.05."""
        return self.cosine >= LEAST_COSINE and self.norm_difference < MOST_NORM_DIFFERENCE


def compare_whole(outputs: Floats, reference: Floats) -> PublishedComparison:
    """Compare whole activations ``[n, hidden]``: neither the inputs nor any channel's scale enter.

    What is not finite, or a reference of zero, gives a cosine of 0 and an infinite difference. Raises ``MisuseError``
    for two shapes.
    """
    if outputs.shape != reference.shape:
        raise MisuseError(f"activations of shapes {outputs.shape} and {reference.shape}")
    ours, theirs = np.asarray(outputs, np.float64), np.asarray(reference, np.float64)
    with np.errstate(all="ignore"):
        norm, reference_norm = float(np.linalg.norm(ours)), float(np.linalg.norm(theirs))
        product = float(np.vdot(ours, theirs))
    if not (math.isfinite(norm) and math.isfinite(reference_norm) and math.isfinite(product) and reference_norm > 0):
        return PublishedComparison(0.0, math.inf)
    cosine = product / (norm * reference_norm) if norm > 0 else 0.0
    return PublishedComparison(cosine, abs(norm - reference_norm) / reference_norm)
