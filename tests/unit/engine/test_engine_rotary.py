"""Rotary tables that depend on the length of the session: one session's length is no other's business."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

TOLERANCE = 2e-5
ORIGINAL = 16
"""Original length of both models below; long sessions go past it."""


@pytest.fixture(scope="module")
def longrope(kit):
    return kit.chain(kit.configs["phi3-longrope"])


@pytest.fixture(scope="module")
def dynamic(kit):
    return kit.chain(kit.configs["llama-dynamic"])


def _close(got: np.ndarray, wanted: np.ndarray) -> None:
    assert float(np.abs(got - wanted).max()) <= TOLERANCE * max(1.0, float(np.abs(wanted).max()))


def _differ(one: np.ndarray, other: np.ndarray) -> None:
    assert float(np.abs(one - other).max()) > 100 * TOLERANCE


@pytest.mark.parametrize("chunks", [(30,), (5, 20, 5), (16, 1, 13), (1, 15, 14)])
@pytest.mark.parametrize("model", ["longrope", "dynamic"])
def test_long_prompt_in_chunks_beside_a_short_one(model, chunks, kit, request) -> None:
    chain = request.getfixturevalue(model)
    long_ids, short_ids = kit.tokens(30, 1), kit.tokens(len(chunks) * 3, 2)
    long, short = chain.open(), chain.open()
    long_rows, short_rows, start = [], [], 0
    for index, count in enumerate(chunks):
        a, b = chain.step(
            [(long, long_ids[start : start + count], 30), (short, short_ids[3 * index : 3 * index + 3], 0)]
        )
        start += count
        long_rows.append(a)
        short_rows.append(b)
    _close(np.concatenate(long_rows), chain.reference(long_ids))
    _close(np.concatenate(short_rows), chain.reference(short_ids))


@pytest.mark.parametrize("model", ["longrope", "dynamic"])
def test_without_a_horizon_the_first_chunk_would_take_the_short_table(model, kit, request) -> None:
    """The tests above could not fail if the tables were the same; here they show that they are not."""
    chain = request.getfixturevalue(model)
    ids = kit.tokens(30, 1)
    session = chain.open()
    [rows] = chain.step([(session, ids[:10], 0)])
    _differ(rows, chain.reference(ids)[:10])


def _decoded_by_transformers(whole, ids: list[int], prompt: int) -> np.ndarray:
    """Logits of the rows after the prompt, one whole-model call each on transformers' own cache."""
    whole, rows = copy.deepcopy(whole), []
    with torch.no_grad():
        out = whole(torch.tensor([ids[:prompt]]), use_cache=True)
        for position in range(prompt, len(ids)):
            out = whole(torch.tensor([[ids[position]]]), cache=out.cache, use_cache=True)
            rows.append(out.logits[0, -1].numpy())
    return np.stack(rows)


@pytest.mark.parametrize("prompt", [10, 20])
def test_dynamic_decode_follows_transformers(dynamic, kit, prompt) -> None:
    """Prompt below and above the original length, then single steps across it."""
    ids = kit.tokens(26, 3)
    session, other = dynamic.open(), dynamic.open()
    dynamic.step([(session, ids[:prompt], prompt)])
    rows = []
    for position in range(prompt, 26):
        one, _ = dynamic.step([(session, [ids[position]], prompt), (other, [5], 0)])
        rows.append(one)
    _close(np.concatenate(rows), _decoded_by_transformers(dynamic.whole, ids, prompt))


def test_dynamic_rows_after_the_prompt_do_not_depend_on_their_chunk(dynamic, kit) -> None:
    """Four drafts verified in one step equal four single steps: a replay after a failure must give the same KV."""
    ids = kit.tokens(24, 4)
    single, together = dynamic.open(), dynamic.open()
    dynamic.step([(single, ids[:20], 20)])
    dynamic.step([(together, ids[:20], 20)])
    steps = np.concatenate([dynamic.step([(single, [token], 20)])[0] for token in ids[20:]])
    [chunk] = dynamic.step([(together, ids[20:], 20)])
    _close(chunk, steps)


def test_a_long_call_leaves_no_trace(dynamic, longrope, kit) -> None:
    """transformers' dynamic rotary module keeps the longest length it ever saw; ours forgets it."""
    for chain in (dynamic, longrope):
        ids = kit.tokens(20, 5)
        wanted = chain.reference(ids)
        chain.step([(chain.open(), kit.tokens(60, 6), 0)])
        _close(chain.step([(chain.open(), ids, 0)])[0], wanted)


def test_longrope_across_the_original_length_by_resending(longrope, kit) -> None:
    """transformers' generate recomputes the cache once, when the text outgrows the original length; so must a client.

    It resends every row with ``keep`` 0 in the step that crosses; before and after, steps are ordinary ones.
    """
    prompt = kit.tokens(ORIGINAL - 4, 7)
    with torch.no_grad():
        wanted = copy.deepcopy(longrope.whole).generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), max_new_tokens=12, do_sample=False,
            eos_token_id=None,
        )[0].tolist()  # fmt: skip
    session, ids = longrope.open(), list(prompt)
    [rows] = longrope.step([(session, ids, 0)])
    while len(ids) < len(wanted):
        ids.append(int(rows[-1].argmax()))
        crossing = len(ids) == ORIGINAL + 1
        session.length = 0 if crossing else session.length
        [rows] = longrope.step([(session, ids[session.length :], 0)])
    assert ids == wanted
