"""What a generation gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from swarm.client.evidence.records import NOTHING_SIGNED, Verification
from swarm.client.plan import StagePlan
from swarm.client.showing import result_html
from swarm.decoding.stopping import FinishReason

_REPR_CHARS = 200
"""Of an answer's text, where it is shown among others."""


@dataclass(frozen=True, slots=True)
class ChainStage:
    """One hop of the chain that answered: layers ``[start, end)`` at ``peer``."""

    peer: str
    start: int
    end: int
    public_name: str = ""

    def __str__(self) -> str:
        return f"{self.public_name or self.peer[-8:]}[{self.start}:{self.end}]"


def served_by(stages: Iterable[StagePlan]) -> tuple[ChainStage, ...]:
    """The stages as a result tells of them."""
    return tuple(
        ChainStage(stage.peer, stage.span.start, stage.span.end, stage.announcement.public_name) for stage in stages
    )


@dataclass(frozen=True, slots=True)
class Heal:
    """One repair of the chain on the way: ``lost`` gave way to ``replaced_by`` within ``pause_s`` seconds.

    Both are empty where only a link between two servers was made anew. ``replayed_rows`` of KV were computed again by
    the newcomers. ``reason`` is what the client saw: whether the server was gone, or alive and slower than others.
    """

    lost: tuple[ChainStage, ...]
    replaced_by: tuple[ChainStage, ...]
    pause_s: float
    replayed_rows: int
    reason: str


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural log probabilities under the model's own distribution: the chosen token's and the likeliest ones'."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True, repr=False)
class GenerationResult:
    """A finished answer.

    ``finish_reason`` is ``stop`` if the model ended its turn or a stop string came, ``length`` if ``max_new_tokens``
    were used up; an answer that was cut for any other reason raises instead. ``token_ids`` are all sampled tokens,
    including one that ended the answer. ``ttft_s`` runs from the call to the first token, ``tokens_per_s`` counts the
    tokens after it. ``chain`` is who served at the end, ``heals`` what happened to it on the way. ``exact`` is False
    where the chain mixed numerics, at once or one after the other, or the wire was lossy. ``verification`` is what the
    receipts that have come show of the session so far.
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
    heals: tuple[Heal, ...] = ()
    verification: Verification = NOTHING_SIGNED

    def __repr__(self) -> str:
        """What a person asks of an answer, in one line; ``dataclasses.asdict`` has every field."""
        text = self.text if len(self.text) <= _REPR_CHARS else self.text[: _REPR_CHARS - 1] + "…"
        healed = f", healed: {'; '.join(heal.reason for heal in self.heals)}" if self.heals else ""
        return (
            f"<{type(self).__name__} {text!r}: {self.finish_reason}, {len(self.token_ids)} tokens, "
            f"{self.tokens_per_s:.1f} tok/s, {' -> '.join(map(str, self.chain))}{healed}>"
        )

    def _repr_html_(self) -> str:
        """For notebooks."""
        return result_html(self)


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a generation stands.

    ``prefill``: ``done`` of ``total`` prompt tokens are computed by the whole chain. ``decode``: ``done`` tokens of at
    most ``total`` have come, the last of them ``token`` if log probabilities were asked for. ``healing``: a server was
    lost; ``done`` of ``total`` rows of KV are replayed to others, or the client waits for one, as ``detail`` says.
    Callbacks run in the client's event loop and must not block it.
    """

    phase: Literal["routing", "opening", "waiting", "prefill", "decode", "healing"]
    done: int = 0
    total: int = 0
    detail: str = ""
    token: TokenLogprob | None = None


ProgressCallback = Callable[[Progress], None]
