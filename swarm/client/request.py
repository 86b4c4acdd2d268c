"""What a caller may ask of a generation, checked before anything is sent."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, get_args

from swarm.core.errors import ConfigError
from swarm.core.sampling import SamplingParams
from swarm.wire.fields import Priority

DEFAULT_NEW_TOKENS = 256
Messages = Sequence[Mapping[str, Any]]


class Options(TypedDict, total=False):
    """Keyword arguments of ``generate``.

    ``messages`` (a chat, dicts with role and content) or ``input_ids`` instead of a prompt. ``max_new_tokens``
    defaults to 256, or what the context still holds. ``temperature`` 0 (the default) is greedy; ``top_k`` 0 and
    ``top_p`` 1 are off. Penalties and ``logit_bias`` (token id -> bias) as in ``SamplingParams``. ``logprobs``: True
    for the chosen token's, or how many alternatives. ``stop``: a string or several, not part of the text. ``seed``
    makes sampling repeatable; without one it is drawn and told in the result. ``sample`` (0 to 65535) tells several
    answers to one prompt with one seed apart. ``ignore_eos`` goes on past the model's own end. ``priority`` "batch"
    leaves busy servers to those who wait for every token (8 to 1); it counts when the answer opens a chain, so not in
    the middle of a session.
    """

    messages: Messages
    input_ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: bool | int
    stop: str | Sequence[str]
    seed: int
    sample: int
    ignore_eos: bool
    priority: Priority


@dataclass(frozen=True, slots=True)
class Request:
    """A checked generation: what to sample, how, and when to stop.

    ``max_new_tokens`` None means the default, ``priority`` None the session's.
    """

    params: SamplingParams
    max_new_tokens: int | None
    stop: tuple[str, ...]
    ignore_eos: bool
    priority: Priority | None = None


def read_options(options: Options) -> Request:
    """Check every option; ``ConfigError`` names the one that is wrong, or unknown, and what would do."""
    unknown = set(options) - set(Options.__annotations__)
    if unknown:
        known = ", ".join(sorted(Options.__annotations__))
        raise ConfigError(f"unknown option {sorted(unknown)[0]!r}", hint=f"known are {known}")
    limit = options.get("max_new_tokens")
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ConfigError(f"max_new_tokens is {limit!r}", hint="ask for at least 1")
    stop = options.get("stop", ())
    stop = (stop,) if isinstance(stop, str) else tuple(stop)
    if any(not isinstance(text, str) or not text for text in stop):
        raise ConfigError("stop must be one or more non-empty strings")
    return Request(
        _params(options), limit, stop, bool(options.get("ignore_eos", False)), check_priority(options.get("priority"))
    )


def check_priority(priority: Priority | None) -> Priority | None:
    """``priority``, if it is one; ``ConfigError`` otherwise."""
    if priority is not None and priority not in get_args(Priority):
        raise ConfigError(f"priority is {priority!r}", hint=f"choose {' or '.join(get_args(Priority))}")
    return priority


def _params(options: Options) -> SamplingParams:
    logprobs = options.get("logprobs", False)
    top = (0 if logprobs else -1) if isinstance(logprobs, bool) else logprobs
    seed = options.get("seed")
    bias = options.get("logit_bias") or {}
    try:
        return SamplingParams(
            temperature=float(options.get("temperature", 0.0)),
            top_k=int(options.get("top_k", 0)),
            top_p=float(options.get("top_p", 1.0)),
            repetition_penalty=float(options.get("repetition_penalty", 1.0)),
            presence_penalty=float(options.get("presence_penalty", 0.0)),
            frequency_penalty=float(options.get("frequency_penalty", 0.0)),
            logit_bias=tuple(sorted((int(token), float(value)) for token, value in bias.items())),
            seed=secrets.randbits(63) if seed is None else int(seed),
            sample=int(options.get("sample", 0)),
            top_logprobs=int(top),
        ).checked()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"a sampling option is not a number: {error}") from error
