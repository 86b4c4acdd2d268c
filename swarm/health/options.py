"""How the health page's HTTP side behaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_EVENTS_ASKED = 1000
"""Of one answer of ``/api/v1/events``."""
MAX_HOURS = 24.0
"""As far back as history goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthOptions:
    """Times in seconds.

    ``hosts`` are the names under which it is asked, beside IP addresses and localhost; ``*`` for any. ``origins`` are
    the web origins whose scripts may ask below ``/api``; ``*`` for all. ``streams`` are open at once, of one address
    ``streams_per_address``. Any address, other than this machine's, has up to ``connections_per_address``. A stream
    tells of changes once in ``pace_s``, and after ``beat_s`` of silence that it is alive; a reader that takes longer
    than ``write_timeout_s`` for a piece is cut off. It counts as healthy while the directory answered in the last
    ``fresh_s``.
    """

    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    page: bool = True
    streams: int = 256
    streams_per_address: int = 32
    connections_per_address: int = 256
    pace_s: float = 1.0
    beat_s: float = 15.0
    write_timeout_s: float = 30.0
    fresh_s: float = 60.0
