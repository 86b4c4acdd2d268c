"""Conversations that keep KV between calls, and answers that are cut short by their caller."""

from __future__ import annotations

import asyncio

import pytest
from harness import Swarm, turns, until

from swarm.core.errors import MisuseError, PromptTooLongError, SwarmError

HEADS = pytest.mark.parametrize("head", ["local", "remote"])
OPTIONS = {"max_new_tokens": 6, "ignore_eos": True}
ENDLESS = {"max_new_tokens": 400, "ignore_eos": True}


@HEADS
async def test_a_second_call_computes_only_what_is_new(swarm: Swarm, head: str) -> None:
    nodes = await swarm.serve()
    session = swarm.client(head).session()
    first = await session.generate("Tell me ", **OPTIONS)
    for node in nodes:
        node.rows.clear()
    second = await session.generate("and more", **OPTIONS)
    ids = [*swarm.reference.tokenizer.encode("Tell me "), *first.token_ids]
    ids += swarm.reference.tokenizer.encode("and more")
    assert list(second.token_ids) == swarm.reference.greedy(ids, 6, eos_token_id=None)
    for node in nodes:
        # The first answer's last token had not been fed; the prefill brings it with the new text.
        assert node.rows == [1 + len("and more"), 1, 1, 1, 1, 1]
    assert session.token_ids == (*ids, *second.token_ids)
    await session.close()
    await swarm.check_free()


@HEADS
async def test_truncated_it_goes_on_as_a_fresh_run(swarm: Swarm, head: str) -> None:
    nodes = await swarm.serve()
    session = swarm.client(head).session()
    await session.generate("A conversation so far", **OPTIONS)
    session.truncate(9)
    for node in nodes:
        node.rows.clear()
    result = await session.generate("other", **OPTIONS)
    fresh = swarm.reference.greedy("A convers" + "other", 6, eos_token_id=None)
    assert list(result.token_ids) == fresh
    for node in nodes:
        assert sum(node.rows) == len("other") + 5
    session.truncate(0)
    result = await session.generate("from the start", **OPTIONS)
    assert list(result.token_ids) == swarm.reference.greedy("from the start", 6, eos_token_id=None)
    await session.close()


async def test_truncating_ahead_or_while_generating_is_refused(swarm: Swarm) -> None:
    await swarm.serve()
    session = swarm.client().session()
    with pytest.raises(MisuseError, match="position 1 of 0"):
        session.truncate(1)
    stream = await session.stream("x", **ENDLESS)
    await stream.next_piece()
    with pytest.raises(MisuseError, match="generating"):
        session.truncate(0)
    with pytest.raises(MisuseError, match="generating"):
        await session.generate("y", **OPTIONS)
    await stream.aclose()
    await session.close()


@HEADS
async def test_messages_reuse_the_common_beginning(swarm: Swarm, head: str) -> None:
    nodes = await swarm.serve()
    session = swarm.client(head).session()
    messages = [{"role": "user", "content": "a question of some length"}]
    first = await session.generate(messages=messages, **OPTIONS)
    for node in nodes:
        node.rows.clear()
    messages += [{"role": "assistant", "content": "yes"}, {"role": "user", "content": "why"}]
    second = await session.generate(messages=messages, **OPTIONS)
    ids = swarm.reference.tokenizer.chat(messages)
    assert list(second.token_ids) == swarm.reference.greedy(ids, 6, eos_token_id=None)
    common = len(swarm.reference.tokenizer.chat(messages[:1]))
    for token, answered in zip(first.token_ids, ids[common:], strict=False):
        if token != answered:
            break
        common += 1
    for node in nodes:
        assert sum(node.rows) == len(ids) - common + 5
    await session.close()


async def test_the_same_messages_again_cost_one_row(swarm: Swarm) -> None:
    """Everything is held already, but the last row must be computed to be answered."""
    [node] = await swarm.serve("0:5")
    session = swarm.client().session()
    messages = [{"role": "user", "content": "again and again"}]
    first = await session.generate(messages=messages, **OPTIONS)
    node.rows.clear()
    second = await session.generate(messages=messages, **OPTIONS)
    assert second.token_ids == first.token_ids
    assert node.rows == [1] * 6
    await session.close()


