"""Answers of a swarm equal the whole model's, token for token, in float32."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import numpy as np
import pytest
import torch
from harness import SPANS, Swarm
from tiny_model import LAYERS

from swarm.client.conversation import PREFILL_CHUNK_ROWS
from swarm.client.results import Progress

HEADS = pytest.mark.parametrize("head", ["local", "remote"])
PROMPT = "The swarm answers"
ENDING = "the last word"
"""A prompt whose greedy answer ends by itself."""
LONG = "Every volunteer holds a few layers and passes the rows on. " * 6


@HEADS
async def test_greedy_equals_the_whole_model(swarm: Swarm, head: str) -> None:
    nodes = await swarm.serve()
    result = await swarm.client(head).generate(PROMPT, max_new_tokens=24, ignore_eos=True)
    assert list(result.token_ids) == swarm.reference.greedy(PROMPT, 24, eos_token_id=None)
    assert result.exact
    assert result.prompt_tokens == len(PROMPT)
    assert [(stage.peer, stage.start, stage.end) for stage in result.chain] == [
        (node.peer, node.engine.info.span.start, node.engine.info.span.end) for node in nodes
    ]


@HEADS
async def test_one_server_that_holds_everything(swarm: Swarm, head: str) -> None:
    await swarm.serve(f"0:{LAYERS}")
    result = await swarm.client(head).generate(PROMPT, max_new_tokens=8, ignore_eos=True)
    assert list(result.token_ids) == swarm.reference.greedy(PROMPT, 8, eos_token_id=None)


@HEADS
async def test_overlapping_spans_are_used_in_part(swarm: Swarm, head: str) -> None:
    first, last = await swarm.serve("0:4", "1:5")
    result = await swarm.client(head).generate(PROMPT, max_new_tokens=12, ignore_eos=True)
    assert list(result.token_ids) == swarm.reference.greedy(PROMPT, 12, eos_token_id=None)
    assert [stage.peer for stage in result.chain] == [first.peer, last.peer]
    assert 1 <= result.chain[0].end == result.chain[1].start <= 4, "no layer runs twice, none is left out"
    spans = [node.engine.info.span for node in (first, last)]
    assert any(
        (stage.start, stage.end) != (span.start, span.end) for stage, span in zip(result.chain, spans, strict=True)
    )


@HEADS
async def test_several_sessions_at_once(swarm: Swarm, head: str) -> None:
    """Their steps share packed forwards, and their cuts through one server differ."""
    nodes = await swarm.serve("0:3", "2:5", "1:5")
    model = swarm.client(head)
    prompts = [PROMPT, "x", LONG, "Another prompt", "hello", "ab" * 70]
    results = await asyncio.gather(*(model.generate(p, max_new_tokens=16, ignore_eos=True) for p in prompts))
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == swarm.reference.greedy(prompt, 16, eos_token_id=None), prompt
    batcher = nodes[0].server.batcher
    assert batcher.batches_computed < batcher.steps_computed, "never batched: this test shows nothing"


async def test_a_list_of_prompts_in_their_order(swarm: Swarm) -> None:
    await swarm.serve()
    prompts = ["hello", "x", "Another prompt"]
    results = await swarm.client().generate_many(prompts, max_new_tokens=10, ignore_eos=True)
    assert [list(result.token_ids) for result in results] == [
        swarm.reference.greedy(prompt, 10, eos_token_id=None) for prompt in prompts
    ]


@HEADS
async def test_prompts_around_the_prefill_chunk(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    model = swarm.client(head)
    chunk = PREFILL_CHUNK_ROWS
    for length in (1, chunk - 1, chunk, chunk + 1, 2 * chunk, 3 * chunk + 1, 500):
        ids = [4 + (index * 37 + length) % 250 for index in range(length)]
        result = await model.generate(input_ids=ids, max_new_tokens=3, ignore_eos=True)
        assert list(result.token_ids) == swarm.reference.greedy(ids, 3, eos_token_id=None), length


async def test_stages_prefill_different_chunks_at_once(swarm: Swarm) -> None:
    """With 50 ms a hop, four chunks over three servers must not take four whole traversals."""
    nodes = await swarm.serve()
    model = swarm.client()
    swarm.delay(0.05)
    result = await model.generate(input_ids=[5] * (4 * PREFILL_CHUNK_ROWS), max_new_tokens=1, ignore_eos=True)
    traversal_s = 0.05 * (len(nodes) + 1)
    opening_s = 4 * 0.05
    assert result.ttft_s < opening_s + 2 * traversal_s


@HEADS
async def test_streamed_pieces_joined_are_the_text(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    stream = await swarm.client(head).stream(PROMPT, max_new_tokens=30, ignore_eos=True)
    pieces = [piece async for piece in stream]
    wanted = swarm.reference.greedy(PROMPT, 30, eos_token_id=None)
    assert "".join(pieces) == stream.result.text == swarm.reference.tokenizer.decode(wanted)
    assert len(pieces) > 5, "it came in pieces"
    assert all(pieces)


async def test_a_piece_comes_as_soon_as_its_token(swarm: Swarm) -> None:
    """Not after the answer: with 0.2 s a hop the first piece is there long before the last."""
    await swarm.serve(f"0:{LAYERS}")
    model = swarm.client()
    swarm.delay(0.2)
    stream = await model.stream("x", max_new_tokens=20, ignore_eos=True)
    await stream.next_piece()
    first_s = swarm.clock.monotonic_s()
    async for _ in stream:
        pass
    assert swarm.clock.monotonic_s() - first_s > 20 * 0.3


async def test_progress_tells_routing_opening_and_every_chunk(swarm: Swarm) -> None:
    await swarm.serve()
    seen: list[Progress] = []
    total = 3 * PREFILL_CHUNK_ROWS + 7
    await swarm.client().generate(input_ids=[9] * total, max_new_tokens=2, ignore_eos=True, progress=seen.append)
    assert [item.phase for item in seen[:2]] == ["routing", "opening"]
    prefill = [item for item in seen if item.phase == "prefill"]
    assert [item.phase for item in seen[2 : 2 + len(prefill)]] == ["prefill"] * len(prefill)
    assert [item.done for item in prefill] == [PREFILL_CHUNK_ROWS * n for n in (1, 2, 3)] + [total]
    assert {item.total for item in prefill} == {total}


@HEADS
async def test_the_models_own_end_stops_the_answer(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    wanted = swarm.reference.greedy(ENDING, 40)
    assert wanted[-1] == 1, "the reference must end by itself here"
    assert len(wanted) < 40
    result = await swarm.client(head).generate(ENDING, max_new_tokens=40)
    assert list(result.token_ids) == wanted
    assert result.finish_reason == "stop"
    assert result.text == swarm.reference.tokenizer.decode(wanted[:-1]), "the end token is no text"


async def test_length_and_stop_at_the_same_token(swarm: Swarm) -> None:
    await swarm.serve()
    wanted = swarm.reference.greedy(ENDING, 40)
    model = swarm.client()
    on_time = await model.generate(ENDING, max_new_tokens=len(wanted))
    assert (on_time.finish_reason, list(on_time.token_ids)) == ("stop", wanted)
    short = await model.generate(ENDING, max_new_tokens=len(wanted) - 1)
    assert (short.finish_reason, list(short.token_ids)) == ("length", wanted[:-1])


@HEADS
async def test_a_stop_string_across_tokens(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    text = swarm.reference.tokenizer.decode(swarm.reference.greedy("x", 24, eos_token_id=None))
    place = next(i for i in range(8, len(text) - 4) if text.find(text[i : i + 4]) == i)
    stop = text[place : place + 4]
    result = await swarm.client(head).generate("x", max_new_tokens=24, ignore_eos=True, stop=["never there", stop])
    assert result.text == text[:place]
    assert result.finish_reason == "stop"
    stream = await swarm.client(head).stream("x", max_new_tokens=24, ignore_eos=True, stop=stop)
    assert "".join([piece async for piece in stream]) == text[:place], "nothing of the stop string was shown"


@HEADS
async def test_logprobs_are_the_references_log_softmax(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    result = await swarm.client(head).generate(PROMPT, max_new_tokens=8, ignore_eos=True, logprobs=3, temperature=0.9)
    ids = swarm.reference.tokenizer.encode(PROMPT)
    logits = swarm.reference.logits([*ids, *result.token_ids])
    wanted = torch.log_softmax(logits, dim=-1)[len(ids) - 1 : -1]
    assert len(result.logprobs) == len(result.token_ids) == 8
    for row, token, entry in zip(wanted, result.token_ids, result.logprobs, strict=True):
        assert entry.token_id == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
        values, places = row.topk(3)
        assert [token_id for token_id, _ in entry.top] == places.tolist()
        assert [value for _, value in entry.top] == pytest.approx(values.tolist(), abs=1e-4)


async def test_logprobs_of_the_chosen_token_alone(swarm: Swarm) -> None:
    await swarm.serve()
    model = swarm.client()
    result = await model.generate(PROMPT, max_new_tokens=2, ignore_eos=True, logprobs=True)
    assert [entry.top for entry in result.logprobs] == [(), ()]
    assert (await model.generate(PROMPT, max_new_tokens=2, ignore_eos=True)).logprobs == ()


def _greedy_with(swarm: Swarm, prompt: str, count: int, change) -> list[int]:  # type: ignore[no-untyped-def]
    """Greedy by hand over the reference's logits: ``change(logits, prompt_ids, answer)`` adjusts them in place."""
    ids = swarm.reference.tokenizer.encode(prompt)
    answer: list[int] = []
    for _ in range(count):
        logits = swarm.reference.logits([*ids, *answer])[-1].numpy().copy()
        change(logits, ids, answer)
        answer.append(int(np.argmax(logits)))
    return answer


