"""Servers, what was heard of them, and what a page makes of both: for tests, by hand or by hypothesis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from swarm.core.announcement import Announcement, Coordinate, Reach, State
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.listing import Listing
from swarm.core.metrics import BATCHES, Metrics
from swarm.core.numerics import Numerics
from swarm.health.picture.building import NO_PREDICTION, Prediction, build
from swarm.health.sight import Heard, Repute, Seen, Sight
from swarm.health.state import EventState, ModelState, ObserverState, SwarmState
from swarm.scheduling.bounds import Bounds
from swarm.wire.status import BUCKETS_S, Histogram, StageFigures, StatusReport, Totals

MODEL = "demo@main#0123456789abcdef"
NOW_S = 1_800_000_000.0
PEERS = [Identity(bytes([index]) * 32).peer_id for index in range(1, 41)]
NO_COUNTS = Histogram(counts=(0,) * (len(BUCKETS_S) + 1), sum_s=0.0)
LABELS = (b"chain..1", b"chain..2")


def histogram(**counts: int) -> Histogram:
    """``b3=7``: seven in the bucket with index 3."""
    found = [counts.get(f"b{index}", 0) for index in range(len(BUCKETS_S) + 1)]
    return Histogram(counts=tuple(found), sum_s=1.0)


def report(**changes: Any) -> StatusReport:
    fields: dict[str, Any] = {
        "uptime_s": 1000.0, "busy_share": 0.5, "totals": Totals(), "forward_s": NO_COUNTS, "step_s": NO_COUNTS,
        "decode_rows": 0, "prefill_rows": 0, "answers": 0,
    }  # fmt: skip
    return StatusReport(**(fields | changes))


def heard(answer: StatusReport | None = None, **changes: Any) -> Heard:
    """Of a server that was reached."""
    fields: dict[str, Any] = {
        "reached": True, "since_at": NOW_S - 100, "heard_at": NOW_S, "rtt_s": 0.02,
        "report": answer or report(), "report_at": NOW_S,
    }  # fmt: skip
    return Heard(**(fields | changes))


UNREACHED = Heard(reached=False, since_at=NOW_S - 5, note="unreachable")


def announced(peer: str, start: int, end: int, layers: int, **changes: Any) -> Announcement:
    fields: dict[str, Any] = {
        "model": MODEL, "layer_count": layers, "head": end == layers, "embeddings": start == 0, "kv_tokens": 4096,
        "numerics": Numerics("float32"), "instance": 1, "sequence": 1, "started_s": NOW_S - 500.0,
        "expires_s": NOW_S + 60.0, "power_layers_per_s": 100.0, "capacity_layers": 12,
    }  # fmt: skip
    return Announcement(peer=peer, start=start, end=end, **(fields | changes))


def metrics(peer: str, **changes: Any) -> Metrics:
    fields: dict[str, Any] = {
        "model": MODEL, "instance": 1, "sequence": 1, "expires_s": NOW_S + 10.0, "tau_s": 0.002, "fixed_s": 0.001,
        "kv_free_tokens": 3000, "uplink_mbps": 80.0, "step_s": (0.02, 0.021, 0.022, 0.03),
    }  # fmt: skip
    return Metrics(peer=peer, **(fields | changes))


def server(number: int, start: int, end: int, layers: int = 6, **changes: Any) -> Seen:
    """A live one; ``measured`` are changes to its metrics, None for none."""
    peer, measured = PEERS[number], changes.pop("measured", {})
    gone = changes.pop("gone", False)
    live = None if measured is None or gone else metrics(peer, **measured)
    return Seen(Listing(announced(peer, start, end, layers, **changes), b"", live), NOW_S - 1.0, gone)


def sight(servers: Sequence[Seen], layers: int = 6, **changes: Any) -> Sight:
    """Everybody reached, unless ``changes`` tell otherwise."""
    told: Mapping[PeerId, Heard] = {one.peer: heard() for one in servers}
    fields: dict[str, Any] = {"model": MODEL, "layers": layers, "at": NOW_S, "as_of": NOW_S, "heard": told}
    return Sight(servers=servers, **(fields | changes))


def built(servers: Sequence[Seen], layers: int = 6, *, step_s: float | None = 0.1, **changes: Any) -> ModelState:
    """Routing left out: a step takes ``step_s``."""
    prediction = NO_PREDICTION if step_s is None else Prediction(Bounds(step_s, step_s), 9.0, "")
    return build(sight(servers, layers, **changes), prediction)


def swarm(*models: ModelState, at: float = NOW_S, events: Sequence[EventState] = ()) -> SwarmState:
    observer = ObserverState(peer="me", since_at=NOW_S - 500, directory_at=at, problem="", software="swarm")
    return SwarmState(at=at, revision=1, observer=observer, models=list(models), events=list(events))


def figures(start: int, end: int, label: bytes = LABELS[0], **changes: Any) -> StageFigures:
    fields: dict[str, Any] = {
        "stage": 0, "decode_rows": 10, "prefill_rows": 5, "wait_s": 0.01, "compute_s": 0.02, "send_s": 0.01,
        "period_s": 0.2, "age_s": 0.1, "open_s": 10.0,
    }  # fmt: skip
    return StageFigures(label=label, start=start, end=end, **(fields | changes))


seconds = st.one_of(st.none(), st.floats(0, 3600), st.sampled_from([0.0, 1e-300, 3600.0]))
ages = st.one_of(st.floats(0, 100), st.sampled_from([0.0, 1e9]))
counts = st.one_of(st.integers(0, 1000), st.just(2**62))
few = settings(max_examples=30)
"""For laws over whole sights, which take long to draw."""


@st.composite
def anything_heard(draw: st.DrawFn, layers: int) -> Heard:
    """As a stranger may have told it, or not."""
    if draw(st.booleans()):
        return draw(
            st.sampled_from([Heard(), UNREACHED, Heard(reached=True, note="off"), Heard(reached=True, note="busy")])
        )
    chains = []
    for _ in range(draw(st.integers(0, 2))):
        start = draw(st.integers(0, layers))
        chains.append(
            StageFigures(
                label=draw(st.sampled_from(LABELS)), stage=draw(st.integers(0, 3)),
                start=start, end=start + draw(st.integers(1, layers)), decode_rows=draw(counts),
                prefill_rows=draw(counts), wait_s=draw(seconds), compute_s=draw(seconds), send_s=draw(seconds),
                period_s=draw(seconds), age_s=draw(ages), open_s=draw(ages),
            )
        )  # fmt: skip
    totals = Totals(heals=draw(counts), sessions=draw(counts))
    numbers = draw(st.lists(counts, min_size=len(BUCKETS_S) + 1, max_size=len(BUCKETS_S) + 1))
    steps = Histogram(counts=tuple(numbers), sum_s=draw(st.floats(0, 1e12)))
    answer = report(
        uptime_s=draw(ages), totals=totals, chains=tuple(chains), step_s=steps, forward_s=steps,
        decode_rows=draw(counts), prefill_rows=draw(counts), answers=draw(counts),
    )  # fmt: skip
    rtt_s = draw(st.one_of(st.none(), st.floats(0, 5)))
    return heard(answer, rtt_s=rtt_s, report_at=NOW_S - draw(st.floats(0, 200)))


@st.composite
def servers(draw: st.DrawFn, layers: int) -> list[Seen]:
    """Up to six of a model, in any state."""
    found = []
    for number in range(draw(st.integers(0, 6))):
        start = draw(st.integers(0, layers - 1))
        end = draw(st.integers(start + 1, layers))
        measured = draw(
            st.one_of(
                st.none(),
                st.fixed_dictionaries(
                    {
                        "tau_s": st.floats(0, 3600), "fixed_s": st.floats(0, 3600), "sessions": st.integers(0, 2**31),
                        "expires_s": st.sampled_from([NOW_S - 1, NOW_S + 5]),
                        "rtt_s": st.dictionaries(
                            st.sampled_from([*PEERS[:8], "stranger"]), st.floats(0, 3600), max_size=4
                        ),
                        "step_s": st.sampled_from([(), (0.0,) * len(BATCHES), (0.1, 0.1, 0.2, 0.3)]),
                        "kv_free_tokens": st.sampled_from([0, 3000]),
                    }
                ),
            )
        )  # fmt: skip
        place = st.builds(
            Coordinate, st.floats(-3600, 3600), st.floats(-3600, 3600), st.floats(0, 3600), st.floats(0, 1)
        )
        found.append(
            server(
                number, start, end, layers, measured=measured, gone=draw(st.booleans()),
                state=draw(st.sampled_from([State.ONLINE, State.ONLINE, State.JOINING, State.DRAINING])),
                reach=draw(st.sampled_from(list(Reach))), coordinate=draw(st.one_of(st.none(), place)),
                public_name=draw(st.sampled_from(["", "Ada", "<b>"])),
            )
        )  # fmt: skip
    return found


@st.composite
def sights(draw: st.DrawFn, max_layers: int = 12) -> Sight:
    """Anything a page may have to make sense of."""
    layers = draw(st.integers(1, max_layers))
    there = draw(servers(layers))
    repute = st.builds(
        Repute, st.integers(0, 300), st.integers(0, 3), st.booleans(), st.booleans(), st.booleans(), st.just(("ab",))
    )
    return sight(
        there,
        layers,
        heard={one.peer: draw(anything_heard(layers)) for one in there},
        repute={one.peer: draw(repute) for one in there if draw(st.booleans())},
        moves=draw(st.integers(0, 3)),
        contacts=draw(st.sampled_from([(), ("/ip4/203.0.113.7/tcp/31337/p2p/" + PEERS[0],)])),
    )
