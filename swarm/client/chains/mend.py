"""One attempt to make a chain whole: open who is new, relink who stays, and replay what is lacking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from swarm.client.chains.diagnosis import WORD, Diagnosis, Loss, LossKind
from swarm.client.chains.entrance import Entrance
from swarm.client.chains.member import CLIENT, NOBODY, Ears, Member, Patience, SessionParts
from swarm.client.chains.mend_plan import Replays, clash, replays
from swarm.client.evidence.known import hashes_of
from swarm.client.evidence.receipts import Mended
from swarm.client.plan import Feed
from swarm.core.errors import ChainOpenError, PeerUnreachableError, ProtocolViolation, SwarmError
from swarm.core.limits import PROTOCOL_MAJOR
from swarm.wire.fields import PREFILL_LANE
from swarm.wire.messages import Downstream, Open, Relink, Relinked, Replay, Replayed, Upstream

REPLAY_ROWS = 128
"""Rows of one REPLAY frame the client makes."""
REPLAY_STALL_S = 30.0
"""So long nothing may be replayed, though everybody's pulse goes on, before the last of those who lack rows is lost."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A server that the attempt failed by. ``kind`` is None for a newcomer that never came in."""

    member: Member
    kind: LossKind | None
    error: SwarmError


class AttemptFailed(Exception):
    """The attempt is over."""

    def __init__(self, failures: Sequence[Failure]) -> None:
        super().__init__("; ".join(failure.error.message for failure in failures))
        self.failures = failures


@dataclass(frozen=True, slots=True)
class Rows:
    """The ``keep`` rows that everybody is to hold, how the client makes them, and who is told how far they are.

    Windows below ``signed_rows`` stay as they were signed.
    """

    keep: int
    feed: Feed
    progress: Callable[[int, int], None]
    signed_rows: int = 0


