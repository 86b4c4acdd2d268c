"""A replica computes what the model computes, whatever part of it is asked for."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from swarm.core.errors import ConfigError, ProtocolViolation, RefusedError
from swarm.core.spans import Span
from swarm.engine import replica as module
from swarm.engine.family import build_span
from swarm.engine.replica import Replica

LAYERS = 5
IDS = [5, 9, 3, 44, 17, 8, 60, 21, 33, 2, 70, 11, 90]


@pytest.fixture(scope="module")
def whole(kit):
    return kit.whole(kit.configs["llama"])


@pytest.fixture(scope="module")
def make(kit, whole):
    def build(span: Span, dtype: str = "float32") -> Replica:
        config = kit.configs["llama"]
        model = build_span(config, span, embeddings=span.start == 0, head=span.end == LAYERS)
        return Replica(kit.fill(model, whole, getattr(torch, dtype)), dtype=dtype, quantization="none")

    return build


@pytest.fixture(scope="module")
def replica(make) -> Replica:
    return make(Span(0, LAYERS))


@pytest.fixture(scope="module")
def states(whole) -> list[np.ndarray]:
    """Rows at every boundary but the last, whose entry has the norm applied."""
    with torch.no_grad():
        found = whole(torch.tensor([IDS]), output_hidden_states=True, use_cache=False)
    return [state[0].numpy() for state in found.hidden_states]


def test_every_part_of_the_span_is_the_models_own(replica: Replica, states) -> None:
    for start in range(LAYERS - 1):
        for end in range(start + 1, LAYERS):
            rows = replica.outputs(states[start], span=Span(start, end))
            assert np.abs(rows - states[end]).max() < 1e-5, (start, end)
    assert np.abs(replica.outputs(IDS, span=Span(0, 3)) - states[3]).max() < 1e-5
    assert np.array_equal(replica.embedded(IDS), states[0])


def test_the_head_reads_the_rows_before_the_norm(replica: Replica, whole) -> None:
    with torch.no_grad():
        expected = whole(torch.tensor([IDS]), use_cache=False).logits[0].numpy()
    assert np.abs(replica.logits(replica.outputs(IDS)) - expected).max() < 1e-4


def test_chunks_and_a_later_beginning_change_nothing(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = replica.outputs(IDS)
    monkeypatch.setattr(module, "CHUNK_ROWS", 4)
    assert np.abs(replica.outputs(IDS) - whole).max() < 1e-5
    for first in (0, 3, 4, 9, len(IDS)):
        rows = replica.outputs(IDS, first=first)
        assert rows.shape == (len(IDS) - first, 32)
        assert np.abs(rows - whole[first:]).max(initial=0.0) < 1e-5


def test_sixteen_bits(make, states) -> None:
    replica = make(Span(1, 3), "bfloat16")
    assert str(replica.numerics) == "bfloat16"
    rows = replica.outputs(states[1])
    change = np.linalg.norm(states[3] - states[1])
    assert 1e-4 < np.linalg.norm(rows - states[3]) / change < 0.05


def test_nothing_stays_reserved(replica: Replica) -> None:
    free = replica._engine.free_tokens
    with pytest.raises(ProtocolViolation):
        replica.outputs([*IDS, 10_000])
    replica.outputs(IDS)
    assert replica._engine.free_tokens == free


def test_a_middle_span_has_no_ends(make, states) -> None:
    middle = make(Span(1, 3))
    assert (middle.info.embeddings, middle.info.head) == (False, False)
    with pytest.raises(ConfigError):
        middle.embedded(IDS)
    with pytest.raises(ConfigError):
        middle.logits(states[3])
    with pytest.raises(ProtocolViolation):
        middle.outputs(IDS)


def test_rows_that_cannot_be(replica: Replica, states) -> None:
    with pytest.raises(ProtocolViolation):
        replica.outputs(states[1][:, :-1])
    with pytest.raises(ProtocolViolation):
        replica.outputs(states[0], span=Span(0, LAYERS + 1))
    with pytest.raises(RefusedError):
        replica.outputs(np.zeros((129, 32), np.float32), span=Span(1, 2))
    with pytest.raises(ProtocolViolation):
        replica.logits(states[1][:, :-1])
    with pytest.raises(ProtocolViolation):
        replica.embedded([-1])


def test_a_text_of_another_length_bends_long_rotary_tables(kit) -> None:
    config = kit.configs["phi3-longrope"]
    model = build_span(config, Span(0, LAYERS), embeddings=True, head=True)
    replica = Replica(kit.fill(model, kit.whole(config)), dtype="float32", quantization="none")
    short, long = replica.outputs(IDS), replica.outputs(IDS, horizon=17)
    assert np.abs(short - long).max() > 1e-3
    assert np.abs(replica.outputs([*IDS, 4, 5, 6, 7])[: len(IDS)] - long).max() < 1e-5
