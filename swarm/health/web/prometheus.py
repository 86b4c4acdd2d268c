"""A state as Prometheus reads it: no peer, no public name, nothing that grows with the number of servers, and of names
of models, which anybody can make up, no more a day than a database of time series bears."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector

from swarm.health.state import CoverageState, ModelState, ServerState, SwarmState

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4
CONDITIONS = ("serving", "joining", "draining", "silent", "ejected")
EVENTS = (
    "joined", "left", "silent", "back", "moved", "healed", "struck", "accused", "ejected", "usable", "unusable",
    "outage",
)  # fmt: skip
MAX_LABELS = 128
"""Names of models that have series within"""
KEPT_S = 24 * 3600.0
OTHER = "other"
"""What is none of those, so that a newer watch does not make new labels."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure of every model; ``read`` gives None where it is unknown, and the sample is left out."""

    name: str
    help: str
    read: Callable[[ModelState], float | None]


def _missing(model: ModelState) -> int:
    return sum(end - start for start, end in model.missing)


def _serving(model: ModelState) -> list[ServerState]:
    return [one for one in model.servers if one.condition == "serving"]


def _fewest(coverage: Sequence[CoverageState]) -> int:
    return min((part.replicas for part in coverage), default=0)


GAUGES: tuple[Gauge, ...] = (
    Gauge("swarm_model_usable", "1 if every layer is served, else 0", lambda model: model.usable),
    Gauge("swarm_layers", "Layers of the model", lambda model: model.layers),
    Gauge("swarm_layers_missing", "Layers that nobody serves", _missing),
    Gauge("swarm_layer_replicas_min", "Servers of the layer that fewest serve", lambda model: _fewest(model.coverage)),
    Gauge("swarm_sessions", "Open sessions, by the servers' own word", lambda model: model.sessions),
    Gauge("swarm_knee_sessions", "Sessions before each new one slows the others", lambda model: model.knee_sessions),
    Gauge("swarm_fullness_ratio", "Sessions by the knee", lambda model: model.fullness),
    Gauge("swarm_tokens_per_second", "Tokens per second of all sessions", lambda model: model.served_tokens_per_s),
    Gauge(
        "swarm_predicted_tokens_per_second",
        "Tokens per second a new session would get",
        lambda model: model.tokens_per_s,
    ),
    Gauge("swarm_rebalances_per_hour", "Moves of servers in the last hour", lambda model: model.rebalances_per_hour),
    Gauge("swarm_chains", "Live chains heard of", lambda model: len(model.chains)),
    Gauge(
        "swarm_kv_tokens",
        "Room for KV at the servers that serve",
        lambda model: sum(one.kv_tokens for one in _serving(model)),
    ),
    Gauge(
        "swarm_kv_free_tokens",
        "Free room for KV at the servers that serve",
        lambda model: sum(one.kv_free_tokens or 0 for one in _serving(model)),
    ),
    Gauge(
        "swarm_queued_steps",
        "Steps that wait at all servers that tell",
        lambda model: sum(one.queued_steps or 0 for one in model.servers),
    ),
    Gauge(
        "swarm_strikes",
        "Strikes against the servers there are, by this machine",
        lambda model: sum(one.standing.strikes for one in model.servers),
    ),
)


class EventCounts:
    """Events since this page started, by kind."""

    def __init__(self) -> None:
        self._newest: int | None = None
        self.counts: Counter[str] = Counter(dict.fromkeys(EVENTS, 0))

    def take(self, state: SwarmState) -> None:
        """Count a state's events that are new; those of the first happened before the start."""
        newest = max((event.number for event in state.events), default=0)
        if self._newest is not None:
            new = [event.kind for event in state.events if event.number > self._newest]
            self.counts.update(kind if kind in EVENTS else OTHER for kind in new)
        self._newest = max(newest, self._newest or 0)


