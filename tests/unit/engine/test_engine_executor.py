"""The executor's contract: bad work, closing at any moment, chunking and interleaving, 16-bit arithmetic."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swarm.core.errors import ConfigError, ProtocolViolation
from swarm.core.spans import Span
from swarm.engine.executor import EngineOptions, SpanEngine
from swarm.engine.family import build_head, build_span
from swarm.engine.head import HeadEngine
from swarm.engine.work import Output, Work

LAW = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def llama(kit):
    return kit.chain(kit.configs["llama"])


@pytest.fixture(scope="module")
def middle(llama) -> SpanEngine:
    return llama.engines[1]


def _rows(count: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).standard_normal((count, 32)).astype(np.float32).tobytes()


def _work(engine: SpanEngine, **changes) -> Work:
    work = Work(slot=engine.open(16), keep=0, hidden=_rows(4), token_ids=None, rows=4, want=4)
    return dataclasses.replace(work, **changes)


BAD = {
    "keep beyond the rows held": {"keep": 1},
    "negative keep": {"keep": -1},
    "overflow of the reservation": {"hidden": _rows(17), "rows": 17},
    "too few bytes": {"hidden": _rows(4)[:-1]},
    "another row count than announced": {"rows": 5},
    "no rows": {"rows": 0, "hidden": b""},
    "wants more than it sends": {"want": 5},
    "negative want": {"want": -1},
    "nothing sent": {"hidden": None},
    "both sent": {"token_ids": np.zeros(4, dtype=np.int64)},
    "token ids to a middle span": {"hidden": None, "token_ids": np.zeros(4, dtype=np.int64)},
    "logits of a middle span": {"logits": True},
    "horizon beyond the context": {"horizon": 129},
    "negative horizon": {"horizon": -1},
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_work_raises_before_anything_is_computed(middle, name) -> None:
    good = _work(middle)
    middle.run([good])
    again = dataclasses.replace(good, keep=2, hidden=_rows(1), rows=1, want=1)
    with pytest.raises(ProtocolViolation):
        middle.run([again, _work(middle, **BAD[name])])
    assert good.slot.length == 4  # not truncated to 2, nothing appended
    middle.run([again])
    assert good.slot.length == 3


@pytest.mark.parametrize("ids", [[-1, 3], [96, 3], [3], [[3, 4]]])
def test_bad_token_ids(llama, ids) -> None:
    first = llama.engines[0]
    with pytest.raises(ProtocolViolation):
        first.run([Work(slot=first.open(8), keep=0, hidden=None, token_ids=np.array(ids), rows=2)])


def test_one_session_twice_in_a_batch(middle) -> None:
    work = _work(middle)
    with pytest.raises(ProtocolViolation, match="two steps"):
        middle.run([work, dataclasses.replace(work)])


def test_a_closed_session(middle) -> None:
    work = _work(middle)
    free = middle.free_tokens
    middle.close(work.slot)
    middle.close(work.slot)
    assert middle.free_tokens == free + 16
    with pytest.raises(ProtocolViolation, match="closed"):
        middle.run([work])


def test_a_session_closed_while_its_step_runs(middle) -> None:
    """The event loop may close at any moment: the step ends, its neighbour is unharmed, the memory is gone."""
    leaving, staying = _work(middle), _work(middle, hidden=_rows(4, 1))
    alone = middle.run([_work(middle, hidden=_rows(4, 1))])[0].hidden
    layer = middle._model.body.layers[1]
    handle = layer.register_forward_pre_hook(lambda *_: middle.close(leaving.slot))
    try:
        outputs = middle.run([leaving, staying])
    finally:
        handle.remove()
    assert leaving.slot.length == 0
    assert leaving.slot.layers() == [None] * 3
    assert staying.slot.length == 4
    got, wanted = (np.frombuffer(data, dtype=np.float32) for data in (outputs[1].hidden, alone))
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_a_forward_that_fails_leaves_slots_truncated(middle) -> None:
    """Its rows may have overwritten others beyond ``keep``, which must not count any more."""
    work = _work(middle)
    middle.run([work])

    def fail(*_: object) -> None:
        raise MemoryError

    handle = middle._model.body.layers[2].register_forward_pre_hook(fail)
    try:
        with pytest.raises(MemoryError):
            middle.run([dataclasses.replace(work, keep=2)])
    finally:
        handle.remove()
    assert work.slot.length == 2
    again = middle.run([dataclasses.replace(work, keep=2, hidden=_rows(4)[-2 * 128 :], rows=2, want=2)])[0].hidden
    wanted = middle.run([_work(middle, want=2)])[0].hidden
    got, wanted = (np.frombuffer(data, dtype=np.float32) for data in (again, wanted))
    np.testing.assert_allclose(got, wanted, atol=1e-5)


@pytest.mark.parametrize("poison", [np.nan, np.inf, 3e38])
@pytest.mark.parametrize("name", ["llama", "mixtral", "qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_poisoned_rows_harm_nobody_else(kit, name, poison) -> None:
    """Rows come from strangers: whatever numbers they hold, the neighbours in the batch get their own answer."""
    config = kit.configs[name]
    model = kit.fill(build_span(config, Span(2, 4), embeddings=False, head=False), kit.whole(config))
    engine = SpanEngine(model, EngineOptions(kv_tokens=256))
    bad = np.full((3, 32), poison, dtype=np.float32).tobytes()
    [alone] = engine.run([_work(engine)])
    poisoned = _work(engine, hidden=bad, rows=3, want=3)
    _, beside = engine.run([poisoned, _work(engine)])
    got, wanted = (np.frombuffer(output.hidden, dtype=np.float32) for output in (beside, alone))
    np.testing.assert_allclose(got, wanted, atol=1e-5)


def test_only_the_wanted_rows_come_back(middle) -> None:
    whole = middle.run([_work(middle)])[0].hidden
    part = middle.run([_work(middle, want=2)])[0].hidden
    nothing = middle.run([_work(middle, want=0)])[0].hidden
    assert part == whole[-2 * 32 * 4 :]
    assert nothing == b""


def test_a_memoryview_is_as_good_as_bytes(middle) -> None:
    frame = b"head" + _rows(4)
    assert middle.run([_work(middle, hidden=memoryview(frame)[4:])])[0].hidden == middle.run([_work(middle)])[0].hidden


def test_an_empty_batch(middle) -> None:
    assert middle.run([]) == []


def test_info_says_what_the_span_is(llama) -> None:
    info = llama.engines[2].info
    assert (info.span, info.layer_count, info.hidden_size, info.vocab_size) == (Span(4, 5), 5, 32, 96)
    assert (info.context_tokens, info.dtype, info.embeddings, info.head, info.device) == (
        128,
        "float32",
        False,
        True,
        "cpu",
    )
    assert info.kv_bytes_per_token == 2 * 2 * 8 * 4
    whole = llama.whole.state_dict()
    layer = sum(tensor.nbytes for name, tensor in whole.items() if name.startswith("model.layers.4."))
    around = whole["model.norm.weight"].nbytes + whole["lm_head.weight"].nbytes
    assert info.memory_bytes == pytest.approx(layer + around, abs=256)  # and the rotary frequencies


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_what_receipts_speak_of_comes_back_beside_what_was_asked_for(kit, name) -> None:
    """Every hidden row, whatever is wanted, and what ids were embedded into; the wanted logits are the same."""
    chain = kit.chain(kit.configs[name])
    first, middle, last = chain.engines
    ids = np.array(kit.tokens(9))

    def run(engine: SpanEngine, **fields) -> Output:
        fields = {"keep": 0, "hidden": None, "token_ids": None, "rows": 9, "want": 9} | fields
        slot = engine.open(16)
        outputs = engine.run(
            [Work(slot=slot, **fields), _work(middle)] if engine is middle else [Work(slot=slot, **fields)]
        )
        engine.close(slot)
        return outputs[0]

    plain, recorded = run(first, token_ids=ids), run(first, token_ids=ids, record=True)
    assert recorded.hidden == plain.hidden
    assert plain.embedded is None
    assert recorded.embedded == kit.head(chain, chain.whole.config).embed(list(ids))
    rows = run(middle, hidden=plain.hidden, record=True)
    assert rows.embedded is None
    whole = run(last, hidden=rows.hidden)
    for want in (0, 1, 3):
        asked = {"hidden": rows.hidden, "want": want, "logits": True}
        bare, full = run(last, **asked), run(last, record=True, **asked)
        assert full.hidden == whole.hidden
        if want:
            assert bare.hidden is None
            np.testing.assert_array_equal(full.logits, bare.logits)
            np.testing.assert_allclose(
                kit.head(chain, chain.whole.config).logits(full.hidden)[-want:], full.logits, atol=1e-4
            )
        else:
            assert full.logits is None


@pytest.mark.parametrize("name", ["mixtral", "gemma2", "deepseek_v3", "gpt_oss"])
def test_padding_changes_nothing(kit, name) -> None:
    """One and two rows are padded up to four where weights are packed; the same engine unpacked does not pad."""
    config = kit.configs[name]
    whole = kit.whole(config)
    engines = [
        SpanEngine(
            kit.fill(build_span(config, Span(0, 5), embeddings=True, head=True), whole),
            EngineOptions(kv_tokens=256, pack=pack),
        )
        for pack in (True, False)
    ]
    ids = np.array(kit.tokens(12))
    answers = []
    for engine in engines:
        one, two = engine.open(32), engine.open(32)
        works = [Work(one, 0, None, ids[:9], 9, 0, 1, True), Work(two, 0, None, ids[:2], 2, 0, 1, True)]
        engine.run(works)
        pair = [Work(one, 9, None, ids[9:10], 1, 0, 1, True), Work(two, 2, None, ids[2:3], 1, 0, 1, True)]
        rows = [output.logits for output in engine.run(pair)]
        rows += [output.logits for output in engine.run([Work(two, 3, None, ids[3:4], 1, 0, 1, True)])]
        answers.append(np.concatenate(rows))
    np.testing.assert_allclose(answers[0], answers[1], atol=2e-5)


@st.composite
def schedules(draw: st.DrawFn) -> tuple[list[int], list[int], list[bool]]:
    """Two chunkings and, for each step, whether the second session joins the first one's."""
    one = draw(st.lists(st.integers(1, 9), min_size=1, max_size=6))
    two = draw(st.lists(st.integers(1, 5), min_size=1, max_size=6))
    return one, two, draw(st.lists(st.booleans(), min_size=len(two), max_size=len(two)))


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt_oss", "phi3-longrope", "llama-dynamic"])
def test_any_chunking_and_interleaving_gives_the_same_rows(kit, name) -> None:
    chain = kit.chain(kit.configs[name], spans=(Span(0, 2), Span(2, 5)))

    @LAW
    @given(schedules(), st.integers(0, 2**16))
    def law(schedule: tuple[list[int], list[int], list[bool]], seed: int) -> None:
        one, two, together = schedule
        ids, others = kit.tokens(sum(one), seed), kit.tokens(sum(two), seed + 1)
        first, second = chain.open(), chain.open()
        queue = list(zip(two, together, strict=True))
        got: list[np.ndarray] = []
        got_others: list[np.ndarray] = []
        for count in one:
            parts = [(first, ids[first.length : first.length + count], len(ids))]
            joins = False
            if queue:
                size, joins = queue.pop(0)
                part = (second, others[second.length : second.length + size], len(others))
                if joins:
                    parts.append(part)
                else:
                    got_others += chain.step([part])
            rows = chain.step(parts)
            got.append(rows[0])
            got_others += rows[1:] if joins else []
        for size, _ in queue:
            got_others += chain.step([(second, others[second.length : second.length + size], len(others))])
        for session in (first, second):
            for engine, slot in zip(chain.engines, session.slots, strict=True):
                engine.close(slot)
        for rows, tokens in ((np.concatenate(got), ids), (np.concatenate(got_others), others)):
            wanted = chain.reference(tokens)
            assert float(np.abs(rows - wanted).max()) <= 2e-5 * max(1.0, float(np.abs(wanted).max()))

    law()


