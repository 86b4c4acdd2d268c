"""A wrong clock is told to its owner, and strangers who lie about theirs are not enough for that."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random

import pytest

from swarm.dht.clock_watch import ASKED, LOOK_EVERY_S, MOST_S, ClockWatch
from swarm.runtime.clock import VirtualClock


class Others:
    """Nodes by how far their clocks are ahead of ours."""

    def __init__(self, offsets_s: Sequence[float | None]) -> None:
        self.offsets_s = list(offsets_s)
        self.asked: list[str] = []

    def known(self) -> frozenset[str]:
        return frozenset(map(str, range(len(self.offsets_s))))

    async def offset_s(self, peer: str) -> float | None:
        self.asked.append(peer)
        return self.offsets_s[int(peer)]


async def told(offsets_s: Sequence[float | None], caplog: pytest.LogCaptureFixture) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        await ClockWatch(Others(offsets_s), VirtualClock(), Random(1)).look()
    return caplog.messages


@pytest.mark.parametrize(
    "offsets_s",
    [
        [],
        [None, None],
        [0.1, -0.2, MOST_S],
        [900.0, 0.1, 0.2],  # one liar
        [900.0, 900.0, 0.1, 0.2],
        [float("nan"), float("inf"), None],
    ],
)
async def test_no_word_while_at_least_half_agree(
    offsets_s: Sequence[float | None], caplog: pytest.LogCaptureFixture
) -> None:
    assert await told(offsets_s, caplog) == []


@pytest.mark.parametrize(
    ("offsets_s", "how"),
    [
        ([37.2], "37 s behind other nodes' (1 asked)"),
        ([37.2, 36.9, 0.0], "37 s behind other nodes' (3 asked)"),
        ([-3600.0, None, -3601.0], "3600 s ahead of other nodes' (2 asked)"),
    ],
)
async def test_a_wrong_clock_is_told_with_what_to_do(
    offsets_s: Sequence[float | None], how: str, caplog: pytest.LogCaptureFixture
) -> None:
    [message] = await told(offsets_s, caplog)
    assert message == f"this machine's clock is {how}: set it, or servers and clients will not find each other"


async def test_it_is_told_once_and_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    clock, others = VirtualClock(), Others([30.0])
    watching = asyncio.create_task(ClockWatch(others, clock, Random(1)).run())
    with caplog.at_level(logging.WARNING):
        await clock.advance(10 * LOOK_EVERY_S)
        assert len(caplog.messages) == 1
        others.offsets_s = [0.0]
        await clock.advance(10 * LOOK_EVERY_S)
    assert caplog.messages[1:] == ["this machine's clock agrees with other nodes' again"]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_a_crowd_is_not_asked() -> None:
    others = Others([0.0] * 1000)
    await ClockWatch(others, VirtualClock(), Random(1)).look()
    assert len(set(others.asked)) == len(others.asked) == ASKED