class ModelLabels:
    """Which models have series. A name that has them keeps them for ``KEPT_S`` after it was shown last, whatever
    happens to the model; so ``MAX_LABELS`` bounds how many there are in so long, and no newcomer takes one away.

    Of newcomers those that are usable come first, then those that this page has known for longest.
    """

    def __init__(self) -> None:
        self._shown_at: dict[str, float] = {}

    def take(self, state: SwarmState) -> None:
        """Give labels to the models of a state that have none, as far as there is room."""
        self._shown_at = {name: at for name, at in self._shown_at.items() if state.at - at < KEPT_S}
        for model in sorted(state.models, key=lambda model: (not model.usable, model.since_at, model.model)):
            if model.model in self._shown_at or len(self._shown_at) < MAX_LABELS:
                self._shown_at[model.model] = state.at

    def told(self, models: Sequence[ModelState]) -> list[ModelState]:
        """Those of ``models`` that have one."""
        return [model for model in models if model.model in self._shown_at]


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one answer of ``/metrics`` is made of. ``labels`` says which models are told of, ``now_s`` is wall time,
    ``uptime_s`` this page's own."""

    state: SwarmState
    labels: ModelLabels
    events: Counter[str]
    now_s: float
    uptime_s: float
    streams: int


def text(scrape: Scrape) -> bytes:
    """The exposition in Prometheus' text format 0.0.4. Linear in the servers, constant in what it says of each."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collected(scrape))
    return generate_latest(registry)


class _Collected(Collector):
    def __init__(self, scrape: Scrape) -> None:
        self._scrape = scrape

    def collect(self) -> Iterable[Metric]:
        models = self._scrape.labels.told(self._scrape.state.models)
        yield from _page(self._scrape, len(models))
        for gauge in GAUGES:
            family = GaugeMetricFamily(gauge.name, gauge.help, labels=["model"])
            for model in models:
                if (value := gauge.read(model)) is not None:
                    family.add_metric([model.model], float(value))
            yield family
        yield _servers(models)
        yield _steps(models)


def _page(scrape: Scrape, told: int) -> Iterable[Metric]:
    state = scrape.state
    about = GaugeMetricFamily("swarm_health_info", "This health page; always 1", labels=["software"])
    about.add_metric([state.observer.software], 1.0)
    yield about
    yield GaugeMetricFamily("swarm_health_uptime_seconds", "Since this page started", value=scrape.uptime_s)
    yield GaugeMetricFamily("swarm_health_streams", "Open event streams of this page", value=scrape.streams)
    yield GaugeMetricFamily("swarm_state_age_seconds", "Age of these figures", value=max(scrape.now_s - state.at, 0.0))
    age = GaugeMetricFamily("swarm_directory_age_seconds", "Since the directory last answered; left out before")
    if state.observer.directory_at is not None:
        age.add_metric([], max(scrape.now_s - state.observer.directory_at, 0.0))
    yield age
    problem = float(bool(state.observer.problem))
    yield GaugeMetricFamily("swarm_problem", "1 while what is shown may be old, else 0", value=problem)
    yield GaugeMetricFamily("swarm_models", "Models of the index that are shown", value=len(state.models))
    left_out = state.observer.models_left_out + len(state.models) - told
    yield GaugeMetricFamily("swarm_models_left_out", "Models of the index without metrics", value=left_out)
    events = CounterMetricFamily("swarm_events", "Events since this page started", labels=["kind"])
    for kind, count in sorted(scrape.events.items()):
        events.add_metric([kind], count)
    yield events


def _servers(models: Sequence[ModelState]) -> Metric:
    family = GaugeMetricFamily("swarm_servers", "Servers by condition", labels=["model", "condition"])
    for model in models:
        counts = Counter(one.condition if one.condition in CONDITIONS else OTHER for one in model.servers)
        for condition in (*CONDITIONS, OTHER):
            family.add_metric([model.model, condition], counts[condition])
    return family


def _steps(models: Sequence[ModelState]) -> Metric:
    family = GaugeMetricFamily(
        "swarm_step_seconds",
        "Time of a decode step at one server, from arrival to leaving",
        labels=["model", "quantile"],
    )
    for model in models:
        for quantile, value in (("0.5", model.step_p50_s), ("0.99", model.step_p99_s)):
            if value is not None:
                family.add_metric([model.model, quantile], value)
    return family
