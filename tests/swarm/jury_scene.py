"""Nodes with a jury and a voice each, on one network and one directory, and servers that are spoken of."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random

from proofs_at_hand import fraud_against, signed_accusation
from virtual_time import LoopClock

from swarm.client.judging.accuser import Accuser
from swarm.client.judging.jury import Jury
from swarm.client.judging.seat import Seat
from swarm.core.accusation import ProofRef
from swarm.core.announcement import Announcement
from swarm.core.errors import BadProofError
from swarm.core.ids import ModelId, PeerId
from swarm.core.keys import Identity
from swarm.core.numerics import Numerics
from swarm.core.records import sign_record
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.runtime.reputation import IN_MEMORY, ReputationStore
from swarm.transport.memory import MemoryNetwork

MODEL = ModelId.parse("demo@main#0123456789abcdef")
SERVERS = [Identity(bytes([100 + number]) * 32) for number in range(8)]
CHEAT, HONEST, OTHER = (server.peer_id for server in SERVERS[:3])


class Citizen:
    """One node with a store, a jury that knows which proofs are true, and a voice."""

    def __init__(self, scene: Scene, number: int, *, can_verify: bool = True) -> None:
        self.identity = Identity(bytes([number]) * 32)
        self.transport = scene.network.transport(self.identity)
        self.directory = MemoryDirectory(scene.store)
        self.store = ReputationStore(IN_MEMORY, scene.clock)
        self.verified: list[bytes] = []
        self.scene = scene
        seat = Seat(self.transport, self.directory, scene.clock, MODEL, self.store)
        self.voice = Accuser(seat, self.identity)
        self.jury = Jury(
            seat,
            self.listed,
            accuser=self.voice,
            verify=self.verify if can_verify else None,
            chance=Random(number),
        )

    async def listed(self) -> Sequence[PeerId]:
        return self.scene.servers

    async def verify(self, proof: bytes) -> None:
        self.verified.append(proof)
        if proof not in self.scene.true:
            raise BadProofError("the server is right")

    async def look(self) -> None:
        """One look, and everything that it sets going."""
        await self.jury.look()
        while self.jury._judging:
            await asyncio.wait(self.jury._judging)


class Scene:
    def __init__(self) -> None:
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.store = MemoryDirectoryStore(self.clock)
        self.servers: list[PeerId] = [server.peer_id for server in SERVERS]
        self.true: set[bytes] = set()
        self.citizens: list[Citizen] = []

    async def citizen(self, *, can_verify: bool = True, serves: bool = True) -> Citizen:
        made = Citizen(self, len(self.citizens) + 1, can_verify=can_verify)
        self.citizens.append(made)
        if serves:
            await made.voice.serve()
        return made

    def fraud(self, server: int = 0, session: int = 1, *, true: bool = True) -> bytes:
        proof = fraud_against(SERVERS[server], MODEL, session=session)
        if true:
            self.true.add(proof)
        return proof

    async def announce(self, *servers: int) -> None:
        for number in servers:
            now_s = self.clock.wall_s()
            record = Announcement(
                model=str(MODEL), layer_count=4, peer=SERVERS[number].peer_id, start=0, end=4,
                numerics=Numerics("float32"), instance=1, sequence=1, started_s=now_s, expires_s=now_s + 500,
            )  # fmt: skip
            await MemoryDirectory(self.store).publish(sign_record(SERVERS[number], record), record)

    async def end(self) -> None:
        """Everything down, no task left."""
        for citizen in self.citizens:
            await citizen.jury.close()
            citizen.store.close()
        await self.network.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}


async def publish(citizen: Citizen, subject: PeerId, *proofs: ProofRef) -> None:
    server = next(server for server in SERVERS if server.peer_id == subject)
    now_s = citizen.scene.clock.wall_s()
    value, record = signed_accusation(citizen.identity, server, MODEL, now_s, proofs=proofs)
    await citizen.directory.publish(value, record)
