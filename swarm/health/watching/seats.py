"""Whom to ask where more servers are announced than can be asked. Pure.

Peer ids cost nothing, so they do not count. What counts is what strangers have not for nothing: that this machine
audited their work, that they have answered for long, that those who have say to send them rows, and a network of
their own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from swarm.core.ids import PeerId

ELDERS = 0.5
"""Of the seats go to those who have answered for longest,"""
ELDERS_OF_ONE = 0.125
"""of these to one network."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What is known of a server that wants a seat. Times are of one clock, in seconds.

    ``network`` is where it is (``networks.network_of``), ``met_s`` when it was first heard of. ``since_s``: it has
    answered since then, as far as it was asked; None: never, or not any more. ``tried_s`` is when it had a seat last,
    None: never. ``vouched_s``: one that answers since then says to send it rows. ``seated``: it has a seat.
    """

    peer: PeerId
    network: str
    met_s: float = 0.0
    audited: bool = False
    since_s: float | None = None
    tried_s: float | None = None
    vouched_s: float | None = None
    seated: bool = False

    @property
    def lost(self) -> bool:
        """It was tried, and does not answer."""
        return self.tried_s is not None and self.since_s is None


def fair(groups: Sequence[int], room: int) -> list[int]:
    """How much of ``room`` each of ``groups``, which want so much, gets: all the same, but nobody more than wanted.

    What is left over of an equal share goes to the first ones. O(groups log groups).
    """
    given = [0] * len(groups)
    left = room
    order = sorted(range(len(groups)), key=lambda place: groups[place])
    for done, place in enumerate(order):
        given[place] = min(groups[place], left // (len(order) - done))
        left -= given[place]
    for place, wanted in enumerate(groups):
        if left and given[place] < wanted:
            given[place] += 1
            left -= 1
    return given


def seats(candidates: Iterable[Candidate], room: int) -> list[PeerId]:
    """Who gets one of ``room`` seats for as long as nobody with more to show comes.

    Half go to who has answered for longest, an eighth of them to one network at most: no crowd of newcomers, from
    however many networks, takes these. The others go round the networks, one to each in turn, to those who answer; then
    to those never tried, then to the rest. O(candidates log candidates).
    """
    ranked = sorted(candidates, key=_rank)
    if len(ranked) <= room:
        return [one.peer for one in ranked]
    chosen = _elders(ranked, int(room * ELDERS))
    taken: dict[str, int] = defaultdict(int)
    for one in chosen.values():
        taken[one.network] += 1
    for wanted in (_answers, _is_new, _is_lost):
        _go_round([one for one in ranked if wanted(one) and one.peer not in chosen], taken, chosen, room)
    return list(chosen)


def guests(candidates: Iterable[Candidate], room: int) -> list[PeerId]:
    """Who of those without a seat is to be tried next, ``room`` at most.

    Half of the turns are for who was never tried: whom others vouch for first, the longer these answer the sooner, then
    round the networks. The other half are for who was tried longest ago; turns that one half does not need the other
    takes. O(candidates log candidates).
    """
    waiting = list(candidates)
    new = sorted((one for one in waiting if one.tried_s is None), key=lambda one: (one.met_s, one.peer))
    vouched = sorted((one for one in new if one.vouched_s is not None), key=lambda one: (one.vouched_s, one.peer))
    queue = {one.peer: one for one in vouched[:room]}
    _go_round([one for one in new if one.vouched_s is None], defaultdict(int), queue, room)
    known = [one for one in waiting if one.tried_s is not None]
    known.sort(key=lambda one: (one.tried_s, one.peer))
    of_new, of_known = fair([len(queue), len(known)], room)
    return [*list(queue)[:of_new], *(one.peer for one in known[:of_known])]


def _rank(one: Candidate) -> tuple[object, ...]:
    since_s = float("inf") if one.since_s is None else one.since_s
    vouched_s = float("inf") if one.vouched_s is None else one.vouched_s
    return not one.audited, since_s, vouched_s, not one.seated, one.met_s, one.peer


def _answers(one: Candidate) -> bool:
    return one.since_s is not None


def _is_new(one: Candidate) -> bool:
    return one.tried_s is None and one.since_s is None


def _is_lost(one: Candidate) -> bool:
    return one.lost


def _elders(ranked: Sequence[Candidate], room: int) -> dict[PeerId, Candidate]:
    most = max(1, int(room * ELDERS_OF_ONE))
    of_network: dict[str, int] = defaultdict(int)
    chosen: dict[PeerId, Candidate] = {}
    for one in ranked:
        if len(chosen) < room and _answers(one) and of_network[one.network] < most:
            of_network[one.network] += 1
            chosen[one.peer] = one
    return chosen


def _go_round(ranked: Sequence[Candidate], taken: dict[str, int], chosen: dict[PeerId, Candidate], room: int) -> None:
    """Fill ``chosen`` up to ``room``: always the first of the network that has the fewest; ``taken`` says how many."""
    queues: dict[str, list[Candidate]] = defaultdict(list)
    place: dict[str, int] = {}
    for number, one in enumerate(ranked):
        queues[one.network].append(one)
        place.setdefault(one.network, number)
    heap = [(taken[network], place[network], network) for network in queues]
    heap.sort()
    next_of = dict.fromkeys(queues, 0)
    while heap and len(chosen) < room:
        _, number, network = heappop(heap)
        one = queues[network][next_of[network]]
        chosen[one.peer] = one
        taken[network] += 1
        next_of[network] += 1
        if next_of[network] < len(queues[network]):
            heappush(heap, (taken[network], number, network))
