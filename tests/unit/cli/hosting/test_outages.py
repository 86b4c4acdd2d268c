"""What the owner of a server hears of an outage."""

from __future__ import annotations

import asyncio
import io
import json

from swarm.cli.hosting.outages import follow_outages
from swarm.cli.output.console import HumanConsole, JsonConsole


class Keeper:
    """One that a test cuts off and brings back."""

    def __init__(self) -> None:
        self.away, self.here = asyncio.Event(), asyncio.Event()
        self.here.set()

    async def wait_cut_off(self) -> None:
        await self.away.wait()

    async def wait_back(self) -> float:
        await self.here.wait()
        return 67.4

    async def switch(self, away: bool) -> None:
        (self.away.set if away else self.away.clear)()
        (self.here.clear if away else self.here.set)()
        for _ in range(5):
            await asyncio.sleep(0)


async def test_each_outage_is_told_once_and_when_it_is_over_the_server_announces() -> None:
    keeper, out, announced = Keeper(), io.StringIO(), []
    told = asyncio.create_task(follow_outages(keeper, JsonConsole(out), lambda: announced.append(out.getvalue())))
    for number in (1, 2):
        await keeper.switch(away=True)
        await keeper.switch(away=True)
        assert len(announced) == number - 1
        await keeper.switch(away=False)
        assert len(announced) == number
    told.cancel()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["cut_off", "back"] * 2
    assert lines[1]["seconds"] == 67.4


async def test_a_person_reads_one_line_each() -> None:
    keeper, out = Keeper(), io.StringIO()
    told = asyncio.create_task(follow_outages(keeper, HumanConsole(out), lambda: None))
    await keeper.switch(away=True)
    await keeper.switch(away=False)
    told.cancel()
    cut_off, back = out.getvalue().splitlines()
    assert cut_off.startswith("CUT OFF: nobody else of the swarm answers")
    assert back == "BACK in the swarm after 67 s; announced again."
