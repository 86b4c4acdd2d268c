"""The public door, ``SwarmModel``, over a whole swarm in its background loop. Real time, since callers block."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_type_hints

import pytest
from harness import Engines, Swarm
from tiny_model import Reference

from swarm.client import loop_thread
from swarm.client.blocking import SwarmModel
from swarm.client.connect import ConnectOptions, JoinOptions
from swarm.client.loop_thread import LoopThread
from swarm.core.errors import MisuseError, SwarmError

OPTIONS = {"max_new_tokens": 6, "ignore_eos": True}
ENDLESS = {"max_new_tokens": 500, "ignore_eos": True}


@dataclass
class Door:
    """A swarm in a loop thread and the blocking model in front of it."""

    loop: LoopThread
    swarm: Swarm
    model: SwarmModel

    def free(self) -> bool:
        """True once no server holds anything, waiting at most half a minute."""
        deadline_s = time.monotonic() + 30.0
        while time.monotonic() < deadline_s:
            if all(node.idle for node in self.swarm.nodes):
                return True
            threading.Event().wait(0.01)
        return False


@pytest.fixture
def door(engines: Engines, reference: Reference) -> Iterator[Door]:
    loop = LoopThread()

    async def build() -> tuple[Swarm, SwarmModel]:
        swarm = Swarm(engines, reference)
        await swarm.serve("0:2", "2:5")
        return swarm, SwarmModel(swarm.client(), loop)

    swarm, model = loop.run(build())
    built = Door(loop, swarm, model)
    yield built
    loop.run(swarm.close())
    swarm.give_back_engines()

    async def leftovers() -> int:
        return len(asyncio.all_tasks()) - 1

    left = loop.run(leftovers())
    loop.stop()
    assert left == 0
    assert all(node.idle for node in swarm.nodes)


def wanted(door: Door, prompt: str, count: int = 6) -> list[int]:
    return door.swarm.reference.greedy(prompt, count, eos_token_id=None)


def test_generate_a_prompt_and_a_list(door: Door) -> None:
    assert list(door.model.generate("hello", **OPTIONS).token_ids) == wanted(door, "hello")
    results = door.model.generate(["x", "hello"], **OPTIONS)
    assert [list(result.token_ids) for result in results] == [wanted(door, "x"), wanted(door, "hello")]
    with pytest.raises(MisuseError, match="one prompt"):
        door.model.generate(["x"], stream=True)  # type: ignore[call-overload]


def test_a_stream_in_a_for_loop(door: Door) -> None:
    stream = door.model.generate("hello", stream=True, **OPTIONS)
    assert "".join(stream) == stream.result.text
    assert list(stream.result.token_ids) == wanted(door, "hello")


def test_leaving_the_for_loop_early_frees_the_servers(door: Door) -> None:
    for _ in door.model.generate("hello", stream=True, **ENDLESS):
        break
    gc.collect()
    assert door.free()
    assert door.model.generate("hello", **OPTIONS).token_ids


def test_closing_a_stream_and_an_exception_in_its_body(door: Door) -> None:
    stream = door.model.generate("hello", stream=True, **ENDLESS)
    next(stream)
    stream.close()
    stream.close()
    assert door.free()

    def fail_inside() -> None:
        with door.model.generate("hello", stream=True, **ENDLESS) as stream:
            next(stream)
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert door.free()


def test_a_session_in_a_with_block(door: Door) -> None:
    with door.model.session() as session:
        first = session.generate("hello", **OPTIONS)
        session.truncate(5)
        second = session.generate("!", **OPTIONS)
        assert list(first.token_ids) == wanted(door, "hello")
        assert list(second.token_ids) == wanted(door, "hello!")
        assert session.position == 12
    assert door.free()


def test_from_several_threads_at_once(door: Door) -> None:
    answers: dict[str, list[int]] = {}

    def ask(prompt: str) -> None:
        answers[prompt] = list(door.model.generate(prompt, **OPTIONS).token_ids)

    threads = [threading.Thread(target=ask, args=(f"prompt {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {prompt: wanted(door, prompt) for prompt in (f"prompt {n}" for n in range(4))}


def test_from_the_callers_own_event_loop(door: Door) -> None:
    async def main() -> None:
        result = await door.model.generate_async("hello", **OPTIONS)
        assert list(result.token_ids) == wanted(door, "hello")
        results = await door.model.generate_async(["x", "hello"], **OPTIONS)
        assert [list(result.token_ids) for result in results] == [wanted(door, "x"), wanted(door, "hello")]
        with door.model.session() as session:
            first = await session.generate_async("hello", **OPTIONS)
            session.truncate(5)
            second = await session.stream_async("!", **OPTIONS)
            assert "".join([piece async for piece in second]) == second.result.text
            assert list(first.token_ids) == wanted(door, "hello")
            assert list(second.result.token_ids) == wanted(door, "hello!")
        stream = await door.model.stream_async("hello", **OPTIONS)
        assert "".join([piece async for piece in stream]) == result.text
        endless = await door.model.stream_async("hello", **ENDLESS)
        await anext(endless)
        await endless.aclose()
        task = asyncio.create_task(door.model.generate_async("hello", **ENDLESS))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert door.free()


def test_everything_blocks_but_works_inside_a_running_loop(door: Door) -> None:
    """As in a notebook's cell: bad manners, and no deadlock."""

    async def cell() -> None:
        result = door.model.generate("hello", **OPTIONS)
        assert "".join(door.model.generate("hello", stream=True, **OPTIONS)) == result.text
        with door.model.session() as session:
            assert session.generate("hello", **OPTIONS).token_ids == result.token_ids
            assert "".join(session.stream("!", **OPTIONS))
        endless = door.model.generate("hello", stream=True, **ENDLESS)
        next(endless)
        endless.close()

    asyncio.run(cell())
    assert door.free()


