"""How many layers a model has, and how long its rows are, where servers say different things."""

from __future__ import annotations

from msgspec.structs import replace
from reading_desk import ANNA, BERT, CARL, Desk, listing, reached
from sights import MODEL, NOW_S, PEERS

from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.health.watching.reading import ANNOUNCED_S, GONE_S, INDEX_EVERY_S, Evidence
from swarm.health.watching.votes import NOTHING_SAID, Agreed, Vote, agreed

NETWORKS = {peer: f"203.0.{number}.0/24" for number, peer in enumerate(PEERS)}
LIAR = PEERS[9]


def test_without_votes_nothing_changes() -> None:
    assert agreed(NOTHING_SAID, ()) == NOTHING_SAID
    assert agreed(Agreed(6, heard=True), ()) == Agreed(6, heard=True)


def test_a_crowd_that_answers_from_one_network_is_one_voice() -> None:
    votes = [Vote(6, "a", "a"), *[Vote(7, "b", f"made-up{number}") for number in range(20)]]
    assert agreed(Agreed(6, heard=True), votes) == Agreed(6, heard=True)
    assert agreed(Agreed(6, heard=True), [*votes, Vote(7, "c")]) == Agreed(7, heard=True)


def test_who_does_not_answer_takes_nothing_back() -> None:
    """A page that is cut off keeps what it had, as long as anybody says so."""
    votes = [Vote(6), *[Vote(7, network=f"made-up{number}") for number in range(20)]]
    assert agreed(Agreed(6, heard=True), votes) == Agreed(6, heard=True)
    assert agreed(Agreed(6, heard=True), votes[1:]) == Agreed(7)


def test_of_equals_the_smaller_number_whoever_comes_first() -> None:
    votes = [Vote(7, "a", "a"), Vote(6, "b", "b")]
    assert agreed(NOTHING_SAID, votes) == agreed(NOTHING_SAID, votes[::-1]) == Agreed(6, heard=True)


def placed(peer: PeerId, network: int, layers: int) -> Listing:
    return listing(peer, layers=layers, addresses=(f"/ip4/203.0.{network}.1/tcp/31337",))


async def test_a_crowd_in_one_network_does_not_say_how_many_layers_a_model_has() -> None:
    desk = Desk()
    desk.shelf.add(MODEL)
    honest = [placed(peer, number, 6) for number, peer in enumerate(PEERS[:2])]
    desk.shelf.shelves[MODEL] = [*(placed(peer, 9, 4096) for peer in PEERS[10:30]), *honest]
    await desk.look()
    assert desk.reading.models[MODEL].layers == 6


async def test_who_answers_says_how_many_layers_a_model_has_not_who_only_announces() -> None:
    desk = Desk()
    desk.shelf.add(MODEL, *PEERS[10:30], layers=4096)
    desk.shelf.shelves[MODEL] = [placed(peer, number, 4096) for number, peer in enumerate(PEERS[10:30])]
    await desk.look()
    assert desk.reading.models[MODEL].layers == 4096
    desk.shelf.shelves[MODEL].append(placed(ANNA, 99, 6))
    await desk.look(evidence=reached(ANNA))
    assert desk.reading.models[MODEL].layers == 6
    await desk.look(evidence=reached(ANNA, *PEERS[10:30]))
    assert desk.reading.models[MODEL].layers == 6, "no more networks answer that say otherwise"


def answers(*peers: PeerId) -> Evidence:
    """Each from a network of its own."""
    return Evidence({peer: NETWORKS[peer] for peer in peers}, peers)


def lied_to(*, size: int = 0) -> Desk:
    """Three servers of 6 layers, and a liar, who says 7 of layers and 99 of rows, and has the last word in the
    index."""
    desk = Desk()
    first = ModelEntry(model=MODEL, peer=ANNA, instance=1, sequence=1, expires_s=NOW_S, layer_count=6, hidden_size=size)
    honest = (ANNA, BERT, CARL)
    desk.shelf.index = [replace(first, peer=peer) for peer in honest]
    desk.shelf.index.append(replace(first, peer=LIAR, layer_count=7, hidden_size=99 if size else 0))
    desk.shelf.shelves[MODEL] = [placed(peer, number, 6) for number, peer in enumerate(honest)]
    desk.shelf.shelves[MODEL].append(placed(LIAR, 9, 7))
    return desk


async def test_the_last_entry_of_the_index_does_not_say_how_many_layers_a_model_has() -> None:
    desk = lied_to()
    await desk.look()
    assert desk.reading.models[MODEL].layers == 6
    for _ in range(5):
        await desk.look(evidence=answers(ANNA, BERT, CARL, LIAR))
    model = desk.reading.models[MODEL]
    assert {seen.peer for seen in model.counting()} == {ANNA, BERT, CARL}


