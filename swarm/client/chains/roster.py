"""Who serves a chain, in order: newcomers get their numbers here, and whoever is done without is told so."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

from swarm.client.chains.diagnosis import Diagnosis, Loss
from swarm.client.chains.farewells import Farewells
from swarm.client.chains.member import Ears, Member
from swarm.client.plan import StagePlan
from swarm.core.errors import MisuseError
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_STAGE_NUMBERS
from swarm.wire.messages import Accept


class Roster:
    """The servers of one session; a place is an index into ``members``, who serve now. ``ears`` hear what they say."""

    def __init__(self, diagnosis: Diagnosis, ears: Ears) -> None:
        self.members: tuple[Member, ...] = ()
        self._diagnosis = diagnosis
        self._ears = ears
        self._made = 0
        self._farewells = Farewells()

    @property
    def stages(self) -> tuple[StagePlan, ...]:
        return tuple(member.stage for member in self.members)

    @property
    def numbers(self) -> list[int]:
        """Their names on the wire."""
        return [member.number for member in self.members]

    @property
    def loads(self) -> dict[PeerId, Accept]:
        """What each said of its load when it accepted."""
        return {member.peer: member.load for member in self.members if member.load is not None}

    @property
    def lost(self) -> dict[int, Loss]:
        """The places that are lost."""
        lost = self._diagnosis.lost
        return {place: lost[number] for place, number in enumerate(self.numbers) if number in lost}

    @property
    def cuts(self) -> frozenset[tuple[int, int]]:
        """Links ``(place, place + 1)`` that were reported broken while the servers at both ends live."""
        numbers = self.numbers
        return frozenset((numbers.index(a), numbers.index(b)) for a, b in self._diagnosis.cuts(numbers))

    def newcomers(self, stages: Sequence[StagePlan]) -> list[Member]:
        """Members for ``stages``, who serve once they are seated; ``MisuseError`` if the session had too many."""
        if self._made + len(stages) > MAX_STAGE_NUMBERS:
            raise MisuseError(f"a session opens at most {MAX_STAGE_NUMBERS} stages in its life")
        made = [Member(stage, self._made + index, self._ears) for index, stage in enumerate(stages)]
        self._made += len(stages)
        return made

    def renew(self, stages: Sequence[StagePlan]) -> None:
        """Note newer announcements of those who are here, found by peer id; spans stay as they are."""
        newer = {stage.peer: stage for stage in stages}
        for member in self.members:
            if member.peer in newer:
                stage = newer[member.peer]
                member.stage = StagePlan(stage.announcement, stage.record, member.stage.span)

    def seat(self, order: Sequence[Member]) -> None:
        """From now on these serve; whoever did and does not any more is sent home."""
        before, self.members = self.members, tuple(order)
        for member in before:
            if member not in self.members:
                self.dismiss(member)

    def dismiss(self, member: Member) -> None:
        """Part with a server; whether it reads the farewell or not holds nobody up."""
        member.part()
        self.bid(member.hang_up())

    def dismiss_lost(self) -> None:
        """Part with those who are lost; a slow one may stay after all."""
        for place, loss in self.lost.items():
            if loss.kind != "slow" and not self.members[place].parted:
                self.dismiss(self.members[place])

    def bid(self, ending: Coroutine[Any, Any, Any]) -> None:
        """Have something else of the session end by itself; it raises nothing."""
        self._farewells.bid(ending)

    async def close(self) -> None:
        """Part with everybody at once; return when all farewells are said."""
        for member in self.members:
            member.part()
        await asyncio.gather(*(member.hang_up() for member in self.members), return_exceptions=True)
        await self._farewells.said()
