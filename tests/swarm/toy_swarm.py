"""Toys and one client on one network, and what a client does with a chain of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from toys import KV_TOKENS, MODEL, PARAMS, Toy, patiently, token_after
from virtual_time import LoopClock

from swarm.client.chains.chain import Chain, ChainPlan, Feed, Loss, Patch
from swarm.core.errors import PeerLostError
from swarm.core.keys import Identity
from swarm.transport.memory import MemoryNetwork
from swarm.transport.pulse import PulseKeeper
from swarm.wire.fields import DECODE_LANE
from swarm.wire.messages import (
    Answer,
    Failed,
    Result,
    Step,
)
from swarm.wire.payload import pack_ids


class Talk:
    """A client that says one token after the other over a chain, and checks every answer."""

    def __init__(self, chain: Chain) -> None:
        self.chain = chain
        self.ids: list[int] = []
        self.seq = 0
        self.progress: list[tuple[int, int]] = []

    async def say(self, *ids: int) -> int:
        step = Step(self.chain.generation, 0, self.seq, len(self.ids), len(ids), 1, ids=True, answer=Answer(0, PARAMS))
        self.seq += 1
        frame = await asyncio.wait_for(await self.chain.send(step, [pack_ids(ids)], DECODE_LANE), 60.0)
        self.ids += ids
        assert isinstance(frame.message, Result)
        assert frame.message.tokens == (token_after(self.ids),), self.ids
        return frame.message.tokens[0]

    async def mend(self, *patches: Patch) -> None:
        """Heal, from the ids if need be; the next step is the first of a new epoch."""

        def payload(a: int, b: int) -> list[bytes | memoryview]:
            return [pack_ids(self.ids[a:b])]

        self.seq = 0
        self.progress.clear()
        await self.chain.mend(patches, len(self.ids), Feed(payload, True, 0), lambda *at: self.progress.append(at))


class ToySwarm:
    """Toys and one client on one network, in virtual time."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.toys: list[Toy] = []
        self.transport = self.network.transport(Identity(b"c" * 32))
        self.pulse = PulseKeeper(self.transport, self.clock)
        self.chains: list[Chain] = []

    async def toy(self, span: str, kind: Callable[..., Toy] = Toy, **options: Any) -> Toy:
        toy = await kind(self.network, len(self.toys) + 1, span, **options).start()
        self.toys.append(toy)
        return toy

    async def several(self, *spans: str) -> list[Toy]:
        return [await self.toy(span) for span in spans]

    async def chain(self, *toys: Toy) -> Chain:
        plan = ChainPlan(MODEL, [toy.stage() for toy in toys], KV_TOKENS, embed=True, head=True)
        chain = await Chain.open(plan, self.transport, self.pulse)
        self.chains.append(chain)
        return chain

    async def talk(self, *toys: Toy, ids: Sequence[int] = (3, 1, 4)) -> Talk:
        """A chain that has been told ``ids``."""
        talk = Talk(await self.chain(*toys))
        await talk.say(*ids)
        return talk

    async def crash(self, toy: Toy) -> None:
        await toy.pulse.close()
        await self.network.kill(toy.peer)

    async def lose(self, talk: Talk, toy: Toy, manner: str) -> None:
        """Take a server of the chain away, and wait until the client has noticed."""
        place = [stage.peer for stage in talk.chain.stages].index(toy.peer)
        match manner:
            case "killed":
                await self.crash(toy)
            case "frozen":
                self.network.freeze(toy.peer)
            case "hangs up":
                await toy.part.control.close()
            case "fails" | "drains" | "is idle":
                fault = {"fails": "server", "drains": "draining", "is idle": "idle"}[manner]
                await toy.part.control.send(Failed(fault, "so it is"))  # type: ignore[arg-type]
            case "slow":
                talk.chain.give_up(place, Loss("slow", PeerLostError("slow", peer=toy.peer)))
        await self.broken(talk.chain)
        assert set(talk.chain.lost) == {place}
        assert not talk.chain.cuts

    async def broken(self, chain: Chain) -> None:
        await patiently(lambda: chain.broken)

    async def close(self) -> None:
        """Everything down; nobody holds a session, no stream is open, no task is left, nobody was told nonsense."""
        for chain in self.chains:
            await chain.close()
        await asyncio.sleep(6.0)  # hellos that wait
        held = [toy.peer for toy in self.toys if toy.parts and not self.network._gate(toy.peer).shut]
        wrong = [text for toy in self.toys for text in toy.wrong]
        await self.pulse.close()
        for toy in self.toys:
            await toy.pulse.close()
        await self.network.close()
        await asyncio.sleep(0.1)
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not held, held
        assert not wrong, wrong
        assert not self.network._streams, self.network._streams
        assert not others, others
