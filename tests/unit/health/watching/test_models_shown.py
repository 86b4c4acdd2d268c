"""Which models a page shows and reads first, whatever strangers make up."""

from __future__ import annotations

import pytest
from reading_desk import ANNA, BERT, CARL, REAL, Desk, name_of, reached, shown, whole
from sights import PEERS

from swarm.health.watching.archive import Past
from swarm.health.watching.looks import listed
from swarm.health.watching.reading import MAX_MODELS, READ_AT_ONCE, TURNS


async def test_servers_that_answer_count_before_any_number_of_records() -> None:
    desk = Desk()
    for number in range(MAX_MODELS):
        desk.shelf.add(name_of(number), *PEERS[6:9])
    desk.shelf.add(REAL, ANNA)
    for _ in range(MAX_MODELS // TURNS + 1):
        await desk.look()
    assert REAL not in shown(desk), "three records each, against one"
    await desk.look(evidence=reached(ANNA))
    assert shown(desk)[0] == REAL
    assert desk.reading.left_out == 1


async def test_a_model_that_was_whole_keeps_its_place_before_all_that_come_later() -> None:
    """Whether they are whole as well, and when it is not any more: that is what people have to see."""
    desk = Desk()
    whole(desk, REAL, ANNA)
    for _ in range(2):
        await desk.look(evidence=reached(ANNA))
    for number in range(2 * MAX_MODELS):
        whole(desk, name_of(number), BERT, CARL)
    for _ in range(3 * MAX_MODELS // TURNS):
        await desk.look(evidence=reached(ANNA, BERT, CARL))
    assert shown(desk)[0] == REAL
    desk.shelf.shelves[REAL] = []
    await desk.look(evidence=reached(BERT, CARL))
    assert not listed(desk.reading, REAL)
    assert shown(desk)[0] == REAL
    assert desk.reading.left_out == MAX_MODELS + 1


async def test_what_is_remembered_of_models_counts_after_a_restart() -> None:
    desk = Desk()
    desk.reading.remember({REAL: Past(desk.clock.wall_s() - 3600.0, whole=True)})
    for number in range(MAX_MODELS):
        whole(desk, name_of(number), BERT)
    desk.shelf.add(REAL)
    for _ in range(MAX_MODELS // TURNS + 1):
        await desk.look(evidence=reached(BERT))
    assert shown(desk)[0] == REAL


async def test_a_model_asked_for_by_its_whole_name_is_shown_whoever_else_is_there() -> None:
    desk = Desk(REAL, "made-up")
    for number in range(2 * MAX_MODELS):
        whole(desk, f"made-up@main#{number:016x}", BERT)
    for _ in range(2 * MAX_MODELS // TURNS):
        await desk.look(evidence=reached(BERT))
    assert shown(desk)[0] == REAL


async def test_what_a_page_shows_first_is_read_every_round_among_hundreds() -> None:
    desk = Desk()
    whole(desk, REAL, ANNA)
    for _ in range(2):
        await desk.look(evidence=reached(ANNA))
    for number in range(300):
        whole(desk, name_of(number), BERT)
    for _ in range(40):
        desk.shelf.read.clear()
        await desk.look(evidence=reached(ANNA, BERT))
        assert REAL in desk.shelf.read
        assert len(desk.shelf.read) <= READ_AT_ONCE
    assert sum(bool(one.servers) for one in desk.reading.models.values()) > 100, "and others in turn"


@pytest.mark.parametrize("name", ["re\u202eal", "real\u200b", "real\u3164", "re" + "\u0301" * 9])
async def test_a_name_that_cannot_be_told_from_others_by_looking_is_not_listed(name: str) -> None:
    desk = Desk()
    desk.shelf.add(f"{name}@main#0123456789abcdef", ANNA)
    desk.shelf.add("modèle@main#0123456789abcdef", ANNA)
    await desk.look()
    assert shown(desk) == ["modèle@main#0123456789abcdef"]