def _ulp(value: np.ndarray, mantissa_bits: int) -> np.ndarray:
    return np.exp2(np.floor(np.log2(np.maximum(np.abs(value), 1e-6))) - mantissa_bits)


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen3_moe", "gpt_oss", "deepseek_v3"])
@pytest.mark.parametrize(("dtype", "bits"), [("bfloat16", 7), ("float16", 10)])
def test_sixteen_bits_teacher_forced(kit, name, dtype, bits) -> None:
    """Fed transformers' own tokens, the span's choice is within 16 ulps of the best logit at every position.

    Ulps of the largest logit's magnitude: chunking alone moves logits by several (DESIGN, rules of exactness).
    """
    config = kit.configs[name]
    target = getattr(torch, dtype)
    whole = kit.whole(config)
    model = kit.fill(build_span(config, Span(0, 5), embeddings=True, head=True), whole, target)
    engine = SpanEngine(model, EngineOptions(kv_tokens=64, dtype=dtype))
    ids = np.array(kit.tokens(24))
    slot = engine.open(64)
    chunks = [(0, 10), (10, 17), *[(i, i + 1) for i in range(17, 24)]]
    works = [Work(slot, a, None, ids[a:b], b - a, 24, b - a, True) for a, b in chunks]
    got = np.concatenate([engine.run([work])[0].logits for work in works])
    with torch.no_grad():
        wanted = whole.to(target)(torch.tensor(ids)[None], use_cache=False).logits[0].float().numpy()
    assert got.dtype == np.float32
    chosen = np.take_along_axis(wanted, got.argmax(axis=1)[:, None], axis=1)[:, 0]
    best = wanted.max(axis=1)
    assert np.all(best - chosen <= 16 * _ulp(np.abs(wanted).max(axis=1), bits))


