"""One look at everything that is known, made into the models' states; what did not change is not made again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from swarm.core.announcement import Reach
from swarm.core.ids import PeerId
from swarm.health.picture.advice import contacts
from swarm.health.picture.building import build
from swarm.health.sight import NOTHING_HEARD, Heard, Repute, Seen, Sight
from swarm.health.state import ModelState
from swarm.health.watching.forecasts import Forecasts
from swarm.health.watching.quiet import carried
from swarm.health.watching.reading import Evidence, ModelRead, Reading
from swarm.health.watching.visiting import Target
from swarm.transport.addresses import join_peer

CONTACTS_FROM = 8
"""Servers whose addresses are weighed for a volunteer's command, those this page has reached for longest."""


MAX_SERVERS = 4000
"""On a page,"""
LEAST_SERVERS = 8
"""and so many of a model that comes late."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A model as the directory had it at one moment: the next reading changes nothing of it. See ``Sight``."""

    model: str
    layers: int
    hidden_size: int | None
    since_at: float
    as_of: float
    servers: Sequence[Seen]


@dataclass(frozen=True, slots=True)
class Looks:
    """What all models are made of; see ``Sight``. ``models`` are those to show, the most important first."""

    at: float
    models: Sequence[Snapshot]
    heard: Mapping[PeerId, Heard]
    repute: Mapping[PeerId, Repute]
    contacts: Sequence[str]
    moves: Mapping[str, int]


class Looker:
    """Remembers the last states and predictions. One look at a time, in any thread."""

    def __init__(self, hidden_sizes: Mapping[str, int]) -> None:
        self._hidden_sizes = hidden_sizes
        self._states: dict[str, ModelState] = {}
        self._forecasts = Forecasts()

    def look(self, looks: Looks) -> list[ModelState]:
        """The models, those with servers first. Some 100 ms for 500 servers of 60 layers, on one core.

        Of all servers ``MAX_SERVERS`` and some are shown: of the first model as many as half of that, of the next half
        of what is left, and so on.
        """
        sights = []
        left = MAX_SERVERS
        for model in looks.models:
            sights.append(self._sight(model, looks, max(left // 2, LEAST_SERVERS)))
            left = max(left - min(len(sights[-1].servers), sights[-1].most_servers), 0)
        predicted = self._forecasts.predicted(sights)
        self._states = {
            sight.model: carried(self._states.get(sight.model), build(sight, predicted[sight.model]))
            for sight in sights
        }
        return sorted(self._states.values(), key=lambda state: not state.servers)

    def _sight(self, known: Snapshot, looks: Looks, most_servers: int) -> Sight:
        return Sight(
            model=known.model,
            layers=known.layers,
            at=looks.at,
            as_of=known.as_of,
            since_at=known.since_at,
            servers=known.servers,
            most_servers=most_servers,
            heard=looks.heard,
            repute=looks.repute,
            hidden_size=self._hidden_sizes.get(known.model, known.hidden_size),
            contacts=looks.contacts,
            moves=looks.moves.get(known.model, 0),
            chains=_stages(self._states.get(known.model)),
        )


def _stages(state: ModelState | None) -> dict[str, frozenset[str]]:
    chains = [] if state is None else state.chains
    return {chain.label: frozenset(stage.peer for stage in chain.stages) for chain in chains}


def snapshot(read: ModelRead, now_s: float) -> Snapshot:
    """What is known of a model at wall time ``now_s``. To be taken where the directory is read, not in a thread: a
    reading in between would have servers of one count and layers of another. O(servers)."""
    return Snapshot(
        model=str(read.model),
        layers=read.layers,
        hidden_size=read.hidden_size,
        since_at=read.first_at,
        as_of=read.as_of(now_s),
        servers=read.counting(),
    )


def listed(reading: Reading, model: str) -> list[PeerId]:
    """Who serves a model at present, as the directory has it."""
    known = reading.models.get(model)
    return [] if known is None else [peer for peer, seen in known.servers.items() if not seen.gone]


def targets(reading: Reading) -> dict[PeerId, Target]:
    """Whom to ask how they are: every server."""
    found: dict[PeerId, Target] = {}
    for model in reading.models.values():
        for server in model.servers.values():
            told = server.listing.announcement
            found.setdefault(server.peer, Target(told.addresses, told.instance))
    return found


def evidence(heard: Mapping[PeerId, Heard]) -> Evidence:
    """What this page's own questions came to."""
    return Evidence(
        reached={peer: known.network for peer, known in heard.items() if known.reached},
        answered={peer for peer, known in heard.items() if known.heard_at is not None},
    )


def checked(repute: Mapping[PeerId, Repute]) -> set[PeerId]:
    """Whose work this machine has audited, and found nothing wrong with."""
    return {peer for peer, known in repute.items() if known.audited and not known.strikes and not known.ejected}


def tried(heard: Mapping[PeerId, Heard]) -> bool:
    """True once a try to reach each server has come to an end."""
    return all(one.reached is not None for one in heard.values())


def joined_by(reading: Reading, heard: Mapping[PeerId, Heard], initial_peers: Sequence[str]) -> list[str]:
    """Addresses for a volunteer's command: own ones, and those of servers that this page has reached for longest.

    What a server says of its own age does not count: whoever is named here is whom newcomers join the swarm by.
    """
    reached = [
        (heard[server.peer].since_at, server)
        for model in reading.models.values()
        for server in model.servers.values()
        if heard.get(server.peer, NOTHING_HEARD).reached and server.listing.announcement.reach is Reach.DIRECT
    ]
    reached.sort(key=lambda one: (one[0], one[1].peer))
    theirs = [
        [join_peer(address, server.peer) for address in server.listing.announcement.addresses]
        for _, server in reached[:CONTACTS_FROM]
    ]
    return contacts(initial_peers, theirs)
