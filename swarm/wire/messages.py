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
from swarm.core.ids import COMMITMENT_BYTES
from swarm.core.limits import (
    MAX_CONTEXT_TOKENS,
    MAX_LAYERS,
    MAX_REASON_CHARS,
    MAX_RECORD_BYTES,
    MAX_SAMPLED_ROWS,
    MAX_STEP_ROWS,
    MAX_TOP_LOGPROBS,
)
from swarm.core.sampling import SamplingParams
from swarm.core.text import clip
from swarm.wire.evidence import (
    Countersign,
    FetchedRows,
    FetchProof,
    FetchRows,
    ProofPart,
    Settle,
    Settled,
    Signed,
)
from swarm.wire.fields import (
    DIGEST_BYTES,
    Body,
    Codec,
    Counter,
    Hops,
    Lane,
    Layer,
    Logprob,
    PeerText,
    Priority,
    Reason,
    Seconds,
    Secret,
    SessionBytes,
    Stage,
    TokenId,
    Tokens,
)
from swarm.wire.status import AskStatus, StatusReport


class _WithReason(Body, frozen=True):
    """A message with words for a person, cut to what the wire takes, so that no long error text breaks a session."""

    def __post_init__(self) -> None:
        force_setattr(self, "reason", clip(getattr(self, "reason"), MAX_REASON_CHARS))  # noqa: B009


class Upstream(Body, frozen=True):
    """Who pushes rows to a stage, and the secret its hello must carry."""

    peer: PeerText
    secret: Secret


class Downstream(Body, frozen=True):
    """The server a stage pushes to: its signed announcement, its stage's number, and the secret for our hello to it."""

    record: Annotated[bytes, msgspec.Meta(min_length=1, max_length=MAX_RECORD_BYTES)]
    stage: Stage
    secret: Secret


class Open(Body, frozen=True, tag=1):
    """Client → server, first on a control stream: reserve a place for one stage of one session.

    ``start``/``end`` are the layers this stage runs. ``embed`` asks it to turn token ids into rows, ``head`` to
    apply norm and LM head and to sample. ``numerics`` names the class the client wants, or is empty for any.
    ``downstream`` is None at the tail. ``nonce`` and ``commitment`` (H(r)) are for receipts and audits, DESIGN 9.
    ``feedback`` offers that the tail sends accepted ids straight to the head server; it holds only if every ACCEPT
    agrees. ``generation`` is above 0 for a newcomer that takes over from a lost server; the rows it lacks come as
    ``Replay``. ``priority`` says whether somebody waits for every token. Rows below ``signed_rows`` are in windows that
    the chain before a heal has signed: a newcomer signs from that window on.
    """

    protocol: Annotated[int, msgspec.Meta(ge=0, lt=65536)]
    model: Annotated[str, msgspec.Meta(max_length=400)]
    session: SessionBytes
    stage: Stage
    start: Layer
    end: Layer
    embed: bool
    head: bool
    kv_tokens: Annotated[int, msgspec.Meta(ge=1, le=MAX_CONTEXT_TOKENS)]
    numerics: Annotated[str, msgspec.Meta(max_length=64)]
    codec: Codec
    upstream: Upstream
    downstream: Downstream | None
    nonce: Secret
    commitment: Annotated[bytes, msgspec.Meta(min_length=COMMITMENT_BYTES, max_length=COMMITMENT_BYTES)]
    feedback: bool = False
    generation: Counter = 0
    priority: Priority = "interactive"
    signed_rows: Tokens = 0

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise MisuseError(f"stage {self.stage} with layers {self.start}:{self.end}")


class Accept(Body, frozen=True, tag=2):
    """Server → client: reserved, with the load at this moment, this session counted.

    ``tau_s`` and ``fixed_s`` are what the server's metrics would say now: a decode step over n of its layers takes
    ``fixed_s + n * tau_s``. None: it does not tell. ``calibration`` is the hash of the file its receipts will name, or
    empty; ``receipts`` says whether it signs any.
    """

    sessions: Counter
    queued_steps: Counter
    kv_free_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS * MAX_LAYERS)]
    feedback: bool = False
    tau_s: Seconds | None = None
    fixed_s: Seconds | None = None
    receipts: bool = False
    calibration: Annotated[bytes, msgspec.Meta(max_length=DIGEST_BYTES)] = b""

    def __post_init__(self) -> None:
        if len(self.calibration) not in (0, DIGEST_BYTES):
            raise MisuseError(f"a calibration hash of {len(self.calibration)} bytes")


