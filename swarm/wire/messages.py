"""The closed set of messages. A frame's header is exactly one of these; a peer never names another type.

Every field is bounded by its annotation and checked by msgspec while it decodes, so past this module nothing needs
a length check. Fields are positional; a later minor version may append fields with defaults. What fits the bounds but
makes no sense (a span that ends before it starts) cannot be built: ``MisuseError``, which ``parse_message`` turns into
the peer's ``ProtocolViolation``.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec.structs import force_setattr

from swarm.core.errors import MisuseError
from swarm.core.ids import COMMITMENT_BYTES, SECRET_BYTES, SESSION_BYTES
from swarm.core.limits import (
    MAX_CONTEXT_TOKENS,
    MAX_LAYERS,
    MAX_REASON_CHARS,
    MAX_RECORD_BYTES,
    MAX_SAMPLED_ROWS,
    MAX_STAGES,
    MAX_STEP_ROWS,
    MAX_TOP_LOGPROBS,
    MAX_VOCABULARY,
)
from swarm.core.sampling import SamplingParams
from swarm.core.text import clip

Counter = Annotated[int, msgspec.Meta(ge=0, lt=2**32)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS)]
TokenId = Annotated[int, msgspec.Meta(ge=0, lt=MAX_VOCABULARY)]
Secret = Annotated[bytes, msgspec.Meta(min_length=SECRET_BYTES, max_length=SECRET_BYTES)]
SessionBytes = Annotated[bytes, msgspec.Meta(min_length=SESSION_BYTES, max_length=SESSION_BYTES)]
PeerText = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
Reason = Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARS)]
Stage = Annotated[int, msgspec.Meta(ge=0, lt=MAX_STAGES)]
Layer = Annotated[int, msgspec.Meta(ge=0, le=MAX_LAYERS)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=3600)]
"""Of a duration; a NaN does not fit either."""
Logprob = Annotated[float, msgspec.Meta(le=1e-3)]
"""At most 0 but for rounding, and so never NaN; minus infinity is a token that a filter removed."""
Codec = Literal["raw", "int8"]
Lane = Literal[0, 1]

DECODE_LANE: Lane = 0
PREFILL_LANE: Lane = 1
LANES: tuple[Lane, Lane] = (DECODE_LANE, PREFILL_LANE)


class _Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Common form: one array, its tag first."""


class _WithReason(_Message, frozen=True):
    """A message with words for a person, cut to what the wire takes, so that no long error text breaks a session."""

    def __post_init__(self) -> None:
        force_setattr(self, "reason", clip(getattr(self, "reason"), MAX_REASON_CHARS))  # noqa: B009


class Open(_Message, frozen=True, tag=1):
    """Client → server, first on a control stream: reserve a place for one stage of one session.

    ``start``/``end`` are the layers this stage runs. ``embed`` asks it to turn token ids into rows, ``head`` to
    apply norm and LM head and to sample. ``numerics`` names the class the client wants, or is empty for any.
    ``upstream`` and ``secret_in`` are who will push rows here and the secret its hello must carry; ``downstream``
    is the next server's signed announcement (empty at the tail) and ``secret_out`` what our hello to it carries.
    ``nonce`` and ``commitment`` (H(r)) are for receipts and audits, DESIGN 9. ``feedback`` offers that the tail sends
    accepted ids straight to the head server; it holds only if every ACCEPT agrees.
    """

    protocol: Annotated[int, msgspec.Meta(ge=0, lt=65536)]
    model: Annotated[str, msgspec.Meta(max_length=400)]
    session: SessionBytes
    stage: Stage
    stages: Annotated[int, msgspec.Meta(ge=1, le=MAX_STAGES)]
    start: Layer
    end: Layer
    embed: bool
    head: bool
    kv_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONTEXT_TOKENS)]
    numerics: Annotated[str, msgspec.Meta(max_length=64)]
    codec: Codec
    upstream: PeerText
    secret_in: Secret
    downstream: Annotated[bytes, msgspec.Meta(max_length=MAX_RECORD_BYTES)]
    secret_out: Secret
    nonce: Secret
    commitment: Annotated[bytes, msgspec.Meta(min_length=COMMITMENT_BYTES, max_length=COMMITMENT_BYTES)]
    feedback: bool = False

    def __post_init__(self) -> None:
        if not (self.start < self.end and self.stage < self.stages):
            raise MisuseError(f"stage {self.stage} of {self.stages} with layers {self.start}:{self.end}")


