"""``SwarmModel`` from wherever people call it: a plain script, threads, a running event loop, streams left early."""

from __future__ import annotations

import asyncio
import gc
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from swarm.client.blocking import SwarmModel

PROMPT = "Once upon a time, in a village between two rivers, there lived"
NEW_TOKENS = 16
FREED_S = 15.0

SCRIPT = """
import json, sys
import psutil
from swarm import SwarmModel

model = SwarmModel.connect("demo", initial_peers=[sys.argv[1]], host="127.0.0.1")
result = model.generate(sys.argv[2], max_new_tokens=16)
children = [child.pid for child in psutil.Process().children(recursive=True)]
print(json.dumps({"tokens": result.token_ids, "text": result.text, "children": children}))
if sys.argv[3] == "close":
    model.close()
"""


@pytest.fixture(scope="module")
def expected(model30: SwarmModel) -> tuple[int, ...]:
    return model30.generate(PROMPT, max_new_tokens=NEW_TOKENS).token_ids


@pytest.mark.parametrize("end", ["close", "forget"])
def test_from_a_script(swarm30: list[Any], expected: tuple[int, ...], end: str, eventually: Any) -> None:
    """Also one that forgets to close: it ends, says nothing strange, and leaves no daemon behind."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, swarm30[2].address, PROMPT, end], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert tuple(told["tokens"]) == expected
    assert told["children"]
    eventually(lambda: not any(map(psutil.pid_exists, told["children"])), FREED_S)


def test_from_threads(model30: SwarmModel, expected: tuple[int, ...]) -> None:
    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(model30.generate, PROMPT, max_new_tokens=NEW_TOKENS) for _ in range(3)]
        assert [answer.result().token_ids for answer in answers] == [expected] * 3


async def test_inside_a_running_event_loop(model30: SwarmModel, expected: tuple[int, ...]) -> None:
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.01)
            ticks += 1

    ticking = asyncio.create_task(tick())
    result = await model30.generate_async(PROMPT, max_new_tokens=NEW_TOKENS)
    assert result.token_ids == expected
    assert ticks > 5, "the caller's loop goes on while it waits"

    stream = await model30.stream_async(PROMPT, max_new_tokens=NEW_TOKENS)
    pieces = [piece async for piece in stream]
    assert "".join(pieces) == result.text == stream.result.text
    assert len(pieces) > 1
    ticking.cancel()

    blocking = model30.generate(PROMPT, max_new_tokens=NEW_TOKENS)  # bad manners, but no deadlock
    assert blocking.token_ids == expected


async def test_cancelling_the_caller_cancels_the_answer(model30: SwarmModel, free_tokens: Any, eventually: Any) -> None:
    room = free_tokens(model30)
    answer = asyncio.create_task(model30.generate_async(PROMPT, max_new_tokens=2000, ignore_eos=True))
    await asyncio.to_thread(eventually, lambda: free_tokens(model30) != room, FREED_S)
    answer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await answer
    eventually(lambda: free_tokens(model30) == room, FREED_S)


@pytest.mark.parametrize("how", ["close", "forget", "break"])
def test_a_stream_left_early_frees_its_room(model30: SwarmModel, free_tokens: Any, eventually: Any, how: str) -> None:
    room = free_tokens(model30)
    stream = model30.generate(PROMPT, stream=True, max_new_tokens=2000, ignore_eos=True)
    next(stream)
    next(stream)
    during = free_tokens(model30)
    assert all(during[peer] < room[peer] - 2000 for peer in room)
    if how == "close":
        stream.close()
    elif how == "break":
        with stream:
            for _ in stream:
                break
    del stream
    gc.collect()
    eventually(lambda: free_tokens(model30) == room, FREED_S)


def test_a_conversation_keeps_its_room_until_closed(
    model30: SwarmModel, free_tokens: Any, eventually: Any, expected: tuple[int, ...]
) -> None:
    room = free_tokens(model30)
    with model30.session(max_tokens=300) as session:
        first = session.generate(PROMPT, max_new_tokens=NEW_TOKENS)
        assert first.token_ids == expected
        during = free_tokens(model30)
        assert all(during[peer] == room[peer] - 300 for peer in room)
        session.truncate(session.position - NEW_TOKENS)
        again = session.generate(input_ids=list(expected[:4]), max_new_tokens=NEW_TOKENS - 4)
        assert again.token_ids == expected[4:]
    eventually(lambda: free_tokens(model30) == room, FREED_S)
