"""Asking a server for what it kept of a closed session of ours."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.client.plan import StagePlan
from swarm.transport.protocol import Transport

DIAL_S = 10.0
FRAME_S = 15.0
"""How long a server may take to send the next part of what was asked."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Of whom what is asked: one stage of one session, and the secret that shows that the client may."""

    plan: StagePlan
    session: bytes
    stage: int
    secret: bytes
