"""A server's span may be used in part: the same engine runs different cuts of its layers for different sessions."""

from __future__ import annotations

import numpy as np
import pytest

from swarm.core.errors import ProtocolViolation
from swarm.core.spans import Span
from swarm.engine.work import Work

LEFT, RIGHT = Span(0, 4), Span(1, 5)


@pytest.fixture(params=["llama", "gemma3", "gpt_oss", "deepseek_v3", "qwen3_moe", "gemma2"], scope="module")
def overlapping(request, kit):
    """Two engines that both hold layers 1 to 3."""
    return kit.chain(kit.configs[request.param], (LEFT, RIGHT))


def works(chain, slots, ids, cut, keeps, hidden=None):
    """One stage's work per session; ``cut`` gives each session's border between the engines."""
    left = hidden is None
    return [
        Work(
            slot=slots[i][0 if left else 1],
            keep=keeps[i],
            hidden=None if left else hidden[i],
            token_ids=np.array(ids[i], np.int64) if left else None,
            rows=len(ids[i]),
            want=len(ids[i]),
            logits=not left,
            span=Span(0, cut[i]) if left else Span(cut[i], 5),
        )
        for i in range(len(ids))
    ]


def test_every_cut_of_the_overlap_gives_the_whole_model_even_in_one_batch(overlapping, kit) -> None:
    cut = [1, 2, 3, 4]
    ids = [kit.tokens(9 + i, seed=i) for i in range(4)]
    slots = [[engine.open(64) for engine in overlapping.engines] for _ in cut]
    logits = []
    for begin, end in ((0, 6), (6, 7), (7, None)):
        part = [tokens[begin:end] for tokens in ids]
        keeps = [begin] * 4
        rows = [output.hidden for output in overlapping.engines[0].run(works(overlapping, slots, part, cut, keeps))]
        out = overlapping.engines[1].run(works(overlapping, slots, part, cut, keeps, rows))
        logits.append([output.logits for output in out])
    for i, tokens in enumerate(ids):
        wanted = overlapping.reference(tokens)
        got = np.concatenate([part[i] for part in logits])
        assert np.abs(got - wanted).max() <= 1e-5 * max(1.0, np.abs(wanted).max())
    for pair in slots:
        for engine, slot in zip(overlapping.engines, pair, strict=True):
            engine.close(slot)


def test_layers_outside_the_span_are_refused(overlapping, kit) -> None:
    engine = overlapping.engines[1]
    slot = engine.open(8)
    row = np.zeros(engine.info.hidden_size, np.float32).tobytes()
    for span, logits in ((Span(0, 3), False), (Span(1, 3), True)):
        with pytest.raises(ProtocolViolation):
            engine.run([Work(slot=slot, keep=0, hidden=row, token_ids=None, rows=1, want=1, logits=logits, span=span)])
    engine.close(slot)
