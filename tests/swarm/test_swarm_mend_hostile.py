"""Newcomers and survivors that misbehave while a chain is mended: named, done without, and nobody else pays for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from toy_swarm import Talk, ToySwarm
from toys import KV_TOKENS, Part, Toy

from swarm.client.chains.chain import Loss, Patch
from swarm.core.errors import (
    BusyError,
    ChainOpenError,
    PeerLostError,
    PeerUnreachableError,
    ProtocolViolation,
    RefusedError,
    SwarmError,
)
from swarm.wire.frames import encode_head
from swarm.wire.messages import (
    Accept,
    Busy,
    Failed,
    LinkLost,
    Message,
    Noop,
    Refused,
    Relink,
    Relinked,
    Replay,
    Replayed,
    Result,
    Step,
)

SPANS = ("0:2", "2:4", "4:6")


@pytest_asyncio.fixture
async def toys() -> AsyncIterator[ToySwarm]:
    swarm = ToySwarm()
    yield swarm
    await swarm.close()


class Liar(Toy):
    """Misbehaves in one ``manner``."""

    def __init__(self, *where: Any, manner: str) -> None:
        super().__init__(*where)
        self.manner = manner


# -- newcomers --------------------------------------------------------------------------------------------------


class BadNewcomer(Liar):
    async def admit(self, part: Part) -> None:
        match self.manner:
            case "busy":
                await part.control.send(Busy(2.5, "no room"))
            case "refuses":
                await part.control.send(Refused("not you"))
            case "never answers":
                return
            case "hangs up":
                await part.control.close()
            case "garbage":
                await part.control._stream.write(b"\xff" * 64)
            case "accepts and hangs up":
                await part.control.send(Accept(0, 0, KV_TOKENS))
                await part.control.close()
            case _:
                await super().admit(part)
        if self.manner == "says so before it is fed":
            await part.control.send(Replayed(part.generation, 300))

    async def replayed(self, part: Part, message: Replay) -> None:
        generation, rows = part.generation, len(part.kv)
        says: dict[str, list[Message]] = {
            "too far": [Replayed(generation, 301)],
            "backwards": [Replayed(generation, rows), Replayed(generation, rows - 1)],
            "nothing": [Replayed(generation, 0)],
            "a generation to come": [Replayed(generation + 1, rows)],
            "relinked, unasked": [Relinked(generation, rows, rows)],
            "a result from the middle": [Result(generation, 0, 0, rows, (7,))],
            "fails": [Failed("server", "out of memory")],
            "drains": [Failed("draining", "the owner stopped it")],
            "blames a stranger": [LinkLost("somebody", "or so it says", generation)],
        }
        for message in says.get(self.manner, []):
            await part.control.send(message)
        match self.manner:
            case "accepts twice":
                await part.control._stream.write(encode_head(Accept(0, 0, KV_TOKENS)))
            case "hangs up in the replay":
                await part.control.close()
            case "garbage in the replay":
                await part.control._stream.write(b"\xff" * 64)


MANNERS: dict[str, tuple[float, type[SwarmError]]] = {
    "busy": (0.1, BusyError),
    "refuses": (0.1, RefusedError),
    "never answers": (3.1, PeerUnreachableError),
    "hangs up": (0.1, SwarmError),
    "garbage": (0.1, SwarmError),
    "accepts and hangs up": (0.2, PeerLostError),
    "says so before it is fed": (0.2, ProtocolViolation),
    "too far": (0.2, PeerLostError),
    "backwards": (0.2, PeerLostError),
    "nothing": (0.2, PeerLostError),
    "a generation to come": (0.2, PeerLostError),
    "relinked, unasked": (0.2, PeerLostError),
    "a result from the middle": (0.2, PeerLostError),
    "accepts twice": (0.2, PeerLostError),
    "fails": (0.2, PeerLostError),
    "drains": (0.2, PeerLostError),
    "hangs up in the replay": (0.2, PeerLostError),
    "garbage in the replay": (0.2, PeerLostError),
    "blames a stranger": (0.2, PeerLostError),
    "silence": (30.1, PeerUnreachableError),
}
"""Within which time the attempt fails, and with what for the newcomer."""


@pytest.mark.parametrize("logs", [True, False])
@pytest.mark.parametrize("manner", sorted(MANNERS))
async def test_a_newcomer_that_misbehaves(toys: ToySwarm, manner: str, logs: bool) -> None:
    """Only it is named and forgotten; the next one is taken in, and the others compute nothing for it."""
    first = await toys.several(*SPANS)
    first[0].logs = logs and manner != "says so before it is fed"
    bad, good = await toys.toy("2:4", BadNewcomer, manner=manner), await toys.toy("2:4")
    talk = await toys.talk(*first, ids=range(300))
    await toys.crash(first[1])
    await toys.broken(talk.chain)
    began_s = toys.clock.monotonic_s()
    with pytest.raises(ChainOpenError) as caught:
        await talk.mend(Patch(1, 2, (bad.stage(),)))
    within_s, error = MANNERS[manner]
    assert toys.clock.monotonic_s() - began_s < within_s
    assert set(caught.value.failures) == {bad.peer}
    failure = caught.value.failures[bad.peer]
    assert isinstance(failure, error)
    assert bad.peer[-8:] in str(failure)
    assert set(talk.chain.lost) == {1}
    assert [stage.peer for stage in talk.chain.stages] == [toy.peer for toy in first]
    assert talk.chain.suspects == {first[1].peer}
    await asyncio.sleep(0.1)
    assert not bad.parts
    first[0].logs = True
    await talk.mend(Patch(1, 2, (good.stage(),)))
    await talk.say(9)
    assert talk.chain.generation == 2
    assert first[2].rows == 301


async def test_two_newcomers_of_which_one_is_busy(toys: ToySwarm) -> None:
    """The other one is let go at once too."""
    first = await toys.several(*SPANS)
    busy, good = await toys.toy("2:3", BadNewcomer, manner="busy"), await toys.toy("3:4")
    talk = await toys.talk(*first)
    await toys.crash(first[1])
    await toys.broken(talk.chain)
    with pytest.raises(ChainOpenError) as caught:
        await talk.mend(Patch(1, 2, (busy.stage(), good.stage())))
    assert set(caught.value.failures) == {busy.peer}
    await asyncio.sleep(0.1)
    assert not good.parts


# -- survivors --------------------------------------------------------------------------------------------------


class BadSurvivor(Liar):
    async def relinked(self, part: Part, message: Relink) -> None:
        rows, send = len(part.kv), part.control.send
        match self.manner:
            case "never answers":
                await send(Noop())
            case "holds fewer rows":
                await send(Relinked(message.generation, rows - 1, rows))
            case "holds more rows":
                await send(Relinked(message.generation, rows + 1, rows))
            case "another generation":
                await send(Relinked(message.generation + 1, rows, rows))
            case "an old generation":
                await send(Relinked(message.generation - 1, rows, rows))
            case "hangs up":
                await part.control.close()
            case "garbage":
                await part.control._stream.write(b"\xff" * 64)
            case "fails":
                await send(Failed("server", "no"))
            case "says it replayed":
                await send(Replayed(message.generation, rows))
                await super().relinked(part, message)
            case "cannot reach the newcomer":
                await super().relinked(part, message)
                if part.downstream is not None:
                    await send(LinkLost(part.downstream.record.decode(), "or so it says", message.generation))
            case _:
                await super().relinked(part, message)

    async def _replay_log(self, part: Part, keep: int, generation: int, hops: int) -> None:
        match self.manner:
            case "replays nothing":
                return
            case "replays half of it":
                await super()._replay_log(part, keep // 2, generation, hops)
            case _:
                await super()._replay_log(part, keep, generation, hops)


SURVIVORS: dict[str, tuple[float, str]] = {
    "never answers": (5.1, "silent"),
    "holds fewer rows": (0.1, "failed"),
    "holds more rows": (0.1, "failed"),
    "another generation": (0.2, "failed"),
    "an old generation": (5.1, "silent"),
    "hangs up": (0.2, "gone"),
    "garbage": (0.2, "failed"),
    "fails": (0.2, "failed"),
    "says it replayed": (0.2, "failed"),
}


@pytest.mark.parametrize("manner", sorted(SURVIVORS))
async def test_a_survivor_that_misbehaves_is_lost_as_well(toys: ToySwarm, manner: str) -> None:
    bad = await toys.toy("0:2", BadSurvivor, manner=manner)
    rest = await toys.several(*SPANS[1:])
    spares = await toys.several("0:2", "2:4")
    talk = await toys.talk(bad, *rest, ids=range(300))
    await toys.crash(rest[0])
    await toys.broken(talk.chain)
    began_s = toys.clock.monotonic_s()
    with pytest.raises(ChainOpenError) as caught:
        await talk.mend(Patch(1, 2, (spares[1].stage(),)))
    within_s, kind = SURVIVORS[manner]
    assert toys.clock.monotonic_s() - began_s < within_s
    assert set(caught.value.failures) == {bad.peer}
    assert {place: loss.kind for place, loss in talk.chain.lost.items()} == {0: kind, 1: "gone"}
    await talk.mend(Patch(0, 1, (spares[0].stage(),)), Patch(1, 2, (spares[1].stage(),)))
    await talk.say(9)
    assert rest[1].rows == 301
    assert talk.chain.suspects == {bad.peer, rest[0].peer}


@pytest.mark.parametrize("manner", ["replays nothing", "replays half of it"])
async def test_a_survivor_that_makes_newcomers_look_guilty(toys: ToySwarm, manner: str) -> None:
    """The first one it gets away with, the second is its end; an honest third is taken in beside its successor."""
    bad = await toys.toy("0:2", BadSurvivor, manner=manner)
    rest = await toys.several(*SPANS[1:])
    spares = await toys.several("2:4", "2:4", "2:4", "0:2")
    talk = await toys.talk(bad, *rest, ids=range(300))
    await toys.crash(rest[0])
    await toys.broken(talk.chain)
    for attempt, spare in enumerate(spares[:2]):
        assert set(talk.chain.lost) == {1}
        with pytest.raises(ChainOpenError) as caught:
            await talk.mend(Patch(1, 2, (spare.stage(),)))
        assert (bad.peer in caught.value.failures) == (attempt == 1)
    assert set(talk.chain.lost) == {0, 1}
    await talk.mend(Patch(0, 1, (spares[3].stage(),)), Patch(1, 2, (spares[2].stage(),)))
    await talk.say(9)
    assert talk.chain.suspects == {bad.peer, rest[0].peer}


async def test_a_survivor_that_says_it_cannot_reach_newcomers(toys: ToySwarm) -> None:
    """It comes to that after the replay, which proves the opposite; with the second one its word is worth nothing."""
    bad = await toys.toy("0:2", BadSurvivor, manner="cannot reach the newcomer")
    rest = await toys.several(*SPANS[1:])
    spares = await toys.several("2:4", "2:4", "0:2")
    talk = await toys.talk(bad, *rest, ids=range(300))
    await toys.crash(rest[0])
    await toys.broken(talk.chain)
    await talk.mend(Patch(1, 2, (spares[0].stage(),)))
    await toys.broken(talk.chain)
    assert talk.chain.cuts == {(0, 1)}
    await talk.mend(Patch(1, 2, (spares[1].stage(),)))
    await toys.broken(talk.chain)
    assert set(talk.chain.lost) == {0}
    await talk.mend(Patch(0, 1, (spares[2].stage(),)))
    await talk.say(9)
    assert talk.chain.suspects == {bad.peer, rest[0].peer}


# -- liars over a whole session ---------------------------------------------------------------------------------


class BadMiddle(Liar):
    """Honest in opening; ``strike`` is what it does then."""

    async def strike(self, talk: Talk) -> None:
        part, chain = self.part, talk.chain
        place = [stage.peer for stage in chain.stages].index(self.peer)
        match self.manner:
            case "accuses":
                await part.control.send(LinkLost(chain.stages[place + 1].peer, "or so it says", part.generation))
            case "closes the link":
                for link in list(part.links.values()):
                    await link.close()
            case "sends nonsense":
                for link in part.links.values():
                    await link._stream.write(b"\xff" * 64)


@pytest.mark.parametrize("manner", ["accuses", "closes the link", "sends nonsense"])
async def test_a_liar_costs_one_honest_neighbour_and_then_its_place(toys: ToySwarm, manner: str) -> None:
    """Though its neighbour is the one that is replaced each time."""
    bad = await toys.toy("0:2", BadMiddle, manner=manner)
    rest = await toys.several(*SPANS[1:])
    spares = await toys.several("2:4", "2:4", "0:2")
    talk = await toys.talk(bad, *rest)
    await bad.strike(talk)
    await toys.broken(talk.chain)
    nonsense = manner == "sends nonsense"
    assert (set(talk.chain.lost), talk.chain.cuts) == (({1}, set()) if nonsense else (set(), {(0, 1)}))
    await talk.mend(Patch(1, 2, (spares[0].stage(),)))
    await talk.say(9)
    await bad.strike(talk)
    await toys.broken(talk.chain)
    assert set(talk.chain.lost) == ({0, 1} if nonsense else {0})
    assert not talk.chain.cuts
    assert bad.peer in talk.chain.suspects
    patches = [Patch(0, 1, (spares[2].stage(),)), *([Patch(1, 2, (spares[1].stage(),))] if nonsense else [])]
    await talk.mend(*patches)
    await talk.say(9)
    assert rest[1].rows == 5


class BadTail(Liar):
    async def answer(self, part: Part, message: Step) -> None:
        if self.manner == "honest":
            await super().answer(part, message)
            return
        where = (message.generation, message.epoch, message.seq)
        await part.control.send(Result(*where, kv_length=len(part.kv) + 1, tokens=(7,)))


async def test_a_tail_that_counts_other_rows_is_lost(toys: ToySwarm) -> None:
    first = await toys.several("0:2")
    tail, spare = await toys.toy("2:6", BadTail, manner="honest"), await toys.toy("2:6")
    talk = await toys.talk(*first, tail)
    tail.manner = "lies"
    with pytest.raises(PeerLostError, match=tail.peer[-8:]):
        await talk.say(8)
    assert {place: loss.kind for place, loss in talk.chain.lost.items()} == {1: "failed"}
    await talk.mend(Patch(1, 2, (spare.stage(),)))
    await talk.say(8)
    assert talk.chain.suspects == {tail.peer}


async def test_given_up_for_wrong_results(toys: ToySwarm) -> None:
    """What the chain cannot see itself its caller says: at once, while an attempt runs too."""
    first = await toys.several(*SPANS)
    spare = await toys.toy("4:6")
    talk = await toys.talk(*first)
    saying = await talk.chain.send(Step(0, 0, 1, 3, 1, 1, ids=True), [b"\x01\x00\x00\x00"], 0)
    talk.chain.give_up(2, Loss("failed", PeerLostError("no such token", peer=first[2].peer)))
    with pytest.raises(PeerLostError, match="no such token"):
        await saying
    spare.takes_s = 1.0
    attempt = asyncio.create_task(talk.mend(Patch(2, 3, (spare.stage(),))))
    await asyncio.sleep(0.5)
    talk.chain.give_up(0, Loss("late", PeerLostError("late", peer=first[0].peer)))
    with pytest.raises(ChainOpenError) as caught:
        await attempt
    assert set(caught.value.failures) == {first[0].peer}
    assert set(talk.chain.lost) == {0, 2}


async def test_servers_that_are_lost_while_a_chain_opens(toys: ToySwarm) -> None:
    """A server that accepts and goes away at once fails the opening, though another is slow to answer."""

    class Slow(Toy):
        async def admit(self, part: Part) -> None:
            await asyncio.sleep(4.0)
            await super().admit(part)

    brief, slow = await toys.toy("0:2", BadNewcomer, manner="accepts and hangs up"), await toys.toy("2:6", Slow)
    began_s = toys.clock.monotonic_s()
    with pytest.raises(ChainOpenError) as caught:
        await toys.chain(brief, slow)
    assert set(caught.value.failures) == {brief.peer}
    assert toys.clock.monotonic_s() - began_s < 1.0
