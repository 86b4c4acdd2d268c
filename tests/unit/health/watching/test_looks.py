"""One look at all models: how much of each is shown."""

from __future__ import annotations

from sights import NOW_S, PEERS, announced, heard, metrics, server

from swarm.core.ids import ModelId, PeerId
from swarm.core.listing import Listing
from swarm.health.sight import Heard, Seen
from swarm.health.watching.looks import LEAST_SERVERS, MAX_SERVERS, Looker, Looks, Snapshot, snapshot
from swarm.health.watching.reading import ModelRead
from swarm.health.watching.votes import Agreed


def read(number: int, servers: list[Seen]) -> Snapshot:
    """The model of that number, looked at now."""
    name = ModelId("demo", "main", f"{number:016x}")
    read_now = ModelRead(name, told_layers=Agreed(6), servers={one.peer: one for one in servers}, read_at=NOW_S)
    return snapshot(read_now, NOW_S)


def crowd(count: int, prefix: str) -> list[Seen]:
    """Who is only announced."""
    return [
        Seen(Listing(announced(f"{prefix}{number}", 0, 2, 6), b"", metrics(f"{prefix}{number}")), NOW_S)
        for number in range(count)
    ]


def look(models: list[Snapshot], told: dict[PeerId, Heard]) -> list[tuple[str, int, int]]:
    looks = Looks(at=NOW_S, models=models, heard=told, repute={}, contacts=(), moves={})
    states = Looker({}).look(looks)
    return [(state.model, len(state.servers), state.coverage[0].replicas) for state in states]


def test_a_crowd_of_made_up_models_leaves_the_first_one_room_and_the_page_small() -> None:
    real = [server(0, 0, 6), *crowd(300, "far")]
    told = {PEERS[0]: heard()}
    found = look([read(0, real), *(read(number, crowd(100, f"evil{number}")) for number in range(1, 24))], told)
    assert found[0] == (read(0, []).model, 301, 301)
    assert sum(shown for _, shown, _ in found) <= MAX_SERVERS + 24 * LEAST_SERVERS
    assert all(shown >= LEAST_SERVERS for _, shown, _ in found)


def test_of_too_many_servers_those_are_shown_that_serve_and_answer_for_longest() -> None:
    known = server(5, 0, 6)
    lost = {PeerId(f"evil{number}"): Heard(reached=False, since_at=NOW_S) for number in range(MAX_SERVERS)}
    told = lost | {known.peer: heard(since_at=NOW_S - 50)}
    looks = Looks(
        at=NOW_S, models=[read(0, [*crowd(MAX_SERVERS, "evil"), known])], heard=told, repute={}, contacts=(), moves={}
    )
    [state] = Looker({}).look(looks)
    assert len(state.servers) == MAX_SERVERS // 2
    assert known.peer in {one.peer for one in state.servers}
    assert state.coverage[0].silent == MAX_SERVERS, "all are counted"