def test_async_with(door: Door) -> None:
    async def main() -> None:
        async with door.model.session() as session:
            await session.generate_async("hello", **OPTIONS)
            assert repr(door.model) == f"<SwarmModel {door.swarm.files.name}, remote head, 1 open sessions>"
        assert session._inner.chain == ()
        await session.close_async()

    asyncio.run(main())
    assert door.free()


async def _connect(**options: object) -> None:
    await SwarmModel.connect_async("demo", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "named"), [({}, "initial peers"), ({"initial_peers": ["x"], "colour": "red"}, "colour")]
)
def test_options_that_cannot_be_join_nothing(options: dict[str, object], named: str) -> None:
    """Told at once, with no thread left behind."""
    before = threading.active_count()
    with pytest.raises(MisuseError, match=named):
        SwarmModel.connect("demo", **options)  # type: ignore[arg-type]
    with pytest.raises(MisuseError, match=named):
        asyncio.run(_connect(**options))
    assert threading.active_count() <= before


def test_a_type_checker_is_told_all_options_of_connect() -> None:
    assert get_type_hints(JoinOptions) == get_type_hints(ConnectOptions)


def test_a_blocking_call_from_its_own_loop_is_refused_not_deadlocked(door: Door) -> None:
    failures: list[BaseException] = []

    def progress(_: object) -> None:
        try:
            door.model.generate("again", **OPTIONS)
        except MisuseError as error:
            failures.append(error)

    door.model.generate("hello", progress=progress, **OPTIONS)
    assert "own event loop" in str(failures[0])


def test_closing_the_model_ends_calls_that_other_threads_wait_in(door: Door) -> None:
    """They must neither hang for ever nor look finished."""
    endings: list[BaseException] = []
    began = threading.Event()

    def ask() -> None:
        try:
            for _ in door.model.generate("hello", stream=True, **ENDLESS):
                began.set()
        except BaseException as error:
            endings.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    began.wait(60.0)
    door.loop.run(door.model._inner.close())
    for thread in threads:
        thread.join(60.0)
        assert not thread.is_alive()
    assert [isinstance(error, SwarmError) for error in endings] == [True, True], endings


def test_stopping_the_loop_ends_what_still_waits_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "FAREWELL_S", 0.05)
    loop = LoopThread()
    endings: list[BaseException] = []

    def wait_for_ever() -> None:
        try:
            loop.run(asyncio.sleep(3600.0))
        except BaseException as error:
            endings.append(error)

    thread = threading.Thread(target=wait_for_ever)
    thread.start()
    while not loop._calls:
        threading.Event().wait(0.001)
    loop.stop()
    thread.join(60.0)
    assert not thread.is_alive()
    assert len(endings) == 1


def test_a_closed_model_refuses_instead_of_hanging(door: Door) -> None:
    loop = LoopThread()

    async def build() -> SwarmModel:
        return SwarmModel(Swarm(door.swarm._engines, door.swarm.reference).client(), loop)

    model = loop.run(build())
    session, stream = model.session(), model.generate("hello", stream=True, **OPTIONS)
    model.close()
    model.close()
    session.close()
    stream.close()
    with pytest.raises(MisuseError, match="closed"):
        model.generate("hello", **OPTIONS)
    with pytest.raises(MisuseError, match="closed"):
        asyncio.run(model.generate_async("hello", **OPTIONS))
