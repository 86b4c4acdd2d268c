"""The desk: counters that never repeat, what every receipt repeats, projections kept for a few spans."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from desks import CLIENT, LAYERS, LIFETIME_S, MODEL, NOW_S, SERVER, announcement, desk
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError
from swarm.core.ids import ModelId
from swarm.core.spans import Span
from swarm.runtime.clock import VirtualClock
from swarm.server.record.signing import MAX_SKETCHERS
from swarm.verification.signed.receipts import NO_HASH
from swarm.verification.signed.windows import COUNTERS_PER_STAGE
from swarm.verification.verdicts.calibration import Calibration, calibrate
from swarm.verification.verdicts.sketch import Sketcher
from swarm.wire.messages import Open, Upstream

OPENED = Open(
    1,
    str(MODEL),
    b"s" * 16,
    3,
    1,
    4,
    False,
    False,
    100,
    "",
    "raw",
    Upstream("up", b"i" * 16),
    None,
    b"n" * 16,
    b"c" * 32,
)


def made(model: ModelId = MODEL, layers: int = LAYERS) -> Calibration:
    states = np.random.default_rng(0).standard_normal((layers + 1, 80, 8)).cumsum(axis=0)
    return calibrate(model, states, np.ones(80, bool), text="test")


def test_receipts_repeat_what_both_ends_know() -> None:
    opening = desk().opening(CLIENT.peer_id, OPENED, announcement())
    assert (opening.signer, opening.client) == (SERVER.peer_id, CLIENT.peer_id)
    assert (opening.session, opening.nonce, opening.commitment) == (b"s" * 16, b"n" * 16, b"c" * 32)
    assert (opening.stage, opening.span, opening.model) == (3, Span(1, 4), str(MODEL))
    assert (opening.numerics, opening.calibration) == ("bfloat16+int8", NO_HASH)
    calibration = made()
    named = desk(calibration=calibration).opening(CLIENT.peer_id, OPENED, announcement())
    assert named.calibration == calibration.digest()


@given(st.lists(st.tuples(st.floats(0, 3), st.booleans()), min_size=2, max_size=20))
def test_no_counter_is_used_twice_over_sessions_and_restarts(life: list[tuple[float, bool]]) -> None:
    """A restart takes a second at least; the stages opened before it had at most so many counters."""
    now_s = NOW_S
    writing = desk(VirtualClock(wall_s=now_s))
    taken: list[int] = []
    for pause_s, restarts in life:
        now_s += pause_s + restarts
        if restarts:
            writing = desk(VirtualClock(wall_s=now_s))
        opening = writing.opening(CLIENT.peer_id, OPENED, announcement())
        taken.append(next(writing.builder(opening)._counters))
    assert all(later - earlier >= COUNTERS_PER_STAGE for earlier, later in pairwise(taken))


def test_a_receipt_expires_a_lifetime_from_now() -> None:
    assert desk().expires_s == int(NOW_S + LIFETIME_S)


@pytest.mark.parametrize("wrong", [made(ModelId("org/other", "v1", "0" * 16)), made(layers=4)], ids=["model", "layers"])
def test_another_models_calibration_is_refused(wrong: Calibration) -> None:
    with pytest.raises(ConfigError, match="a calibration of"):
        desk(calibration=wrong)


def test_projections_are_kept_for_the_spans_used_last() -> None:
    assert desk().sketcher(Span(0, 1)) is None
    calibration = made(MODEL)
    writing = desk(calibration=calibration)
    spans = [Span(a, b) for a in range(LAYERS) for b in range(a + 1, LAYERS + 1)]
    first = writing.sketcher(spans[0])
    assert first is not None
    np.testing.assert_array_equal(first.matrix, Sketcher.of(calibration, spans[0]).matrix)
    np.testing.assert_array_equal(first.turns, Sketcher.of(calibration, spans[0]).turns)
    for span in spans:
        writing.sketcher(span)
        assert writing.sketcher(spans[0]) is first, "it is in use"
    assert len(spans) < MAX_SKETCHERS == 16
    assert len(writing._sketchers) == len(spans)