class Attempt:
    """Makes ``order`` a chain. ``raise_generation`` is asked for the generation it does so in.

    ``entrance`` is the link to the first server, or None; it is replaced if that is another one now.
    """

    def __init__(
        self,
        parts: SessionParts,
        order: Sequence[Member],
        entrance: Entrance | None,
        ears: Ears,
        patience: Patience,
        raise_generation: Callable[[], int],
    ) -> None:
        self.order = tuple(order)
        self.entrance = entrance
        self._parts = parts
        self._ears = ears
        self._patience = patience
        self._raise_generation = raise_generation
        self.generation = -1
        self._replays = Replays(-1, {}, frozenset())
        self._replayed: dict[int, int] = {}
        self._fed_rows = 0
        self._keep = self._signed_rows = 0
        self._recomputed: frozenset[int] = frozenset()
        self._fed: list[bytes] = []
        self._moved = asyncio.Event()

    async def run(self, rows: Rows, redial: Collection[tuple[int, int]] = ()) -> None:
        """Do it all; afterwards every member is whole. ``redial`` are links of numbers whose ends dial anew.

        Raises ``AttemptFailed``. Members that are open, and the entrance, are the caller's to close whatever happens.
        """
        self._renew_links(redial)
        lacks = [not member.whole and rows.keep > 0 for member in self.order]
        self._keep, self._signed_rows, dry = rows.keep, rows.signed_rows, set[int]()
        self._note_recomputed()
        while True:
            self._replays = replays(lacks, dry)
            self.generation = self._raise_generation()
            self._replayed = {self.order[place].number: 0 for place in self._replays.targets}
            answers = await self._arrange()
            dry |= {place for place in self._replays.asks if answers[place].logged_rows < rows.keep}
            better = replays(lacks, dry)
            if not clash(self._replays, better, dry):
                break
        self._confine(better)
        for member in self.order[: better.fed + 1]:
            member.whole = False  # until they have computed what they are fed
        self._note_recomputed()
        await self._replay(rows)
        for member in self.order:
            member.whole = True

    def _note_recomputed(self) -> None:
        self._recomputed = frozenset(member.number for member in self.order if not member.whole and self._keep > 0)

    @property
    def mended(self) -> Mended:
        """What it did to the rows, or was about to do."""
        return Mended(self.generation, self._keep, self._signed_rows, self._recomputed, self._fed)

    def hear(self, member: Member, message: Replayed) -> None:
        """A server has computed replayed rows. ``ProtocolViolation`` if that cannot be."""
        if message.generation < self.generation:
            return
        before = self._replayed.get(member.number)
        if message.generation > self.generation or before is None:
            raise ProtocolViolation("REPLAYED, which nobody asked for")
        fed = self._replays.fed >= 0 and member is self.order[self._replays.fed]
        most = self._fed_rows if fed else self._keep
        if not before < message.kv_length <= most:
            raise ProtocolViolation(f"REPLAYED {message.kv_length} rows after {before}, and it got {most}")
        self._replayed[member.number] = message.kv_length
        self._moved.set()

    def _confine(self, better: Replays) -> None:
        """Await only the targets that ``better`` has; who is to be fed cannot have computed anything before."""
        self._replays = better
        self._replayed = {
            self.order[place].number: self._replayed[self.order[place].number] for place in better.targets
        }
        fed = self.order[better.fed] if better.fed >= 0 else None
        if fed is not None and self._replayed[fed.number]:
            lie = ProtocolViolation("it says that it computed rows which nobody had sent", peer=fed.peer)
            raise AttemptFailed([Failure(fed, "failed", lie)])

    # -- opening and relinking ------------------------------------------------------------------------------

    def _renew_links(self, redial: Collection[tuple[int, int]]) -> None:
        """Fresh secrets for the links that change; their ends are told nothing of them yet."""
        first = self.order[0]
        if self.entrance is None or self.entrance.member is not first or first.upstream != CLIENT:
            self.entrance = None
            first.renew_secret()
            first.upstream = NOBODY
        for before, after in pairwise(self.order):
            agreed = before.downstream == after.number and after.upstream == before.number
            if not agreed or (before.number, after.number) in redial:
                after.renew_secret()
                before.downstream = after.upstream = NOBODY

    async def _arrange(self) -> dict[int, Relinked]:
        """Tell every server its neighbours, all at once; the answers of those that were here before, by place."""
        asked: list[tuple[int, Coroutine[Any, Any, Relinked | None]]] = [
            (place, self._relink(place) if member.accepted else self._open(place))
            for place, member in enumerate(self.order)
        ]
        if self.entrance is None:
            self.entrance = Entrance(self.order[0], self._ears)
            asked.append((0, self._enter(self.entrance)))
        outcomes = await asyncio.gather(*(work for _, work in asked), return_exceptions=True)
        failures: list[Failure] = []
        answers: dict[int, Relinked] = {}
        for (place, _), outcome in zip(asked, outcomes, strict=True):
            if isinstance(outcome, SwarmError):
                failures.append(self._failure(self.order[place], outcome))
            elif isinstance(outcome, BaseException):
                raise outcome
            elif outcome is not None:
                answers[place] = outcome
        if failures:
            raise AttemptFailed(failures)
        return answers

    async def _open(self, place: int) -> None:
        member, parts = self.order[place], self._parts
        member.watch(parts.pulse)
        plan, last = parts.plan, len(self.order) - 1
        before = self.order[place - 1].peer if place else parts.transport.peer_id
        message = Open(
            protocol=PROTOCOL_MAJOR,
            model=str(plan.model),
            session=parts.names.session,
            stage=member.number,
            start=member.stage.span.start,
            end=member.stage.span.end,
            embed=plan.embed and place == 0,
            head=plan.head and place == last,
            kv_tokens=plan.kv_tokens,
            numerics=plan.numerics,
            codec=plan.codec,
            upstream=Upstream(before, member.secret),
            downstream=self._downstream(place),
            nonce=parts.names.nonce,
            commitment=parts.names.commitment,
            generation=self.generation,
            priority=plan.priority,
            signed_rows=self._signed_rows,
        )
        self._tell(place)
        try:
            await member.open(parts.transport, message, self._patience)
        except SwarmError:
            parts.witness.asked(member.peer, False)
            raise
        parts.witness.asked(member.peer, True)

    async def _relink(self, place: int) -> Relinked:
        member = self.order[place]
        before = self.order[place - 1] if place else None
        upstream = downstream = None
        if member.upstream == NOBODY:
            upstream = Upstream(before.peer if before else self._parts.transport.peer_id, member.secret)
        if member.downstream == NOBODY:
            downstream = self._downstream(place)
        keep = self._keep if member.whole else 0
        hops = self._replays.asks.get(place)
        message = Relink(self.generation, keep, upstream, downstream, hops, self._signed_rows)
        self._tell(place)
        answer = await member.relink(message, self._patience)
        if answer.kv_length != keep:
            raise ProtocolViolation(f"it holds {answer.kv_length} rows instead of {keep}", peer=member.peer)
        return answer

    async def _enter(self, entrance: Entrance) -> None:
        await entrance.open(self._parts, self.generation, self._patience.dial_s)

    def _downstream(self, place: int) -> Downstream | None:
        if place + 1 == len(self.order):
            return None
        after = self.order[place + 1]
        return Downstream(after.stage.record, after.number, after.secret)

    def _tell(self, place: int) -> None:
        """Note what the member is told of its neighbours, whether it gets there or not."""
        member = self.order[place]
        member.upstream = self.order[place - 1].number if place else CLIENT
        member.downstream = self.order[place + 1].number if place + 1 < len(self.order) else NOBODY

    def _failure(self, member: Member, error: SwarmError) -> Failure:
        if not member.accepted:
            return Failure(member, None, error)
        return Failure(member, "failed" if isinstance(error, ProtocolViolation) else "silent", error)

    # -- replaying ------------------------------------------------------------------------------------------

    async def _replay(self, rows: Rows) -> None:
        """Feed whom nobody else feeds, and wait until everybody has said that he holds the rows."""
        if not self._replayed:
            return
        feeding = asyncio.create_task(self._feed(rows), name="feed a replay")
        feeding.add_done_callback(lambda _: self._moved.set())
        try:
            done = -1
            while done < rows.keep:
                if feeding.done():
                    feeding.result()
                if (least := min(self._replayed.values())) > done:
                    done = least
                    rows.progress(done, rows.keep)
                elif not await self._more():
                    raise AttemptFailed(self._stalled(rows.keep))
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)

    async def _more(self) -> bool:
        """Wait until something moves; False if nothing does for too long."""
        self._moved.clear()
        try:
            async with asyncio.timeout(REPLAY_STALL_S):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True

    async def _feed(self, rows: Rows) -> None:
        hops, entrance, feed = self._replays.fed, self.entrance, rows.feed
        if hops < 0 or entrance is None:
            return
        for begin in range(0, rows.keep, REPLAY_ROWS):
            end = min(begin + REPLAY_ROWS, rows.keep)
            message = Replay(self.generation, begin, end - begin, feed.ids, feed.horizon, hops)
            self._fed_rows = end
            payload = feed.payload(begin, end)
            self._fed += hashes_of(message, payload, self._parts.plan.codec)
            await entrance.send(message, payload, PREFILL_LANE)

    def _stalled(self, keep: int) -> list[Failure]:
        return [
            Failure(
                member,
                "late",
                PeerUnreachableError(f"server {member.stage.short} replayed nothing for {REPLAY_STALL_S:g} s"),
            )
            for member in self.order
            if self._replayed.get(member.number, keep) < keep
        ]


