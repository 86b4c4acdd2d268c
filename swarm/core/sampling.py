"""Sampling parameters: chosen by the client, carried on the wire, applied by whoever holds the head."""

from __future__ import annotations

from typing import Annotated

import msgspec

from swarm.core.errors import ConfigError
from swarm.core.limits import MAX_LOGIT_BIAS, MAX_TOP_LOGPROBS, MAX_VOCABULARY

MAX_BIAS = 1e30
"""Beyond any logit, and still finite in float32."""

Bias = tuple[Annotated[int, msgspec.Meta(ge=0, lt=MAX_VOCABULARY)], float]


class SamplingParams(msgspec.Struct, frozen=True, array_like=True):
    """How the next token follows from logits.

    ``temperature`` 0 is greedy. ``top_k`` 0 and ``top_p`` 1 switch those filters off. ``repetition_penalty``
    divides positive and multiplies negative logits of every token seen so far (prompt and answer), as transformers
    does; ``presence_penalty`` and ``frequency_penalty`` count tokens of the answer only, as the OpenAI API defines
    them. ``seed`` is a 64-bit key for the counter-based uniforms, ``sample`` distinguishes several answers to one
    prompt. ``top_logprobs`` asks for that many alternatives beside each token; -1 asks for none at all.
    """

    temperature: float = 0.0
    top_k: Annotated[int, msgspec.Meta(ge=0, le=MAX_VOCABULARY)] = 0
    top_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Annotated[tuple[Bias, ...], msgspec.Meta(max_length=MAX_LOGIT_BIAS)] = ()
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    sample: Annotated[int, msgspec.Meta(ge=0, lt=65536)] = 0
    top_logprobs: Annotated[int, msgspec.Meta(ge=-1, le=MAX_TOP_LOGPROBS)] = -1

    def checked(self) -> SamplingParams:
        """Return self, or raise ``ConfigError`` that names the parameter, its value and its range.

        What arrives by wire has passed msgspec's checks of types and integer ranges; this also checks the floats, and
        everything of a caller who built the object himself.
        """
        ranges = {
            "temperature": (0.0, 100.0),
            "top_p": (0.0, 1.0),
            "repetition_penalty": (0.01, 100.0),
            "presence_penalty": (-100.0, 100.0),
            "frequency_penalty": (-100.0, 100.0),
            "top_k": (0, MAX_VOCABULARY),
            "top_logprobs": (-1, MAX_TOP_LOGPROBS),
            "seed": (0, 2**63 - 1),
            "sample": (0, 65535),
        }
        for name, (low, high) in ranges.items():
            value = getattr(self, name)
            whole = isinstance(low, int)
            if not (_is_number(value, whole=whole) and low <= value <= high):  # a NaN fails the comparison
                kind = "whole number" if whole else "number"
                raise ConfigError(f"{name} is {value!r:.80}", hint=f"choose a {kind} from {low} to {high}")
        if self.top_p == 0.0:
            raise ConfigError("top_p is 0, which keeps no token", hint="choose a value above 0, up to 1")
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise ConfigError(f"logit_bias has {len(self.logit_bias)} entries", hint=f"at most {MAX_LOGIT_BIAS}")
        for token, bias in self.logit_bias:
            if not (_is_number(token, whole=True) and 0 <= token < MAX_VOCABULARY):
                raise ConfigError(f"logit_bias names token {token!r:.80}", hint="keys are token ids")
            if not (_is_number(bias, whole=False) and abs(bias) <= MAX_BIAS):
                raise ConfigError(
                    f"logit_bias of token {token} is {bias!r:.80}", hint=f"choose a number up to ±{MAX_BIAS:g}"
                )
        return self


def _is_number(value: object, *, whole: bool) -> bool:
    """True for plain numbers that msgpack carries as such: not bool, not numpy's."""
    return type(value) is int or (not whole and type(value) is float)
