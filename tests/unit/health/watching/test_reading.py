"""What a page keeps of the directory, and whom it asks and names because of it."""

from __future__ import annotations

import asyncio

import pytest
from reading_desk import ANNA, BERT, CARL, Desk, listing, reached, whole
from sights import MODEL, NOW_S, PEERS, UNREACHED, heard, server

from swarm.core.announcement import Reach, State
from swarm.core.ids import ModelId, PeerId
from swarm.core.listing import Listing
from swarm.health.sight import NOTHING_HEARD, Repute, Seen
from swarm.health.watching.looks import checked, joined_by, listed, targets, tried
from swarm.health.watching.reading import (
    ANNOUNCED_S,
    ENDED_S,
    FIRST,
    GONE_S,
    INDEX_EVERY_S,
    MAX_GONE,
    MAX_MODELS,
    NO_EVIDENCE,
    READ_AT_ONCE,
    UNLISTED_S,
    UNREAD_S,
    Reading,
    merged,
)
from swarm.models.demo import SMOLLM2


def test_a_server_is_seen_when_a_new_record_of_it_comes() -> None:
    first = merged({}, [listing(ANNA)], NOW_S)
    assert first[ANNA].seen_at == NOW_S
    assert merged(first, [listing(ANNA)], NOW_S + 2)[ANNA].seen_at == NOW_S, "the same record"
    assert merged(first, [listing(ANNA, sequence=2)], NOW_S + 4)[ANNA].seen_at == NOW_S + 4


def test_one_without_metrics_was_there_when_it_announced_itself() -> None:
    quiet = listing(ANNA, live=False, expires_s=NOW_S + 20)
    assert merged({}, [quiet], NOW_S)[ANNA].seen_at == NOW_S + 20 - ANNOUNCED_S
    assert merged({ANNA: Seen(quiet, NOW_S - 3)}, [quiet], NOW_S)[ANNA].seen_at == NOW_S - 3


def test_one_that_says_goodbye_is_gone_at_once_and_one_that_vanishes_stays_a_while() -> None:
    known = merged({}, [listing(ANNA), listing(BERT, expires_s=NOW_S + 5)], NOW_S)
    after = merged(known, [], NOW_S + 10)
    assert list(after) == [BERT]
    assert after[BERT].gone
    assert after[BERT].listing.metrics is None
    assert after[BERT].seen_at == NOW_S
    assert merged(after, [], NOW_S + GONE_S - 1) == after
    assert merged(after, [], NOW_S + GONE_S) == {}
    back = merged(after, [listing(BERT, sequence=9)], NOW_S + 60)
    assert not back[BERT].gone


@pytest.mark.parametrize("state", [State.JOINING, State.DRAINING])
def test_one_that_was_about_to_go_or_never_came_is_not_kept(state: State) -> None:
    known = merged({}, [listing(ANNA, expires_s=NOW_S + 5, state=state)], NOW_S)
    assert merged(known, [], NOW_S + 10) == {}


async def test_models_of_the_index_with_their_servers() -> None:
    desk = Desk()
    desk.shelf.add(MODEL, ANNA)
    desk.shelf.add("other@main#0123456789abcdef", layers=9)
    await desk.look()
    assert [(str(model.model), model.layers, list(model.servers)) for model in desk.reading.shown()] == [
        (MODEL, 6, [ANNA]),
        ("other@main#0123456789abcdef", 9, []),
    ]
    assert desk.reading.directory_at == desk.clock.wall_s()
    assert listed(desk.reading, MODEL) == [ANNA]
    assert listed(desk.reading, "nothing") == []


@pytest.mark.parametrize("wanted", ["tiny@main#0123456789abcdef", "tiny", "tiny@main"])
async def test_only_models_that_are_wanted(wanted: str) -> None:
    desk = Desk(wanted)
    desk.shelf.add(MODEL, BERT)
    desk.shelf.add("tiny@main#0123456789abcdef", ANNA)
    await desk.look()
    assert list(desk.reading.models) == ["tiny@main#0123456789abcdef"]


