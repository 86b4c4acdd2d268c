"""What the health page knows, as ``/api/v1/state`` tells it (docs/health.md): these fields' names are an interface.

Everything a server says of itself is its own word unless it says otherwise. Times that end in ``_at`` are wall time in
seconds since 1970; None is unknown, never zero.
"""

from __future__ import annotations

import msgspec

API_VERSION = 1
MAX_EVENTS = 100
"""Of a state, the newest; more are to be had from ``/api/v1/events``."""


class StageState(msgspec.Struct, frozen=True, kw_only=True):
    """One server's part of a live chain: means of its decode steps, in seconds, and how old they are."""

    peer: str
    stage: int
    start: int
    end: int
    wait_s: float | None
    compute_s: float | None
    send_s: float | None
    figures_at: float


class ChainState(msgspec.Struct, frozen=True, kw_only=True):
    """A live chain by its random label (16 hex digits).

    ``elsewhere_s`` is what the stages' times leave of ``period_s``: the network and the client. ``complete`` is False
    where the stages that were heard of do not tile the layers.
    """

    label: str
    tokens_per_s: float | None
    period_s: float | None
    elsewhere_s: float | None
    complete: bool
    open_s: float
    stages: list[StageState]


class LinkState(msgspec.Struct, frozen=True, kw_only=True):
    """The way from one server to another. ``estimated``: from network coordinates, never measured."""

    source: str
    target: str
    rtt_s: float
    estimated: bool = False
    goodput_mbps: float | None = None
    noop_age_s: float | None = None


class StatsState(msgspec.Struct, frozen=True, kw_only=True):
    """What a server told of its last 60 s, at ``figures_at``."""

    figures_at: float
    uptime_s: float
    busy_share: float
    decode_tokens_per_s: float
    prefill_tokens_per_s: float
    answers_per_s: float
    forward_p50_s: float | None
    forward_p99_s: float | None
    step_p50_s: float | None
    step_p99_s: float | None
    sessions_total: int
    refused_total: int
    heals_total: int
    receipts_total: int


class StandingState(msgspec.Struct, frozen=True, kw_only=True):
    """What this page's own machine knows of a server's honesty: nothing here is hearsay but ``accused``.

    ``proofs`` are digests (hex) of what was checked here, to be had from ``/api/v1/proofs/DIGEST``. ``spot_checkable``:
    enough others hold its layers to compute them again, or a verifier here holds the weights.
    """

    audited_windows: int = 0
    strikes: int = 0
    ejected: bool = False
    accused: bool = False
    spot_checkable: bool = False
    proofs: list[str] = []


class ServerState(msgspec.Struct, frozen=True, kw_only=True):
    """One server of a model.

    ``condition`` sums it up: ``serving``, ``joining``, ``draining``, ``silent`` (announced, but without live metrics,
    or this page cannot reach it), ``ejected``. ``since_at`` is when this page first saw it so; ``seen_at`` when it was
    last heard of. ``reached``: this page's own last try to reach it, None if there was none yet. ``stats`` None with
    ``stats_note`` says why (``off``, ``unreachable``, ``busy``, ``invalid``: its answer is none, empty: not asked yet).
    """

    peer: str
    short: str
    name: str
    region: str
    condition: str
    since_at: float
    seen_at: float
    reached: bool | None
    start: int
    end: int
    intent: tuple[int, int] | None
    head: bool
    embeddings: bool
    numerics: str
    software: str
    started_at: float
    reach: str
    memory_bytes: int
    kv_tokens: int
    kv_free_tokens: int | None
    tau_s: float | None
    fixed_s: float | None
    prefill_tokens_per_s: float | None
    sessions: int | None
    queued_steps: int | None
    uplink_mbps: float | None
    rtt_s: float | None
    stats: StatsState | None
    stats_note: str
    standing: StandingState


class AdviceState(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that need help, the most urgent first, with the command that a volunteer copies."""

    start: int
    end: int
    reason: str
    command: str


class CoverageState(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of layers with one number of servers: ``replicas`` serve it, ``silent`` only claim it."""

    start: int
    end: int
    replicas: int
    silent: int


class ModelState(msgspec.Struct, frozen=True, kw_only=True):
    """One model of the swarm.

    ``since_at`` is when this page first heard of it. ``sentence`` is what a person reads first.
    ``tokens_per_s`` is predicted for a new session by routing, None where there is no route: in the middle of
    ``tokens_per_s_range``, wide while links were not measured. ``served_tokens_per_s`` what all sessions got lately, by
    the tails' own word. ``fullness`` is sessions by the knee.
    """

    model: str
    name: str
    layers: int
    since_at: float = 0.0
    usable: bool
    sentence: str
    missing: list[tuple[int, int]]
    coverage: list[CoverageState]
    tokens_per_s: float | None
    tokens_per_s_range: tuple[float, float] | None = None
    served_tokens_per_s: float | None
    sessions: int
    knee_sessions: float | None
    fullness: float | None
    rebalances_per_hour: float
    step_p50_s: float | None
    step_p99_s: float | None
    servers: list[ServerState]
    links: list[LinkState]
    chains: list[ChainState]
    advice: list[AdviceState]


class EventState(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened. ``kind``: joined, left, silent, back, moved, healed, struck, accused, ejected, usable,
    unusable, outage. ``number`` rises by one an event."""

    number: int
    at: float
    kind: str
    model: str
    peer: str
    text: str
    proof: str = ""


class ObserverState(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks. ``problem`` says why what is shown may be old; ``directory_at`` when the directory last answered.

    So many models of the index are known and not shown: ``models_left_out``.
    """

    peer: str
    since_at: float
    directory_at: float | None
    problem: str
    software: str
    models_left_out: int = 0


class SwarmState(msgspec.Struct, frozen=True, kw_only=True):
    """Everything at ``at``. ``revision`` rises with every change."""

    version: int = API_VERSION
    at: float
    revision: int
    observer: ObserverState
    models: list[ModelState]
    events: list[EventState]


class HistoryState(msgspec.Struct, frozen=True, kw_only=True):
    """A model's last hours in columns of one length, oldest first, a row about every ``step_s``.

    Where the page was not at work, a row of None stands for all that are missing. ``step_p50_s`` and ``step_p99_s``
    are of decode steps at one server, from arrival to leaving.
    """

    model: str
    step_s: float
    at: list[float]
    tokens_per_s: list[float | None]
    served_tokens_per_s: list[float | None] = []
    covered_share: list[float | None]
    servers: list[int | None]
    step_p50_s: list[float | None]
    step_p99_s: list[float | None]


class ModelPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A model that changed.

    ``model`` is whole but for ``servers`` and ``links``, which hold only those that are new or changed; ``gone`` are
    the peers that left, ``links_gone`` the pairs (source, target) of links that did. The order of either says nothing.
    """

    model: ModelState
    gone: list[str]
    links_gone: list[tuple[str, str]] = []


class Patch(msgspec.Struct, frozen=True, kw_only=True):
    """What changed between two revisions, as the event ``patch`` of ``/api/v1/stream``; ``events`` are new ones, and of
    all a state holds the newest ``MAX_EVENTS``.

    A stream begins with the event ``state`` (a ``SwarmState``). A patch whose ``base`` is not the revision a reader
    has is no use to it: the stream then sends ``state`` again. Models that are not named are unchanged, those in
    ``removed`` are gone.
    """

    at: float
    base: int
    revision: int
    observer: ObserverState
    models: list[ModelPatch]
    removed: list[str]
    events: list[EventState]
