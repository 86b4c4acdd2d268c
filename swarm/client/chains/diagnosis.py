"""Who is lost: what the client saw itself, and what servers say of each other, weighed. Pure: no clock, no stream."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Literal

from swarm.core.errors import PeerLostError, ProtocolViolation, SwarmError
from swarm.core.ids import PeerId
from swarm.wire.messages import LinkLost

LossKind = Literal["gone", "silent", "failed", "beside", "late", "slow", "draining", "idle"]
"""How a server was lost.

``gone``: its stream ended. ``silent``: its pulses stopped. ``failed``: it said so, broke the protocol, or lied.
``beside``: it stood beside too many losses, which may have been theirs. ``late``: it kept a step or a replay past its
deadline. Nobody's fault: ``slow`` (alive, and could go on), ``draining`` (its owner stopped it), ``idle`` (nothing came
for too long).
"""
FAULTS = frozenset[LossKind]({"gone", "silent", "failed", "beside", "late"})
TELLING = frozenset[LossKind]({"failed", "late"})
"""Losses that a server before the lost one may have caused, by what it sent or did not send."""

LINK, WORD, CRIME = 1, 2, 3
"""Weights of own evidence: a link to a server closed, the server's own end or silence or word, a broken protocol."""
MAX_STRIKES = 2
"""So many neighbours lost on its word, or by theirs, or failed right behind it, and a server is lost as well."""
MAX_FAILED_BEHIND = 3
"""So many servers failed anywhere behind it, whoever stood between, and a server is lost as well."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Why a server serves no more; ``error`` is what a person is told."""

    kind: LossKind
    error: SwarmError


@dataclass(frozen=True, slots=True)
class Seat:
    """A server in a chain: its number in the session, who it is, and what people call it."""

    number: int
    peer: PeerId
    name: str


