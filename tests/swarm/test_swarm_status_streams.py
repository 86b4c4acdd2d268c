"""STATUS streams, in virtual time: what a server answers and to whom, and whether its end is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from status_scene import SERVER, Scene, answers

from swarm.core.errors import BusyError, PeerLostError, PeerUnreachableError, RefusedError
from swarm.core.ids import PeerId
from swarm.server.reports.telling import (
    BURST,
    FRESH_S,
    IDLE_S,
    Telling,
)
from swarm.transport.status import ANSWER_S, ask_status


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.end()


# -- who asks as he may -------------------------------------------------------------------------------------


async def test_whoever_asks_is_told(scene: Scene) -> None:
    await scene.listen()
    await scene.clock.sleep(5.0)
    report = await ask_status(scene.asker(), SERVER)
    assert report.uptime_s == pytest.approx(5.0, abs=0.1)


async def test_a_line_that_stays_open_is_asked_again_and_again(scene: Scene) -> None:
    await scene.listen()
    line = await scene.line()
    assert await answers(line, 120.0, gap_s=1.0) == (120, 0)
    assert await answers(line, 4 * IDLE_S, gap_s=IDLE_S - 1.0) == (5, 0)
    assert line.is_open
    await line.close()
    await line.close()
    assert isinstance(await line.ended(), PeerLostError)
    with pytest.raises(PeerLostError, match="closed here"):
        await line.ask()


async def test_who_asks_too_often_is_told_when_to_ask_and_the_line_stays(scene: Scene) -> None:
    await scene.listen()
    line = await scene.line()
    told, busy = await answers(line, 60.0, gap_s=0.6)
    assert 60 <= told <= 60 + BURST
    assert busy > 10
    await scene.clock.sleep(BURST)
    for _ in range(BURST):
        await line.ask()
    with pytest.raises(BusyError) as caught:
        await line.ask()
    await scene.clock.sleep(caught.value.retry_after_s)
    await line.ask()
    await line.close()


async def test_all_who_ask_at_one_time_share_one_report(scene: Scene) -> None:
    await scene.listen()
    lines = [await scene.line() for _ in range(20)]
    for _ in range(10):
        reports = await asyncio.gather(*(line.ask() for line in lines))
        assert len({report.uptime_s for report in reports}) == 1
        await scene.clock.sleep(1.0)
    assert scene.made == 10
    await scene.clock.sleep(FRESH_S)
    assert (await lines[0].ask()).uptime_s > reports[0].uptime_s
    await asyncio.gather(*(line.close() for line in lines))


async def test_two_of_one_line_take_turns(scene: Scene) -> None:
    await scene.listen()
    line = await scene.line()
    both = await asyncio.gather(line.ask(), line.ask())
    assert both[0] == both[1]
    await line.close()


async def test_statistics_may_be_off(scene: Scene) -> None:
    scene.telling = Telling(None, scene.clock)
    await scene.listen()
    line = await scene.line()
    with pytest.raises(RefusedError, match="statistics are off"):
        await line.ask()
    assert isinstance(await line.ended(), RefusedError)
    with pytest.raises(RefusedError):
        await ask_status(scene.asker(), SERVER)
    await line.close()


# -- the end is noticed -------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["leaves", "dies"])
async def test_a_servers_end_is_noticed_at_once_by_whoever_watches(scene: Scene, how: str) -> None:
    await scene.listen()
    line = await scene.line()
    await line.ask()
    watching = asyncio.create_task(line.ended())
    began_s = scene.now_s
    await (scene.telling.close() if how == "leaves" else scene.network.kill(SERVER))
    assert isinstance(await watching, PeerLostError)
    assert scene.now_s - began_s < 0.1
    assert not line.is_open
    with pytest.raises(PeerLostError):
        await line.ask()
    await line.close()
    with pytest.raises((PeerLostError, PeerUnreachableError)):
        await ask_status(scene.asker(), SERVER)


async def test_a_server_that_stands_still_is_noticed_when_it_is_asked(scene: Scene) -> None:
    await scene.listen()
    line = await scene.line()
    scene.network.freeze(SERVER)
    began_s = scene.now_s
    with pytest.raises(PeerUnreachableError, match="did not say how it is"):
        await line.ask()
    assert scene.now_s - began_s == pytest.approx(ANSWER_S, abs=0.1)
    assert not line.is_open
    with pytest.raises(PeerUnreachableError):
        await line.ask()
    scene.network.thaw(SERVER)
    await line.close()


async def test_a_question_that_was_given_up_ends_the_line(scene: Scene) -> None:
    """Its answer must not pass for the next one's."""
    await scene.listen()
    line = await scene.line()
    scene.network.freeze(SERVER)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(line.ask(), 1.0)
    scene.network.thaw(SERVER)
    with pytest.raises(PeerLostError, match="nobody waits"):
        await line.ask()
    await line.close()


async def test_nobody_is_there(scene: Scene) -> None:
    with pytest.raises(PeerUnreachableError):
        await ask_status(scene.asker(), PeerId("12D3KooWNobody"))
    with pytest.raises(PeerUnreachableError):
        await ask_status(scene.asker(), SERVER)
