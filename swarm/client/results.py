"""What a generation gives back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from swarm.decoding.stopping import FinishReason


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One hop of the chain that answered: layers ``[start, end)`` at ``peer``."""

    peer: str
    start: int
    end: int
    public_name: str = ""

    def __str__(self) -> str:
        return f"{self.public_name or self.peer[-8:]}[{self.start}:{self.end}]"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log probabilities under the model's own distribution: the chosen token's and the likeliest ones'."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A finished answer.

    ``finish_reason`` is ``stop`` if the model ended its turn or a stop string came, ``length`` if ``max_new_tokens``
    were used up; an answer that was cut for any other reason raises instead. ``token_ids`` are all sampled tokens,
    including one that ended the answer. ``ttft_s`` runs from the call to the first token, ``tokens_per_s`` counts the
    tokens after it. ``exact`` is False where the chain mixed numerics or the wire was lossy.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    prompt_tokens: int
    ttft_s: float
    tokens_per_s: float
    chain: tuple[ChainStage, ...]
    exact: bool
    seed: int
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a generation stands.

    ``prefill``: ``done`` of ``total`` prompt tokens are computed by the whole chain. ``decode``: ``done`` tokens of at
    most ``total`` have come. Callbacks run in the client's event loop and must not block it.
    """

    phase: Literal["routing", "opening", "waiting", "prefill", "decode"]
    done: int = 0
    total: int = 0
    detail: str = ""


ProgressCallback = Callable[[Progress], None]
