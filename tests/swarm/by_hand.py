"""A chain driven frame by frame: opened, stepped, and healed as a client would, with a hand on every message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fakes import SESSION, FakeClient, heard
from harness import Node

from swarm.core.records import sign_record
from swarm.core.sampling import SamplingParams
from swarm.core.spans import Span
from swarm.transport.framing import FrameStream
from swarm.wire.evidence import Signed
from swarm.wire.fields import DECODE_LANE, LANES, PREFILL_LANE, Lane
from swarm.wire.messages import (
    Accept,
    Answer,
    Downstream,
    LinkLost,
    Open,
    Relink,
    Relinked,
    Replay,
    Replayed,
    Result,
    Step,
    Upstream,
)
from swarm.wire.payload import pack_ids


@dataclass(eq=False)
class Place:
    """One stage as the client arranged it: ``secret`` is that of the links that come in."""

    node: Node
    number: int
    secret: bytes
    span: Span
    control: FrameStream | None = None
    opened: Open | None = None
    accepted: Accept | None = None
    receipts: list[Signed] = field(default_factory=list)
    """Those that came before what was waited for."""

    def upstream(self, peer: str) -> Upstream:
        return Upstream(peer, self.secret)

    def downstream(self) -> Downstream:
        record = sign_record(self.node.identity, self.node.server.parts.announcer.current)
        return Downstream(record, self.number, self.secret)


class HandChain:
    """``ask`` for tokens, then ``heal`` and go on. Token ids enter at the first server, the last one samples."""

    def __init__(self, client: FakeClient, nodes: Sequence[Node], **opening: Any) -> None:
        self.client = client
        self.opening = {"kv_tokens": 96, **opening}
        self.generation = self.signed_rows = 0
        self.ids: list[int] = []
        """Whose rows the chain holds."""
        self._secrets = iter(range(1, 256))
        self._seq = 0
        self.places = self._arranged(nodes)
        self.links: dict[Lane, FrameStream] = {}

    def _arranged(self, nodes: Sequence[Node], start: int = 0, end: int = 5) -> list[Place]:
        """Fresh places for ``nodes`` over the layers from ``start`` to ``end``."""
        places = []
        for index, node in enumerate(nodes):
            number, last = next(self._secrets), index == len(nodes) - 1
            until = end if last else node.engine.info.span.end
            places.append(Place(node, number, bytes([number] * 16), Span(start, until)))
            start = until
        return places

    @property
    def tail(self) -> Place:
        return self.places[-1]

    async def open(self) -> HandChain:
        for place in self.places:
            await self._open(place)
        await self._dial()
        return self

    async def _open(self, place: Place) -> None:
        index = self.places.index(place)
        following = self.places[index + 1] if place is not self.tail else None
        fields: dict[str, Any] = {
            "stage": place.number,
            "start": place.span.start,
            "end": place.span.end,
            "embed": index == 0,
            "head": following is None,
            "upstream": place.upstream(self.places[index - 1].node.peer if index else self.client.peer),
            "downstream": None if following is None else following.downstream(),
            "generation": self.generation,
        }
        fields |= self.opening
        place.opened = self.client.opening(place.node, **fields)
        place.control, reply = await self.client.open(place.node, **fields)
        assert isinstance(reply, Accept), reply
        place.accepted = reply

    async def heard(self, place: Place) -> Any:
        """What a server says next, but for old news: whom it lost before the last heal."""
        assert place.control is not None
        while isinstance(message := await heard(place.control, place.receipts), LinkLost):
            assert message.generation < self.generation, message
        return message

    async def _dial(self) -> None:
        first = self.places[0]
        for lane in LANES:
            self.links[lane] = await self.client.link(
                first.node,
                lane=lane,
                stage=first.number,
                secret=first.secret,
                generation=self.generation,
                session=self.opening.get("session", SESSION),
            )

    # -- steps ----------------------------------------------------------------------------------------------

    async def send(self, ids: Sequence[int], *, keep: int, lane: Lane = DECODE_LANE, **changes: Any) -> None:
        fields = {"generation": self.generation, "epoch": 0, "seq": self._seq, "keep": keep, "rows": len(ids)}
        self._seq += 1
        await self.links[lane].send(Step(**(fields | {"want": 1, "ids": True} | changes)), pack_ids(ids))

    async def ask(self, ids: Sequence[int], **changes: Any) -> Result:
        """One step over ``ids``, and its result."""
        await self.send(ids, keep=len(self.ids), **changes)
        reply = await self.heard(self.tail)
        assert isinstance(reply, Result), reply
        self.ids += ids
        assert reply.kv_length == len(self.ids)
        return reply

    async def prompt(self, ids: Sequence[int], chunk: int = 7, params: SamplingParams | None = None) -> Result:
        """A prefill in chunks on its own lane; the last one's result."""
        answer = None if params is None else Answer(len(ids), params)
        for first in range(0, len(ids), chunk):
            part = ids[first : first + chunk]
            fields: dict[str, Any] = {"lane": PREFILL_LANE, "horizon": len(ids)}
            reply = await self.ask(part, **fields, answer=answer if first + chunk >= len(ids) else None)
        return reply

    async def go_on(self, last: Result, count: int, answer: Answer | None = None) -> list[Result]:
        """``count`` more tokens after ``last``."""
        results = [last]
        for _ in range(count):
            results.append(await self.ask([results[-1].tokens[0]], answer=answer))
            answer = None
        return results[1:]

    # -- healing --------------------------------------------------------------------------------------------

    async def heal(
        self, lost: Mapping[int, Sequence[Node]], keep: int | None = None, signed_rows: int = 0
    ) -> dict[int, Relinked]:
        """Replace places by other servers and feed those; what each survivor said, by its place before the heal."""
        before, keep = list(self.places), len(self.ids) if keep is None else keep
        self.opening["signed_rows"] = self.signed_rows = signed_rows
        runs = self._replace(lost)
        newcomers = [place for run in runs for place in run]
        for place in newcomers:
            await self._open(place)
        said = {}
        for place in self.places:
            if place not in newcomers:
                said[before.index(place)] = await self.relink(place, self.relink_of(place, newcomers, runs, keep))
        if self.places[0] in newcomers:
            await self._dial()
        await self._feed(runs, said, before, keep)
        self.ids, self._seq = self.ids[:keep], 0
        return said

    def _replace(self, lost: Mapping[int, Sequence[Node]]) -> list[list[Place]]:
        """Put newcomers in the lost places; the runs of newcomers side by side."""
        self.generation += 1
        places: list[Place] = []
        runs: list[list[Place]] = []
        for index, place in enumerate(self.places):
            if index in lost:
                fresh = self._arranged(lost[index], place.span.start, place.span.end)
                if index - 1 in lost:
                    runs[-1] += fresh
                else:
                    runs.append(fresh)
                places += fresh
            else:
                places.append(place)
        self.places = places
        for run in runs:
            after = self.places.index(run[-1]) + 1
            if after < len(self.places):
                self.places[after].secret = bytes([next(self._secrets)] * 16)
        return runs

    def relink_of(self, place: Place, newcomers: list[Place], runs: list[list[Place]], keep: int) -> Relink:
        """What a survivor is told."""
        index = self.places.index(place)
        before = self.places[index - 1] if index else None
        after = self.places[index + 1] if place is not self.tail else None
        hops = next((len(run) - 1 for run in runs if run[0] is after), None)
        return Relink(
            self.generation,
            keep,
            place.upstream(before.node.peer) if before in newcomers and before is not None else None,
            after.downstream() if after in newcomers and after is not None else None,
            hops,
            self.signed_rows,
        )

    async def relink(self, place: Place, relink: Relink) -> Relinked:
        assert place.control is not None
        await place.control.send(relink)
        reply = await self.heard(place)
        assert isinstance(reply, Relinked), reply
        assert reply.generation == relink.generation
        return reply

    async def _feed(
        self, runs: list[list[Place]], said: Mapping[int, Relinked], before: list[Place], keep: int
    ) -> None:
        """The tokens from the front, as far as somebody has no log before it; then wait for every run's end."""
        unfed = []
        for run in runs:
            index = self.places.index(run[0])
            logged = said[before.index(self.places[index - 1])].logged_rows if index else 0
            if logged < keep:
                unfed.append(run[-1])
        if unfed:
            await self.replay(keep, hops=self.places.index(unfed[-1]))
        for run in runs:
            rows = keep if run[-1] in unfed[:-1] else 0  # the rows pass through it, and only the last one answers
            while rows < keep:
                reply = await self.heard(run[-1])
                assert isinstance(reply, Replayed), reply
                assert reply.generation == self.generation
                rows = reply.kv_length

    async def replay(self, keep: int, hops: int, chunk: int = 128) -> None:
        """Feed the first ``keep`` tokens in at the front."""
        for first in range(0, keep, chunk):
            part = self.ids[first : min(keep, first + chunk)]
            message = Replay(self.generation, first, len(part), ids=True, horizon=1, hops=hops)
            await self.links[PREFILL_LANE].send(message, pack_ids(part))