def blame(
    attempt: Attempt, failures: Sequence[Failure], diagnosis: Diagnosis, stayed: Collection[int]
) -> ChainOpenError | None:
    """Whom a failed attempt failed by, with what to tell people: ``failures``, and whoever was lost meanwhile.

    They are noted against the servers. Where only a link broke it is the newcomers at its ends, if there are any
    beside those that ``stayed``, else both ends. None if nobody is to blame.
    """
    blamed: dict[str, SwarmError] = {}
    for failure in failures:
        blamed.setdefault(failure.member.peer, failure.error)
        if failure.kind is not None:
            diagnosis.saw(failure.member.number, WORD, Loss(failure.kind, failure.error))
    lost, order = diagnosis.lost, [member.number for member in attempt.order]
    for member in attempt.order:
        if member.number in lost:
            blamed.setdefault(member.peer, lost[member.number].error)
    cuts, error = diagnosis.cuts(order, attempt.generation), diagnosis.error(order)
    if not blamed and error is not None:
        ends = {number for link in cuts for number in link}
        new = ends - set(stayed) or ends
        blamed = {member.peer: error for member in attempt.order if member.number in new}
    peers = {member.number: member.peer for member in attempt.order}
    return ChainOpenError(blamed, {(peers[one], peers[other]) for one, other in cuts}) if blamed else None
