"""How a gateway behaves, and what it lets one request ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_CHOICES = 16
"""Answers that one request may ask for, over all its prompts."""
MAX_STOPS = 4
MAX_STOP_CHARS = 1000
MAX_USER_CHARS = 512
MAX_MESSAGES = 4096
MAX_LEGACY_LOGPROBS = 5
"""Alternatives beside each token of a text completion; a chat's bound is the wire's."""
MAX_KEYS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayOptions:
    """How a gateway behaves. Times in seconds.

    ``model_names`` are what clients may call the model; the first is what it is listed as. ``concurrent`` answers run
    at once, ``queue`` requests wait for one of them to end, each up to ``queue_timeout_s``. ``new_tokens`` is the
    length of a chat's answer that asks for none. A body that takes longer than ``body_timeout_s`` to come, or a stream
    whose client takes longer than ``write_timeout_s`` to read a piece, is given up. ``beat_s`` is how long a stream is
    silent before it says that it is alive. ``keys`` empty: everybody may ask. ``hosts`` are the names under which it is
    asked, beside IP addresses and localhost; ``*`` for any. ``origins`` are the web origins whose scripts may ask;
    ``*`` for all. One address, other than this machine's, has up to ``connections_per_address``.
    """

    model_names: Sequence[str]
    concurrent: int = 32
    queue: int = 128
    queue_timeout_s: float = 30.0
    new_tokens: int = 512
    max_body_bytes: int = 2 * 1024 * 1024
    body_timeout_s: float = 30.0
    write_timeout_s: float = 30.0
    beat_s: float = 15.0
    keys: Sequence[str] = ()
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()
    page: bool = True
    connections_per_address: int = 256
