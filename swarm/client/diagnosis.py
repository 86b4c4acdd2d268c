"""Who is lost: what the client saw itself, and what servers say of each other, weighed. Pure: no clock, no stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swarm.core.errors import SwarmError

LossKind = Literal["gone", "silent", "failed", "late", "slow", "draining", "idle"]
"""How a server was lost.

``gone``: its stream ended. ``silent``: its pulses stopped. ``failed``: it said so, broke the protocol, lied, or was
told on too often. ``late``: it kept a step or a replay past its deadline. Nobody's fault: ``slow`` (alive, and could go on),
``draining`` (its owner stopped it), ``idle`` (nothing came for too long).
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a server serves no more; ``error`` is what a person is told."""

    kind: LossKind
    error: SwarmError