@HEADS
async def test_rolled_back_tokens_are_penalised_no_more(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    wanted = swarm.reference.greedy("new start", 6, eos_token_id=None, repetition_penalty=1.5)
    ids = swarm.reference.tokenizer.encode("new start")
    session = swarm.client(head).session()
    await session.generate(input_ids=[*ids, *wanted], **OPTIONS)  # what will be answered has stood there before
    session.truncate(len(ids) - 1)
    result = await session.generate("t", repetition_penalty=1.5, **OPTIONS)
    assert list(result.token_ids) == wanted
    await session.close()


async def test_other_sampling_in_one_session_starts_its_penalties_anew(swarm: Swarm) -> None:
    await swarm.serve()
    local, remote = swarm.client("local").session(), swarm.client("remote").session()
    options = OPTIONS | {"temperature": 1.0, "seed": 5, "frequency_penalty": 1.0, "repetition_penalty": 1.2}
    for prompt in ("one", "two", "three"):
        results = [await session.generate(prompt, **options) for session in (local, remote)]
        assert results[0].token_ids == results[1].token_ids
    await local.close()
    await remote.close()


async def test_a_full_session_says_so_and_goes_on_after_a_truncation(swarm: Swarm) -> None:
    await swarm.serve()
    session = swarm.client().session(max_tokens=20)
    await session.generate("twelve chars", max_new_tokens=6, ignore_eos=True)
    with pytest.raises(PromptTooLongError, match="session's max_tokens of 20"):
        await session.generate("more than two", **OPTIONS)
    session.truncate(4)
    result = await session.generate("go", **OPTIONS)
    assert list(result.token_ids) == swarm.reference.greedy("twelgo", 6, eos_token_id=None)
    await session.close()


async def test_a_context_filled_to_the_last_token(swarm: Swarm) -> None:
    await swarm.serve()
    context = swarm.files.context_tokens
    ids = [7] * (context - 3)
    result = await swarm.client().generate(input_ids=ids, max_new_tokens=3, ignore_eos=True)
    assert list(result.token_ids) == swarm.reference.greedy(ids, 3, eos_token_id=None)
    with pytest.raises(PromptTooLongError, match=f"context of {context}"):
        await swarm.client().generate(input_ids=ids, max_new_tokens=4)


# -- cut short ----------------------------------------------------------------------------------------------


@HEADS
async def test_closing_a_stream_frees_everything_at_once(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    model = swarm.client(head)
    stream = await model.stream("x", **ENDLESS)
    await stream.next_piece()
    await stream.aclose()
    await swarm.check_free()
    while await stream.next_piece() is not None:
        pass  # what had come before may still be read; then it ends
    with pytest.raises(MisuseError, match="not finished"):
        _ = stream.result
    assert (await model.generate("x", **OPTIONS)).token_ids


@HEADS
@pytest.mark.parametrize("after", range(0, 60, 5))
async def test_cancelled_at_any_moment_nothing_stays(swarm: Swarm, head: str, after: int) -> None:
    """The task is cancelled after so many turns of the loop: while routing, opening, prefilling, decoding."""
    await swarm.serve("0:2", "2:5")
    model = swarm.client(head)
    task = asyncio.create_task(model.generate("some prompt", **ENDLESS))
    await turns(after)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await swarm.check_free()


@pytest.mark.parametrize("after", range(1, 12))
async def test_cancelled_again_while_it_closes(swarm: Swarm, after: int) -> None:
    """A hasty caller cancels the clean-up itself; it goes on without him."""
    await swarm.serve("0:2", "2:5")
    session = swarm.client().session()
    await session.generate("some prompt", **OPTIONS)
    closing = asyncio.create_task(session.close())
    await turns(after)
    closing.cancel()
    await asyncio.gather(closing, return_exceptions=True)
    await swarm.check_free()


@pytest.mark.parametrize("after", range(1, 40, 4))
async def test_a_session_survives_a_cancelled_answer(swarm: Swarm, after: int) -> None:
    await swarm.serve("0:2", "2:5")
    session = swarm.client().session()
    first = await session.generate("some prompt", **OPTIONS)
    task = asyncio.create_task(session.generate(" goes on", **ENDLESS))
    await turns(after)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    ids = [*swarm.reference.tokenizer.encode("some prompt"), *first.token_ids]
    assert session.token_ids == tuple(ids), "the cut answer left no trace"
    again = await session.generate("!", **OPTIONS)
    ids += swarm.reference.tokenizer.encode("!")
    assert list(again.token_ids) == swarm.reference.greedy(ids, 6, eos_token_id=None)
    await session.close()
    await swarm.check_free()


async def test_cancelled_during_a_long_prefill(swarm: Swarm) -> None:
    """Chunks are in flight at every stage; the next prompt must not meet their rows."""
    await swarm.serve()
    session = swarm.client().session(max_tokens=600)
    chunks: list[int] = []
    task = asyncio.create_task(
        session.generate(
            input_ids=[9] * 500,
            progress=lambda p: chunks.append(p.done) if p.phase == "prefill" else None,
            **OPTIONS,
        )
    )
    await until(lambda: chunks)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    result = await session.generate("other", **OPTIONS)
    assert list(result.token_ids) == swarm.reference.greedy("other", 6, eos_token_id=None)
    await session.close()


async def test_an_error_in_the_callers_progress_leaves_the_session_whole(swarm: Swarm) -> None:
    await swarm.serve()
    session = swarm.client().session(max_tokens=600)

    def broken(progress: object) -> None:
        if getattr(progress, "phase", "") == "prefill":
            raise ValueError("the caller's own bug")

    with pytest.raises(ValueError, match="own bug"):
        await session.generate(input_ids=[9] * 500, progress=broken, **OPTIONS)
    result = await session.generate("other", **OPTIONS)
    assert list(result.token_ids) == swarm.reference.greedy("other", 6, eos_token_id=None)
    await session.close()
    with pytest.raises(ValueError, match="own bug"):
        await swarm.client().generate("x", progress=broken, **OPTIONS)
    await swarm.check_free()


async def test_a_stream_cancelled_before_it_began_ends(swarm: Swarm) -> None:
    await swarm.serve()
    stream = await swarm.client().stream("x", **ENDLESS)
    reader = asyncio.create_task(stream.next_piece())
    stream.cancel()
    assert await asyncio.wait_for(reader, 1.0) is None
    await stream.aclose()
    await swarm.check_free()


async def test_a_session_closed_under_a_running_answer_raises_an_error(swarm: Swarm) -> None:
    """Not a ``CancelledError``, which would look as if the caller's own task had been cancelled."""
    await swarm.serve()
    session = swarm.client().session()
    task = asyncio.create_task(session.generate("x", **ENDLESS))
    await until(lambda: any(node.rows for node in swarm.nodes))
    await session.close()
    with pytest.raises(SwarmError):
        await task
    await swarm.check_free()


@pytest.mark.parametrize("after", range(1, 30, 3))
async def test_a_session_closed_while_it_opens_holds_nothing(swarm: Swarm, after: int) -> None:
    await swarm.serve()
    session = swarm.client().session()
    task = asyncio.create_task(session.generate("x", **ENDLESS))
    await turns(after)
    await session.close()
    with pytest.raises(SwarmError):
        await task
    await swarm.check_free()


async def test_a_closed_model_ends_its_answers(swarm: Swarm) -> None:
    await swarm.serve()
    model = swarm.client()
    stream = await model.stream("x", **ENDLESS)
    await stream.next_piece()
    session = model.session()
    await session.generate("y", **OPTIONS)
    await model.close()
    with pytest.raises(SwarmError):
        [piece async for piece in stream]
    await swarm.check_free()


async def test_one_failing_prompt_of_a_list_cancels_the_others(swarm: Swarm) -> None:
    await swarm.serve()
    with pytest.raises(PromptTooLongError):
        await swarm.client().generate_many(["x", "y" * 700], **ENDLESS)
    await swarm.check_free()


async def test_a_prompt_that_is_no_text_is_told_so(swarm: Swarm) -> None:
    with pytest.raises(MisuseError, match="not int"):
        await swarm.client().generate_many(5, **OPTIONS)


async def test_a_chain_that_died_between_calls_is_replaced(swarm: Swarm) -> None:
    """The session's server went away while nobody asked: the next call opens another chain and feeds it everything."""
    first, *_ = await swarm.serve("0:5", "0:3", "3:5")
    session = swarm.client().session()
    one = await session.generate("before", **OPTIONS)
    assert [stage.peer for stage in one.chain] == [first.peer]
    await swarm.crash(first)
    await asyncio.sleep(70.0)  # its announcement expires
    two = await session.generate("after", **OPTIONS)
    ids = [*swarm.reference.tokenizer.encode("before"), *one.token_ids]
    ids += swarm.reference.tokenizer.encode("after")
    assert list(two.token_ids) == swarm.reference.greedy(ids, 6, eos_token_id=None)
    assert len(two.chain) == 2
    await session.close()
    await swarm.check_free(besides=[first])


async def test_no_server_waits_while_a_local_head_is_loaded(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """That may take minutes, and a chain without a step is closed after seconds."""
    await swarm.serve()
    model = swarm.client("local")
    load = model.heads._load

    async def slow_load(dtype: str) -> object:
        await swarm.check_free()
        await asyncio.sleep(120.0)
        return await load(dtype)

    monkeypatch.setattr(model.heads, "_load", slow_load)
    result = await model.generate("hello", **OPTIONS)
    assert list(result.token_ids) == swarm.reference.greedy("hello", 6, eos_token_id=None)
    assert result.heals == ()
