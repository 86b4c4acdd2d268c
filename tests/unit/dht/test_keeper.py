"""The keeper brings a node back to the others: after an outage, a restart of its initial peer, a split."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import Random

import pytest

from swarm.core.errors import PeerUnreachableError
from swarm.dht.keeper import ALONE_PAUSE_S, FORGET_S, JITTER, LOOK_S, MAX_PAUSE_S, MAX_REMEMBERED, NOTE_EVERY_S, Keeper
from swarm.runtime.clock import VirtualClock

DIAL_S = 3.0
SLACK_S = 2 * LOOK_S + DIAL_S


class Circle:
    """A node among others: who answers, and whom it knows. ``dials`` are times and peers."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.answering: set[str] = set()
        self.table: set[str] = set()
        self.dials: list[tuple[float, str, tuple[str, ...]]] = []
        self.settled = self.returns = 0
        self.slow: set[str] = set()

    def known(self) -> frozenset[str]:
        return frozenset(self.table)

    async def whereabouts(self) -> dict[str, Sequence[str]]:
        return {peer: (f"at {peer}",) for peer in self.table}

    async def meet(self, peer: str, addresses: Sequence[str]) -> str:
        self.dials.append((self.clock.monotonic_s(), peer, tuple(addresses)))
        if peer not in self.answering:
            await self.clock.sleep(4 * DIAL_S if peer in self.slow else DIAL_S)
            return "no answer"
        self.table.add(peer)
        return ""

    async def settle(self) -> None:
        self.settled += 1

    def returned(self) -> None:
        self.returns += 1

    def cut(self) -> set[str]:
        """Nobody answers any more; whoever did."""
        gone, self.answering, self.table = self.answering, set(), set()
        return gone

    def dialled(self, since_s: float) -> list[str]:
        return [peer for at_s, peer, _ in self.dials if at_s >= since_s]


class Setting:
    def __init__(self, *initial: str, seeks_lost: bool = True) -> None:
        self.clock = VirtualClock()
        self.circle = Circle(self.clock)
        named = [(peer, f"/{peer}") for peer in initial]
        self.keeper = Keeper(self.circle, self.clock, Random(1), named, seeks_lost=seeks_lost)

    async def among(self, *peers: str) -> None:
        """Started, and knows ``peers``."""
        self.circle.answering |= set(peers)
        self.circle.table |= set(peers)
        self.keeper.start()
        await self.clock.advance(LOOK_S)


async def test_whoever_answers_is_enough_to_join() -> None:
    setting = Setting("dead", "live")
    setting.circle.answering.add("live")
    await setting.clock.run(setting.keeper.seek())
    assert setting.clock.monotonic_s() == 0.0, "it does not wait for the dead"
    assert setting.circle.table == {"live"}
    assert setting.circle.settled == 1
    await setting.keeper.close()


async def test_if_nobody_answers_the_error_names_each_and_says_why() -> None:
    setting = Setting("one", "two")
    with pytest.raises(PeerUnreachableError, match=r"/one: no answer; /two: no answer"):
        await setting.clock.run(setting.keeper.seek())
    assert not setting.keeper.cut_off, "who never was in the swarm is not cut off from it"
    assert setting.clock.monotonic_s() == DIAL_S


@pytest.mark.parametrize("outage_s", [20.0, 65.0, 3600.0])
@pytest.mark.parametrize("initial", [("first",), ()])
async def test_a_node_that_was_cut_off_is_back_soon_after_the_network_is(
    outage_s: float, initial: tuple[str, ...]
) -> None:
    setting = Setting(*initial)
    await setting.among("first", "second")
    gone = setting.circle.cut()
    await setting.clock.advance(outage_s)
    assert setting.keeper.cut_off
    assert setting.keeper.alone
    setting.circle.answering = gone
    await setting.clock.advance(ALONE_PAUSE_S * JITTER[1] + SLACK_S)
    assert not setting.keeper.cut_off
    assert setting.circle.table == gone
    assert setting.circle.returns == 1
    outage = await setting.clock.run(setting.keeper.wait_back())
    assert outage_s - SLACK_S <= outage <= outage_s + ALONE_PAUSE_S * JITTER[1] + SLACK_S
    await setting.keeper.close()


async def test_dials_grow_rare_and_have_an_address() -> None:
    setting = Setting("first")
    await setting.among("first", "second")
    setting.circle.cut()
    began_s = setting.clock.monotonic_s()
    await setting.clock.advance(600.0)
    assert 600.0 / (ALONE_PAUSE_S * JITTER[1] + SLACK_S) <= setting.circle.dialled(began_s).count("first")
    assert setting.circle.dialled(began_s).count("first") <= 600.0 / (ALONE_PAUSE_S * JITTER[0] + DIAL_S) + 4
    assert {(peer, where) for _, peer, where in setting.circle.dials} == {
        ("first", ("/first",)),
        ("second", ("at second",)),
    }
    await setting.keeper.close()