@HEADS
async def test_logit_bias(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    plain = swarm.reference.greedy(PROMPT, 10, eos_token_id=None)

    def biased(logits: np.ndarray, ids: list[int], answer: list[int]) -> None:
        logits[plain[0]] -= 100.0
        logits[77] += 4.0

    wanted = _greedy_with(swarm, PROMPT, 10, biased)
    bias = {plain[0]: -100.0, 77: 4.0}
    result = await swarm.client(head).generate(PROMPT, max_new_tokens=10, ignore_eos=True, logit_bias=bias)
    assert list(result.token_ids) == wanted
    assert wanted != plain


@HEADS
async def test_repetition_penalty_is_transformers_own(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    wanted = swarm.reference.greedy(PROMPT, 20, eos_token_id=None, repetition_penalty=1.3)
    assert wanted != swarm.reference.greedy(PROMPT, 20, eos_token_id=None)
    result = await swarm.client(head).generate(PROMPT, max_new_tokens=20, ignore_eos=True, repetition_penalty=1.3)
    assert list(result.token_ids) == wanted


@HEADS
async def test_presence_and_frequency_penalties_count_the_answer_only(swarm: Swarm, head: str) -> None:
    await swarm.serve()

    def penalised(logits: np.ndarray, ids: list[int], answer: list[int]) -> None:
        for token in set(answer):
            logits[token] -= 0.8 + 0.5 * answer.count(token)

    wanted = _greedy_with(swarm, PROMPT, 20, penalised)
    assert wanted != swarm.reference.greedy(PROMPT, 20, eos_token_id=None)
    options = {"max_new_tokens": 20, "ignore_eos": True, "presence_penalty": 0.8, "frequency_penalty": 0.5}
    result = await swarm.client(head).generate(PROMPT, **options)
    assert list(result.token_ids) == wanted


async def test_a_seed_gives_one_text_with_either_head(swarm: Swarm) -> None:
    await swarm.serve()
    options = {"max_new_tokens": 14, "ignore_eos": True, "temperature": 1.1, "top_p": 0.95, "top_k": 60}
    local, remote = swarm.client("local"), swarm.client("remote")
    texts = set()
    for seed in (1, 2):
        results = [await model.generate(PROMPT, seed=seed, **options) for model in (local, remote, remote)]
        assert len({result.token_ids for result in results}) == 1, "same seed, same text"
        assert {result.seed for result in results} == {seed}
        texts.add(results[0].text)
    assert len(texts) == 2, "other seeds, other texts"


async def test_without_a_seed_one_is_drawn_and_told(swarm: Swarm) -> None:
    await swarm.serve()
    model = swarm.client()
    options = {"max_new_tokens": 24, "ignore_eos": True, "temperature": 1.2}
    one = await model.generate(PROMPT, **options)
    two = await model.generate(PROMPT, **options)
    assert one.seed != two.seed
    assert one.token_ids != two.token_ids
    again = await model.generate(PROMPT, seed=one.seed, **options)
    assert again.token_ids == one.token_ids


@HEADS
async def test_messages_go_through_the_chat_template(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    messages = [{"role": "user", "content": "Hi"}]
    ids = swarm.reference.tokenizer.encode("<|user|>Hi</s><|assistant|>", add_special_tokens=False)
    result = await swarm.client(head).generate(messages=messages, max_new_tokens=8, ignore_eos=True)
    assert list(result.token_ids) == swarm.reference.greedy(ids, 8, eos_token_id=None)
    assert result.prompt_tokens == len(ids)


async def test_fewer_servers_are_preferred(swarm: Swarm) -> None:
    await swarm.serve(*SPANS, f"0:{LAYERS}")
    result = await swarm.client().generate("x", max_new_tokens=2, ignore_eos=True)
    assert len(result.chain) == 1


def test_spans_tile_the_model() -> None:
    cuts = [tuple(map(int, span.split(":"))) for span in SPANS]
    assert cuts[0][0] == 0
    assert cuts[-1][1] == LAYERS
    assert all(before[1] == after[0] for before, after in pairwise(cuts))