async def test_a_crowd_that_nobody_reaches_leaves_one_that_answers_no_lead() -> None:
    """Whatever was taken for true before anybody was reached."""
    desk = lied_to()
    crowd = [placed(peer, 100 + number, 7) for number, peer in enumerate(PEERS[10:30])]
    desk.shelf.shelves[MODEL] += crowd
    await desk.look()
    assert desk.reading.models[MODEL].layers == 7
    for _ in range(5):
        await desk.look(evidence=answers(ANNA, BERT, CARL, LIAR))
    assert desk.reading.models[MODEL].layers == 6


async def test_who_answered_first_alone_gives_way_to_more_networks() -> None:
    desk = lied_to(size=576)
    await desk.look(evidence=answers(LIAR))
    model = desk.reading.models[MODEL]
    assert (model.layers, model.hidden_size) == (7, 99)
    await desk.look(INDEX_EVERY_S, evidence=answers(LIAR, ANNA))
    assert (model.layers, model.hidden_size) == (7, 99), "as many say so"
    await desk.look(INDEX_EVERY_S, evidence=answers(LIAR, ANNA, BERT))
    assert (model.layers, model.hidden_size) == (6, 576)
    await desk.look(INDEX_EVERY_S, evidence=answers(LIAR, ANNA))
    assert (model.layers, model.hidden_size) == (6, 576), "no wavering between equals"


async def test_rows_that_were_said_before_anybody_answered_give_way_to_who_does() -> None:
    desk = lied_to(size=576)
    desk.shelf.index = desk.shelf.index[-1:]
    await desk.look()
    assert desk.reading.models[MODEL].hidden_size == 99
    desk.shelf.index = lied_to(size=576).shelf.index
    await desk.look(INDEX_EVERY_S, evidence=answers(ANNA, BERT, CARL, LIAR))
    assert desk.reading.models[MODEL].hidden_size == 576


async def test_the_index_does_not_change_the_layers_of_a_model_whose_servers_went() -> None:
    desk = lied_to()
    await desk.look(evidence=answers(ANNA, BERT, CARL))
    desk.shelf.shelves[MODEL] = []
    await desk.look(INDEX_EVERY_S)
    await desk.look(GONE_S + ANNOUNCED_S + INDEX_EVERY_S)
    model = desk.reading.models[MODEL]
    assert (model.layers, dict(model.servers)) == (6, {})


async def test_the_layers_that_are_known_are_not_outvoted_by_who_comes_later() -> None:
    desk = Desk()
    desk.shelf.add(MODEL, ANNA)
    await desk.look()
    desk.shelf.shelves[MODEL] += [listing(peer, layers=4096) for peer in PEERS[1:10]]
    await desk.look()
    model = desk.reading.models[MODEL]
    assert model.layers == 6
    assert [seen.peer for seen in model.counting()] == [ANNA]
    desk.shelf.shelves[MODEL] = desk.shelf.shelves[MODEL][1:]
    await desk.look()
    assert model.layers == 4096, "nobody is left who says otherwise"


async def test_the_rows_of_a_model_are_as_most_say_and_stay_so() -> None:
    desk = Desk()
    for peer, size in zip(PEERS, (0, 576, 576, 9999), strict=False):
        entry = ModelEntry(
            model=MODEL, peer=peer, instance=1, sequence=1, expires_s=NOW_S, layer_count=6, hidden_size=size
        )
        desk.shelf.index.append(entry)
    desk.shelf.shelves[MODEL] = [listing(ANNA)]
    await desk.look()
    assert desk.reading.models[MODEL].hidden_size == 576
    desk.shelf.index += [replace(desk.shelf.index[3], peer=peer) for peer in PEERS[5:20]]
    await desk.look(INDEX_EVERY_S)
    assert desk.reading.models[MODEL].hidden_size == 576
    desk.shelf.index = [desk.shelf.index[0], desk.shelf.index[3]]
    await desk.look(INDEX_EVERY_S)
    assert desk.reading.models[MODEL].hidden_size == 9999, "nobody is left who says otherwise"


async def test_the_rows_of_a_model_are_as_those_say_who_answer() -> None:
    desk = Desk()
    entry = ModelEntry(model=MODEL, peer=ANNA, instance=1, sequence=1, expires_s=NOW_S, layer_count=6, hidden_size=576)
    desk.shelf.index = [entry, *(replace(entry, peer=peer, hidden_size=9999) for peer in PEERS[5:20])]
    await desk.look(evidence=reached(ANNA))
    assert desk.reading.models[MODEL].hidden_size == 576
