"""A server's desk without a server."""

from __future__ import annotations

from swarm.core.announcement import Announcement, State
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.numerics import Numerics
from swarm.core.version import VERSION
from swarm.runtime.clock import VirtualClock
from swarm.server.record.signing import Desk
from swarm.verification.verdicts.calibration import Calibration

SERVER, CLIENT = Identity(bytes([1]) * 32), Identity(bytes([2]) * 32)
NOW_S = 1_000_000.0
MODEL = ModelId("org/name", "v1", "0123456789abcdef")
LAYERS = 5
LIFETIME_S = 86_400.0


def announcement() -> Announcement:
    return Announcement(
        model=str(MODEL),
        layer_count=LAYERS,
        peer=SERVER.peer_id,
        start=0,
        end=LAYERS,
        state=State.ONLINE,
        numerics=Numerics("bfloat16", "int8"),
        software=f"swarm {VERSION}",
        instance=1,
        sequence=0,
        started_s=NOW_S,
        expires_s=NOW_S + 60.0,
    )


def desk(clock: VirtualClock | None = None, calibration: Calibration | None = None) -> Desk:
    return Desk(SERVER, clock or VirtualClock(wall_s=NOW_S), announcement(), LIFETIME_S, calibration)