async def test_an_initial_peer_that_was_restarted_is_found_by_those_who_know_each_other() -> None:
    setting = Setting("first")
    await setting.among("first", "second")
    setting.circle.table.discard("first")
    setting.circle.answering.discard("first")
    await setting.clock.advance(3600.0)
    assert not setting.keeper.alone
    assert not setting.keeper.cut_off
    setting.circle.answering.add("first")
    await setting.clock.advance(MAX_PAUSE_S * JITTER[1] + SLACK_S)
    assert "first" in setting.circle.table
    await setting.keeper.close()


@pytest.mark.parametrize("seeks_lost", [True, False])
async def test_whoever_was_known_is_sought_for_a_while(seeks_lost: bool) -> None:
    """So the parts of a swarm find each other although its first peers are gone; clients leave that to servers."""
    setting = Setting(seeks_lost=seeks_lost)
    await setting.among("one", "two")
    setting.circle.table.discard("two")
    setting.circle.answering.discard("two")
    await setting.clock.advance(FORGET_S + MAX_PAUSE_S)
    assert ("two" in setting.circle.dialled(0.0)) == seeks_lost
    quiet_s = setting.clock.monotonic_s()
    await setting.clock.advance(FORGET_S)
    assert setting.circle.dialled(quiet_s) == []
    await setting.keeper.close()


async def test_a_node_that_never_knew_anybody_is_not_cut_off() -> None:
    setting = Setting()
    setting.keeper.start()
    await setting.clock.advance(3600.0)
    assert not setting.keeper.alone
    assert not setting.keeper.cut_off
    await setting.keeper.close()


async def test_one_missed_answer_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting("first")
    await setting.among("first")
    setting.circle.table.clear()
    with caplog.at_level(logging.INFO):
        await setting.clock.advance(10.0)
    assert setting.circle.table == {"first"}
    assert setting.circle.returns == 1, "what was learnt without the others is void all the same"
    assert caplog.messages == []
    await setting.keeper.close()


async def test_it_is_cut_off_only_when_everybody_has_been_tried() -> None:
    setting = Setting("first")
    await setting.among("first", "second")
    slow = setting.circle.cut()
    setting.circle.slow = slow - {"first"}
    await setting.clock.advance(2 * DIAL_S)
    assert setting.keeper.alone
    assert not setting.keeper.cut_off
    await setting.clock.advance(3 * DIAL_S)
    assert setting.keeper.cut_off
    with pytest.raises(PeerUnreachableError, match=r"\(/first: no answer\), nor did 1 other known before"):
        await setting.clock.run(setting.keeper.seek())
    await setting.keeper.close()


async def test_who_is_found_by_another_is_back_as_well() -> None:
    setting = Setting("first")
    await setting.among("first")
    setting.circle.cut()
    await setting.clock.advance(60.0)
    assert setting.keeper.cut_off
    setting.circle.table.add("stranger")
    await setting.clock.advance(LOOK_S)
    assert not setting.keeper.cut_off
    await setting.keeper.close()


@pytest.mark.parametrize("watched", [True, False])
async def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends(
    watched: bool, caplog: pytest.LogCaptureFixture
) -> None:
    setting = Setting("first")
    await setting.among("first")
    setting.keeper.watched = watched
    with caplog.at_level(logging.INFO):
        gone = setting.circle.cut()
        await setting.clock.advance(300.0)
        setting.circle.answering = gone
        await setting.clock.advance(60.0)
    cut_off, back = caplog.records
    assert cut_off.getMessage() == (
        "cut off: no initial peer answered (/first: no answer); trying again until somebody does"
    )
    assert back.getMessage().startswith("back in the swarm after ")
    level = logging.INFO if watched else logging.WARNING
    assert [record.levelno for record in caplog.records] == [level, level]
    await setting.keeper.close()


async def test_a_crowd_is_not_remembered_and_the_first_ones_make_room_only_when_they_are_gone() -> None:
    setting = Setting()
    await setting.among(*(f"old {number}" for number in range(MAX_REMEMBERED)))
    setting.circle.table |= {f"new {number}" for number in range(100)}
    await setting.clock.advance(2 * NOTE_EVERY_S)
    setting.circle.cut()
    began_s = setting.clock.monotonic_s()
    await setting.clock.advance(MAX_PAUSE_S)
    assert len(set(setting.circle.dialled(began_s))) == MAX_REMEMBERED
    assert not any(peer.startswith("new") for peer in setting.circle.dialled(began_s))
    await setting.keeper.close()
