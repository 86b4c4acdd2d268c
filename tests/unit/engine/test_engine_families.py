"""Every family, split at uneven places, equals transformers' whole model."""

from __future__ import annotations

import numpy as np
import torch

TOLERANCE = 1e-5


def _close(got: np.ndarray, wanted: np.ndarray) -> None:
    scale = max(1.0, float(np.abs(wanted).max()))
    assert got.shape == wanted.shape
    assert float(np.abs(got - wanted).max()) <= TOLERANCE * scale


def test_one_call_alone(family, kit) -> None:
    ids = kit.tokens(17)
    session = family.open()
    [logits] = family.step([(session, ids, 0)])
    _close(logits, family.reference(ids))


def test_chunked_prefill_then_decode(family, kit) -> None:
    ids = kit.tokens(20)
    session = family.open()
    chunks = [(0, 7), (7, 8), (8, 15), *[(i, i + 1) for i in range(15, 20)]]
    got = [family.step([(session, ids[a:b], 0)])[0] for a, b in chunks]
    _close(np.concatenate(got), family.reference(ids))


def test_ragged_beside_another_session(family, kit) -> None:
    """A long prefill, a decode step and a short prefill share one packed forward."""
    one, two, three = kit.tokens(19, 1), kit.tokens(12, 2), kit.tokens(3, 3)
    first, second, third = family.open(), family.open(), family.open()
    family.step([(second, two[:10], 0)])
    a, b, c = family.step([(first, one[:18], 0), (second, two[10:11], 0), (third, three, 0)])
    d, e = family.step([(second, two[11:], 0), (first, one[18:], 0)])
    _close(np.concatenate([a, e]), family.reference(one))
    _close(np.concatenate([b, d]), family.reference(two)[10:])
    _close(c, family.reference(three))


def test_rollback_then_continue(family, kit) -> None:
    """Rejected drafts leave no trace: keep 9 of 16 rows, then go on with other tokens."""
    ids, drafts = kit.tokens(18, 4), kit.tokens(7, 5)
    session = family.open()
    family.step([(session, ids[:9], 0)])
    family.step([(session, drafts, 0)])
    assert session.slots[0].length == 16
    session.length = 9
    [tail] = family.step([(session, ids[9:], 0)])
    assert session.slots[0].length == 18
    _close(tail, family.reference(ids)[9:])


def test_hidden_rows_at_the_border_are_the_whole_models(family, kit) -> None:
    ids = kit.tokens(11, 6)
    [rows] = family.step([(family.open(), ids, 0)], logits=False)
    captured = []
    layers = family.whole.base_model.layers
    handle = layers[-1].register_forward_hook(lambda _m, _i, out: captured.append(out))
    try:
        with torch.no_grad():
            family.whole(torch.tensor([ids]), use_cache=False)
    finally:
        handle.remove()
    out = captured[0][0] if isinstance(captured[0], tuple) else captured[0]
    _close(rows, out.reshape(len(ids), -1).numpy())


def test_local_head_equals_the_heads_on_the_span(family, kit) -> None:
    head = kit.head(family, family.whole.config)
    ids = kit.tokens(5, 7)
    embedded = head.embed(ids)
    with_rows = family.whole.get_input_embeddings()
    with torch.no_grad():
        wanted = with_rows(torch.tensor(ids)).numpy()
    assert embedded == wanted.tobytes()
    [rows] = family.step([(family.open(), ids, 0)], logits=False)
    _close(head.logits(rows.tobytes()), family.reference(ids))