async def test_the_demo_goes_by_its_short_name() -> None:
    desk = Desk("demo")
    desk.shelf.add(f"{SMOLLM2.name}@{SMOLLM2.revision}#0123456789abcdef", ANNA)
    await desk.look()
    assert len(desk.reading.shown()) == 1


async def test_a_model_named_whole_needs_no_index() -> None:
    desk = Desk(MODEL)
    desk.shelf.shelves[MODEL] = [listing(ANNA)]
    await desk.look()
    assert list(desk.reading.models[MODEL].servers) == [ANNA]


async def test_a_failure_is_told_and_takes_nothing_back() -> None:
    desk = Desk()
    desk.shelf.add(MODEL, ANNA)
    await desk.look()
    answered_at, servers = desk.reading.directory_at, desk.reading.models[MODEL].servers
    desk.shelf.fails = True
    await desk.look(INDEX_EVERY_S)
    assert desk.reading.problem == "the directory does not answer"
    assert (desk.reading.directory_at, desk.reading.models[MODEL].servers) == (answered_at, servers)
    desk.shelf.fails = False
    await desk.look()
    assert desk.reading.problem == ""


async def test_made_up_models_crowd_nobody_out() -> None:
    """Each has its turn, so one with servers is found among many without; then it is read every round."""
    desk = Desk()
    for number in range(5 * MAX_MODELS):
        desk.shelf.add(f"a{number:04}@main#0123456789abcdef")
    desk.shelf.add("real@main#0123456789abcdef", ANNA)
    for _ in range(5 * MAX_MODELS // READ_AT_ONCE + 2):
        desk.shelf.read.clear()
        await desk.look()
        assert len(desk.shelf.read) <= READ_AT_ONCE
    assert len(desk.reading.shown()) == MAX_MODELS
    assert str(desk.reading.shown()[0].model) == "real@main#0123456789abcdef"
    for _ in range(3):
        desk.shelf.read.clear()
        await desk.look()
        assert "real@main#0123456789abcdef" in desk.shelf.read


async def test_models_with_servers_take_turns() -> None:
    """Whoever was announced first is not read more often: a dozen made-up models would have all others look silent."""
    desk = Desk()
    names = [f"a{number:04}@main#0123456789abcdef" for number in range(3 * READ_AT_ONCE)]
    for name in names:
        desk.shelf.add(name, ANNA)
    for _ in range(20):
        await desk.look()
    desk.shelf.read.clear()
    for _ in range((len(names) - FIRST) // (READ_AT_ONCE - FIRST)):
        await desk.look()
    assert set(desk.shelf.read) == set(names)


async def test_records_of_a_model_that_waits_for_its_turn_are_judged_as_they_were_read() -> None:
    desk = Desk()
    desk.shelf.add(MODEL, ANNA)
    await desk.look()
    read_at, model = desk.clock.wall_s(), desk.reading.models[MODEL]
    assert model.as_of(read_at + 1.0) == read_at + 1.0
    assert model.as_of(read_at + 100.0) == read_at + UNREAD_S
    desk.shelf.fails = True
    await desk.look(100.0)
    assert model.as_of(read_at + 100.0) == read_at + UNREAD_S
    desk.shelf.fails = False
    await desk.look()
    assert model.as_of(desk.clock.wall_s()) == desk.clock.wall_s()


async def test_names_made_up_all_the_time_do_not_delay_whom_they_find_waiting() -> None:
    desk = Desk()
    for number in range(READ_AT_ONCE):
        desk.shelf.add(f"served{number}@main#0123456789abcdef", ANNA)
    desk.shelf.add("real@main#0123456789abcdef")
    for day in range(20):
        desk.shelf.index = [entry for entry in desk.shelf.index if not entry.model.startswith("a")]
        for number in range(40):
            desk.shelf.add(f"a{day:04}{number:04}@main#0123456789abcdef")
        await desk.look(INDEX_EVERY_S)
    assert desk.shelf.read.count("real@main#0123456789abcdef") >= 2


@pytest.mark.parametrize(("was_whole", "kept_s"), [(True, ENDED_S), (False, UNLISTED_S)])
async def test_a_model_that_ended_is_forgotten_after_a_day_and_one_that_never_was_in_a_minute(
    was_whole: bool, kept_s: float
) -> None:
    desk = Desk()
    whole(desk, MODEL, ANNA)
    for _ in range(2):
        await desk.look(evidence=reached(ANNA) if was_whole else NO_EVIDENCE)
        desk.reading.shown()
    desk.shelf.index.clear()
    desk.shelf.shelves.clear()
    await desk.look()
    await desk.look(kept_s - INDEX_EVERY_S)
    assert list(desk.reading.models) == [MODEL]
    await desk.look(3 * INDEX_EVERY_S)
    assert list(desk.reading.models) == []


async def test_a_round_that_is_cut_short_leaves_nothing_running() -> None:
    desk = Desk()
    desk.shelf.add(MODEL, ANNA)

    async def never(model: ModelId) -> list[Listing]:
        await asyncio.Event().wait()
        raise AssertionError

    desk.shelf.servers = never  # type: ignore[method-assign]
    looking = asyncio.create_task(desk.reading.look())
    await desk.clock.settle()
    looking.cancel()
    await asyncio.gather(looking, return_exceptions=True)
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_of_many_that_vanished_those_that_ever_answered_are_kept() -> None:
    crowd = [PeerId(f"evil{number}") for number in range(3 * MAX_GONE)]
    there = [listing(peer, expires_s=NOW_S + 5) for peer in (ANNA, *crowd)]
    after = merged(merged({}, there, NOW_S), [], NOW_S + 10, {ANNA})
    assert len(after) == MAX_GONE
    assert ANNA in after


# -- whom to ask, and by whom to join --------------------------------------------------------------------------


def reading_of(*servers: Seen) -> Reading:
    desk = Desk(MODEL)
    desk.reading.models[MODEL].servers = {one.peer: one for one in servers}
    return desk.reading


def test_every_server_is_asked() -> None:
    found = targets(reading_of(server(0, 0, 2), server(1, 0, 2, measured=None), server(2, 0, 2, gone=True)))
    assert set(found) == {ANNA, BERT, CARL}


def test_only_flawless_work_is_checked_work() -> None:
    repute = {ANNA: Repute(audited=3), BERT: Repute(audited=3, strikes=1), CARL: Repute(audited=3, ejected=True)}
    assert checked(repute | {PEERS[4]: Repute(accused=True)}) == {ANNA}


def test_one_is_tried_once_its_try_has_ended() -> None:
    assert tried({})
    assert tried({ANNA: heard(), BERT: UNREACHED})
    assert not tried({ANNA: heard(), BERT: NOTHING_HEARD})


def test_newcomers_join_by_those_this_page_has_reached_for_longest() -> None:
    """Whatever they say of their own age."""
    place = "/ip4/203.0.112.{}/tcp/31337"
    old = server(0, 0, 2, addresses=(place.format(1),), started_s=NOW_S)
    young = server(1, 0, 2, addresses=(place.format(2),), started_s=0.0)
    relayed = server(2, 0, 2, addresses=(place.format(3),), reach=Reach.RELAYED)
    reading = reading_of(young, old, relayed)
    told = {ANNA: heard(since_at=1.0), BERT: heard(since_at=2.0), CARL: heard(since_at=0.0)}
    assert joined_by(reading, told, ()) == [f"{place.format(1)}/p2p/{ANNA}", f"{place.format(2)}/p2p/{BERT}"]
    assert joined_by(reading, told | {ANNA: UNREACHED}, ()) == [f"{place.format(2)}/p2p/{BERT}"]
    own = f"{place.format(9)}/p2p/{CARL}"
    assert joined_by(reading, told, (own,))[0] == own
