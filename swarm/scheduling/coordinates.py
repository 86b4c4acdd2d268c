"""Network coordinates: round trips between servers that never measured each other, from those that were measured.

Vivaldi with height vectors, sections 2 and 3 and 5.4 of Dabek, Cox, Kaashoek and Morris, "Vivaldi: A Decentralized
Network Coordinate System", SIGCOMM 2004: every node is a point in a plane (the core of the network) with a height above
it (its own access line); the predicted round trip between two is their distance in the plane plus both heights. Each
measurement pulls or pushes a node along the line to the other one as a spring would, more weakly the surer the node is
of its own place and the less sure the other one is.
"""

from __future__ import annotations

import hashlib
import math

from swarm.core.announcement import Coordinate
from swarm.scheduling.cluster import distance_s

CE = 0.25
"""c_e of the paper: the weight of one sample in the error estimate."""
CC = 0.25
"""c_c of the paper: the share of the distance that one sample of a perfect neighbour moves."""
MIN_HEIGHT_S = 1e-5
START = Coordinate(0.0, 0.0, MIN_HEIGHT_S, 1.0)
"""Where every node begins: nowhere, and sure of nothing."""
MAX_RTT_S = 10.0
"""A longer round trip is no measurement, and no coordinate lies farther out."""
MAX_STEP_S = 0.1
"""The most one sample moves a node, whatever its neighbour says of itself."""
MIN_ERROR = 0.02
"""Nobody is taken for surer than this."""
MAX_ERROR = 1.0


def update(own: Coordinate, other: Coordinate, rtt_s: float, *, toward: tuple[float, float] = (1.0, 0.0)) -> Coordinate:
    """``own`` after a measured round trip of ``rtt_s`` seconds to a node that says it is at ``other``.

    Deterministic: where both are at one point, the direction to leave it in is ``toward`` (a unit vector; see
    ``direction``). What cannot be right (a NaN, a negative height, a point or a round trip beyond ``MAX_RTT_S``) leaves
    ``own`` unchanged. One sample moves it by at most ``MAX_STEP_S``, so a liar drags it slowly, and honest samples pull
    it back. O(1).
    """
    if not (0 < rtt_s <= MAX_RTT_S and _sane(other)):
        return own
    away_s = distance_s(own, other)  # above 0: heights are
    balance = max(own.error, MIN_ERROR) / (max(own.error, MIN_ERROR) + max(other.error, MIN_ERROR))
    sample_error = abs(away_s - rtt_s) / rtt_s
    error = sample_error * CE * balance + own.error * (1.0 - CE * balance)
    force_s = CC * balance * (rtt_s - away_s)
    force_s = min(max(force_s, -MAX_STEP_S), MAX_STEP_S)
    dx_s, dy_s = own.x_s - other.x_s, own.y_s - other.y_s
    flat_s = math.hypot(dx_s, dy_s)
    heights_s = own.height_s + max(other.height_s, MIN_HEIGHT_S)
    if flat_s > 0:
        unit_x, unit_y, up = dx_s / (flat_s + heights_s), dy_s / (flat_s + heights_s), heights_s / (flat_s + heights_s)
    elif force_s > 0:
        unit_x, unit_y, up = *toward, 0.0
    else:  # at one point and too far even so: only the height is left to give way
        unit_x, unit_y, up = 0.0, 0.0, 1.0
    return Coordinate(
        _within(own.x_s + force_s * unit_x),
        _within(own.y_s + force_s * unit_y),
        min(max(own.height_s + force_s * up, MIN_HEIGHT_S), MAX_RTT_S),
        min(max(error, MIN_ERROR), MAX_ERROR),
    )


def direction(a: str, b: str) -> tuple[float, float]:
    """A unit vector drawn by the hash of two peer ids: a leaves b this way, and b leaves a in another."""
    bits = int.from_bytes(hashlib.sha256(f"{a} {b}".encode()).digest()[:8], "big")
    angle = 2.0 * math.pi * bits / 2**64
    return math.cos(angle), math.sin(angle)


def _sane(place: Coordinate) -> bool:
    flat = abs(place.x_s) <= MAX_RTT_S and abs(place.y_s) <= MAX_RTT_S  # a NaN fails this too
    return flat and 0 <= place.height_s <= MAX_RTT_S and 0 <= place.error < math.inf


def _within(value_s: float) -> float:
    return min(max(value_s, -MAX_RTT_S), MAX_RTT_S)