class Diagnosis:
    """All evidence of a session's life, and what follows from it for the servers that sit in the chain now.

    What the client sees of a server itself beats what others say of it. A broken link that only others speak of is a
    *cut*: either end may be at fault. Whoever has cuts with ``MAX_STRIKES`` servers, one after the other or at once,
    is lost, and its word counts no more; so a server cannot talk the client out of all others. Nor can it break them:
    failures right behind it count like cuts, and ``MAX_FAILED_BEHIND`` failures anywhere behind it suffice.

    Wrong where an honest server stands beside two culprits in a row: it is dropped with them. Ties go to whoever
    reported more, then to the lower number. A verdict takes time in the number of losses squared.
    """

    def __init__(self, client: PeerId) -> None:
        self._client = client
        self._generation = 0
        self._whole_since = 0
        self._seats: tuple[Seat, ...] = ()
        self._known: dict[int, Seat] = {}
        self._since: dict[int, int] = {}
        self._beside: defaultdict[int, set[str]] = defaultdict(set)
        self._seen: dict[int, tuple[int, Loss]] = {}
        self._told: dict[tuple[int, int], tuple[int, SwarmError]] = {}
        self._before: dict[int, tuple[int, ...]] = {}
        self._excused: set[int] = set()

    def seat(self, generation: int, seats: Sequence[Seat]) -> None:
        """From now on these servers are the chain, in this order."""
        self._generation = generation
        self._seats = tuple(seats)
        for seat in seats:
            self._known[seat.number] = seat
            self._since.setdefault(seat.number, generation)
        peers = [self._client, *(seat.peer for seat in seats)]
        for place, seat in enumerate(seats):
            self._beside[seat.number] |= {self._client, peers[place], *peers[place + 2 : place + 3]}

    # -- evidence -------------------------------------------------------------------------------------------

    def saw(self, number: int, weight: int, loss: Loss) -> bool:
        """Note own evidence of a server; False if there is as good already: the heaviest counts, then the first."""
        if number in self._seen and self._seen[number][0] >= weight:
            return False
        self._seen[number] = (weight, loss)
        order = [seat.number for seat in self._seats]
        if loss.kind in TELLING and number in order:
            self._before[number] = tuple(order[: order.index(number)])
        return True

    def told(self, reporter: int, message: LinkLost) -> bool:
        """A server's word that it lost a neighbour; False if that is nothing new.

        That of an older generation, or of somebody who is its neighbour no more, is old news. Raises
        ``ProtocolViolation`` for one of a generation to come, or about somebody who never was its neighbour.
        """
        place = next((place for place, seat in enumerate(self._seats) if seat.number == reporter), None)
        if place is None:
            return False
        if message.generation > self._generation:
            raise ProtocolViolation(f"a link lost in generation {message.generation}, and this is {self._generation}")
        if message.peer not in self._beside[reporter]:
            raise ProtocolViolation(f"it lost {message.peer[-8:]}, who never was its neighbour")
        if message.generation < self._generation:
            return False
        if message.peer == self._client and place == 0:
            me = self._seats[0]
            error = PeerLostError(f"server {me.name} lost this client", peer=me.peer)
            return self.saw(reporter, LINK, Loss("gone", error))
        beside = (*self._seats[max(place - 1, 0) : place], *self._seats[place + 1 : place + 2])
        new = [
            self._tell((reporter, seat.number), seat, message.reason) for seat in beside if seat.peer == message.peer
        ]
        return any(new)

    def _tell(self, link: tuple[int, int], lost: Seat, reason: str) -> bool:
        if link in self._told and self._told[link][0] == self._generation:
            return False
        error = PeerLostError(f"server {lost.name} was lost: {reason}", peer=lost.peer)
        self._told[link] = (self._generation, error)
        return True

    def settle(self) -> None:
        """The chain is whole: links that were cut in earlier generations are no more."""
        self._whole_since = self._generation

    def forgive(self, number: int) -> None:
        """A slow server goes on after all."""
        if number in self._seen and self._seen[number][1].kind == "slow":
            del self._seen[number]

    def excuse(self, numbers: Iterable[int]) -> None:
        """Leave these out of ``culprits``: somebody else answers for them."""
        self._excused |= set(numbers)

    # -- what follows ---------------------------------------------------------------------------------------

    @property
    def lost(self) -> dict[int, Loss]:
        """Everybody who is lost, by number, whether he still sits in the chain or not."""
        lost = {number: loss for number, (_, loss) in self._seen.items()}
        while (worst := self._worst(lost)) is not None:
            seat = self._known[worst]
            reason = f"server {seat.name} stood beside too many servers that were lost"
            lost[worst] = Loss("beside", PeerLostError(reason, peer=seat.peer))
        return lost

    def cuts(self, order: Sequence[int], since: int | None = None) -> frozenset[tuple[int, int]]:
        """Broken links between two that stand side by side in ``order`` and are not lost, as pairs of numbers.

        Only those that were reported in generation ``since`` or later; without it, since the chain was last whole.
        """
        since = self._whole_since if since is None else since
        broken = {frozenset(pair) for pair in self._unexplained(self.lost) if self._told[pair][0] >= since}
        return frozenset(pair for pair in pairwise(order) if frozenset(pair) in broken)

    def error(self, order: Sequence[int]) -> SwarmError | None:
        """The best reason there is for what is broken in ``order``; None if nothing is."""
        lost, cuts = self.lost, self.cuts(order)
        by_weight = sorted(self._seen, key=lambda number: -self._seen[number][0])
        for number in (*by_weight, *lost):
            if number in lost and number in order:
                return lost[number].error
        return next((error for pair, (_, error) in self._told.items() if pair in cuts or pair[::-1] in cuts), None)

    @property
    def culprits(self) -> frozenset[PeerId]:
        """Who was at fault, over the session's whole life.

        Of a cut that was mended it is the end that was replaced, for the other one has proved well since; nobody if the
        two reached each other in the end. Of one that is open it is both.
        """
        lost, present = self.lost, {seat.number for seat in self._seats}
        guilty = {number for number, loss in lost.items() if loss.kind in FAULTS}
        for pair in self._unexplained(lost):
            healed = self._told[pair][0] < self._whole_since
            guilty |= set(pair) - present or (set() if healed and set(pair) <= present else set(pair))
        return frozenset(self._known[number].peer for number in guilty - self._excused if number in self._known)

    def _unexplained(self, lost: Mapping[int, Loss]) -> Iterator[tuple[int, int]]:
        """Reporter and reported of broken links between servers that are not lost for a better reason."""
        return (pair for pair in self._told if pair[0] not in lost and pair[1] not in lost)

    def _worst(self, lost: Mapping[int, Loss]) -> int | None:
        """The next to be lost for what happened beside or behind him; None if there is nobody."""
        strikes: defaultdict[int, set[tuple[str, int]]] = defaultdict(set)
        behind: defaultdict[int, set[tuple[str, int]]] = defaultdict(set)
        reports: defaultdict[int, int] = defaultdict(int)
        for reporter, reported in self._unexplained(lost):
            strikes[reporter].add(self._identity(reported))
            strikes[reported].add(self._identity(reporter))
            reports[reporter] += 1
        for failed, before in self._before.items():
            for number in before:
                behind[number].add(self._identity(failed))
            for number in before[-1:]:
                if not any(other in lost and lost[other].kind in ("failed", "beside") for other in before[:-1]):
                    strikes[number].add(self._identity(failed))
        suspects = [
            number
            for number in set(chain(strikes, behind)) - set(lost)
            if len(strikes[number]) >= MAX_STRIKES or len(behind[number]) >= MAX_FAILED_BEHIND
        ]
        return max(
            suspects,
            key=lambda number: (len(strikes[number]), len(behind[number]), reports[number], -number),
            default=None,
        )

    def _identity(self, number: int) -> tuple[str, int]:
        """Tells a server that came back from itself, but not its two places in one chain."""
        return self._known[number].peer, self._since[number]