class Accept(_Message, frozen=True, tag=2):
    """Server → client: reserved, with the load at this moment, this session counted.

    ``tau_s`` and ``fixed_s`` are what the server's metrics would say now: a decode step over n of its layers takes
    ``fixed_s + n * tau_s``. None: it does not tell.
    """

    sessions: Counter
    queued_steps: Counter
    kv_free_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS * MAX_LAYERS)]
    feedback: bool = False
    tau_s: Seconds | None = None
    fixed_s: Seconds | None = None


class Busy(_WithReason, frozen=True, tag=3):
    """Server → client: full for now."""

    retry_after_s: Seconds
    reason: Reason


class Refused(_WithReason, frozen=True, tag=4):
    """Server → client: can never fit, or this server is not what the client takes it for."""

    reason: Reason


class Hello(_Message, frozen=True, tag=5):
    """Pusher → server, first on a link stream: which stage of whose session these steps belong to."""

    client: PeerText
    session: SessionBytes
    stage: Stage
    secret: Secret
    lane: Lane


class Answer(_Message, frozen=True):
    """How the tail samples from this step on. ``start`` is the position of the answer's first token."""

    start: Tokens
    params: SamplingParams

    def __post_init__(self) -> None:
        self.params.checked()


class Step(_Message, frozen=True, tag=6):
    """Rows to append. The payload is ``rows`` little-endian uint32 token ids if ``ids``, then the tensor.

    ``generation`` rises with a heal, ``epoch`` with a rollback, ``seq`` counts from 0 inside an epoch. ``keep`` is
    the KV length before appending, so the rows' positions are ``keep .. keep + rows - 1``. ``want`` is how many
    trailing rows the client wants answered (sampled tokens, or hidden rows without a remote head); 0 only
    acknowledges. ``horizon`` is the length of the whole prompt a chunk belongs to, 0 for its own end.
    """

    generation: Counter
    epoch: Counter
    seq: Counter
    keep: Tokens
    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEP_ROWS)]
    want: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP_ROWS)]
    ids: bool = False
    horizon: Tokens = 0
    answer: Answer | None = None


class TokenLogprobs(_Message, frozen=True):
    """Log probability of the chosen token and of the most likely alternatives, most likely first."""

    chosen: Logprob
    top: Annotated[tuple[tuple[TokenId, Logprob], ...], msgspec.Meta(max_length=MAX_TOP_LOGPROBS)]


class Result(_Message, frozen=True, tag=7):
    """Tail → client: the step ``(generation, epoch, seq)`` is computed; ``kv_length`` rows are now held.

    ``tokens`` are the sampled ids of the wanted rows; without a remote head the payload holds ``rows`` hidden rows.
    """

    generation: Counter
    epoch: Counter
    seq: Counter
    kv_length: Tokens
    tokens: Annotated[tuple[TokenId, ...], msgspec.Meta(max_length=MAX_SAMPLED_ROWS)] = ()
    logprobs: Annotated[tuple[TokenLogprobs, ...], msgspec.Meta(max_length=MAX_SAMPLED_ROWS)] = ()
    rows: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP_ROWS)] = 0

    def __post_init__(self) -> None:
        if self.logprobs and len(self.logprobs) != len(self.tokens):
            raise MisuseError(f"{len(self.logprobs)} log probabilities for {len(self.tokens)} tokens")


class LinkLost(_WithReason, frozen=True, tag=8):
    """Server → client: the stream from or to a neighbour broke."""

    peer: PeerText
    reason: Reason


class Failed(_WithReason, frozen=True, tag=9):
    """Server → client: the session ended here. ``fault`` says whose it is."""

    fault: Literal["client", "server", "idle", "draining"]
    reason: Reason


class Close(_Message, frozen=True, tag=10):
    """Client → server: done; free everything."""


class Noop(_Message, frozen=True, tag=11):
    """Either way, any time after the opening: keeps the path warm and shows that the sender lives."""


Message = Open | Accept | Busy | Refused | Hello | Step | Result | LinkLost | Failed | Close | Noop