class Busy(_WithReason, frozen=True, tag=3):
    """Server → client: full for now."""

    retry_after_s: Seconds
    reason: Reason


class Refused(_WithReason, frozen=True, tag=4):
    """Server → client: can never fit, or this server is not what the client takes it for."""

    reason: Reason


class Hello(Body, frozen=True, tag=5):
    """Pusher → server, first on a link stream: which stage of whose session these steps belong to."""

    client: PeerText
    session: SessionBytes
    stage: Stage
    secret: Secret
    lane: Lane
    generation: Counter = 0
    """The one in which the client arranged this link: a hello may come before the server has heard of it."""


class Answer(Body, frozen=True):
    """How the tail samples from this step on. ``start`` is the position of the answer's first token."""

    start: Tokens
    params: SamplingParams

    def __post_init__(self) -> None:
        self.params.checked()


class Step(Body, frozen=True, tag=6):
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


class TokenLogprobs(Body, frozen=True):
    """Log probability of the chosen token and of the most likely alternatives, most likely first."""

    chosen: Logprob
    top: Annotated[tuple[tuple[TokenId, Logprob], ...], msgspec.Meta(max_length=MAX_TOP_LOGPROBS)]


class Result(Body, frozen=True, tag=7):
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
    """Server → client: the stream from or to a neighbour broke. One of a lower ``generation`` is old news."""

    peer: PeerText
    reason: Reason
    generation: Counter = 0


class Failed(_WithReason, frozen=True, tag=9):
    """Server → client: the session ended here. ``fault`` says whose it is."""

    fault: Literal["client", "server", "idle", "draining"]
    reason: Reason


class Close(Body, frozen=True, tag=10):
    """Client → server: done; free everything."""


class Noop(Body, frozen=True, tag=11):
    """Either way, any time after the opening: keeps the path warm and shows that the sender lives."""


class Relink(Body, frozen=True, tag=12):
    """Client → server: a server of the chain was replaced; go on in ``generation`` from ``keep`` rows.

    Everything under way of a lower generation is void; cache and replay log are cut to ``keep`` rows. ``upstream`` and
    ``downstream`` are given where that neighbour is a new one: the links to the old one are closed. With
    ``replay_hops`` the server sends its logged rows ``[0, keep)`` to its downstream, as ``Replay`` with that many hops.
    From the window of row ``signed_rows`` on it signs, again if it had signed them, and it keeps what it signed before.
    """

    generation: Counter
    keep: Tokens
    upstream: Upstream | None = None
    downstream: Downstream | None = None
    replay_hops: Hops | None = None
    signed_rows: Tokens = 0


class Relinked(Body, frozen=True, tag=13):
    """Server → client: done. ``kv_length`` rows are held, the first ``logged_rows`` of them could be replayed.

    A server that was asked to replay and has ``logged_rows < keep`` sends nothing: the client then feeds the tokens.
    """

    generation: Counter
    kv_length: Tokens
    logged_rows: Tokens


class Replay(Body, frozen=True, tag=14):
    """Rows a newcomer lacks, on the prefill lane; the payload is a ``Step``'s, and so are the fields.

    The receiver appends them after ``keep`` rows. With ``hops`` left it sends its own rows on, one hop less; with none
    left it is the last newcomer and only says ``Replayed``. Nothing is sampled.
    """

    generation: Counter
    keep: Tokens
    rows: Annotated[int, msgspec.Meta(ge=1, le=MAX_STEP_ROWS)]
    ids: bool = False
    horizon: Tokens = 0
    hops: Hops = 0


class Replayed(Body, frozen=True, tag=15):
    """Server → client: the replayed rows up to ``kv_length`` are computed."""

    generation: Counter
    kv_length: Tokens


class Pace(Body, frozen=True, tag=16):
    """Server → client, every ``PACE_EVERY_S`` while a session has work: how long its steps take here.

    ``step_s`` is the mean over the decode steps since the last one, from a step's arrival to its leaving, queue
    included; None if there was none. ``held_s`` is for how long the oldest step that is here now has been here.
    """

    step_s: Seconds | None
    held_s: Seconds


Message = (
    Open
    | Accept
    | Busy
    | Refused
    | Hello
    | Step
    | Result
    | LinkLost
    | Failed
    | Close
    | Noop
    | Relink
    | Relinked
    | Replay
    | Replayed
    | Pace
    | Signed
    | Settle
    | Settled
    | Countersign
    | FetchRows
    | FetchedRows
    | FetchProof
    | ProofPart
    | AskStatus
    | StatusReport
)