def test_sixteen_bit_rows_travel_in_two_bytes(kit) -> None:
    config = kit.configs["llama"]
    whole = kit.whole(config)
    model = kit.fill(build_span(config, Span(1, 3), embeddings=False, head=False), whole, torch.bfloat16)
    engine = SpanEngine(model, EngineOptions(kv_tokens=64, dtype="bfloat16"))
    head = HeadEngine(kit.fill(build_head(config), whole, torch.bfloat16), dtype="bfloat16")
    data = head.embed([5, 6, 7])
    assert len(data) == 3 * 32 * 2
    [output] = engine.run([Work(engine.open(8), 0, data, None, 3, 0, 3)])
    assert len(output.hidden) == 3 * 32 * 2
    assert head.logits(output.hidden).shape == (3, 96)


def test_head_refuses_bad_rows_and_ids(llama, kit) -> None:
    head = kit.head(llama, llama.whole.config)
    for data in (b"", b"123", _rows(1)[:-4]):
        with pytest.raises(ProtocolViolation):
            head.logits(data)
    with pytest.raises(ProtocolViolation):
        head.embed([96])
    assert head.embed([]) == b""


def test_engines_refuse_the_wrong_model(kit) -> None:
    config = kit.configs["llama"]
    middle = kit.fill(build_span(config, Span(1, 2), embeddings=False, head=False), kit.whole(config))
    with pytest.raises(ConfigError):
        HeadEngine(middle)
    with pytest.raises(ConfigError):
        SpanEngine(middle, EngineOptions(kv_tokens=8, dtype="int4"))
    with pytest.raises(ConfigError):
        SpanEngine(build_head(config), EngineOptions(kv_tokens=8))
