"""Proofs over streams, in virtual time: what a holder hands out and to whom, and what a hostile one can do."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from random import Random

import pytest
import pytest_asyncio
from virtual_time import LoopClock

from swarm.core.errors import (
    BadProofError,
    BusyError,
    ConfigError,
    PeerLostError,
    PeerUnreachableError,
    ProtocolViolation,
    RefusedError,
)
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.limits import MAX_PROOF_BYTES
from swarm.transport.framing import FrameStream
from swarm.transport.memory import MemoryNetwork, MemoryTransport
from swarm.transport.proofs import (
    BYTES_PER_S,
    LEAST_BYTES_PER_S,
    MAX_SERVED_AT_ONCE,
    PART_BYTES,
    PART_S,
    REQUEST_S,
    ProofServer,
    fetch_proof,
)
from swarm.transport.protocol import Stream
from swarm.wire.evidence import FetchProof, ProofPart
from swarm.wire.messages import Noop
from swarm.wire.session import Channel, Role

PROOF = Random(0).randbytes(4 * PART_BYTES)
DIGEST = hashlib.sha256(PROOF).digest()
HOLDER = Identity(bytes([1]) * 32).peer_id


class Scene:
    """A holder of one proof, and as many askers as are made."""

    def __init__(self) -> None:
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.holder = self.network.transport(HOLDER)
        self.proofs = {DIGEST: PROOF}
        self.server = ProofServer(self.proofs.get, self.clock)
        self._made = 1

    def asker(self) -> MemoryTransport:
        self._made += 1
        return self.network.transport(Identity(bytes([self._made]) * 32))

    async def fetch(self, asker: MemoryTransport | None = None, *, size: int = len(PROOF), by: bytes = DIGEST) -> bytes:
        return await fetch_proof(asker or self.asker(), HOLDER, by, size=size)

    async def hostile(self, answer: Callable[[FrameStream], Awaitable[None]]) -> None:
        """Put another in the holder's place, which answers every request by ``answer``."""

        async def serve(stream: Stream) -> None:
            frames = FrameStream(stream, Channel.PROOF, Role.LISTENER)
            assert isinstance((await frames.receive()).message, FetchProof)
            await answer(frames)

        await self.holder.listen(Channel.PROOF.protocol, serve)

    @property
    def now_s(self) -> float:
        return self.clock.monotonic_s()


@pytest_asyncio.fixture
async def scene() -> AsyncIterator[Scene]:
    made = Scene()
    yield made
    await made.network.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not others
    assert not made.network._streams


async def test_a_proof_arrives_whole_and_no_faster_than_it_may(scene: Scene) -> None:
    await scene.server.listen(scene.holder)
    large = bytes(3 * BYTES_PER_S + 5)
    scene.proofs[hashlib.sha256(large).digest()] = large
    assert await scene.fetch() == PROOF
    began_s = scene.now_s
    assert await scene.fetch(by=hashlib.sha256(large).digest(), size=len(large)) == large
    assert scene.now_s - began_s == pytest.approx(3.0, abs=0.1)


async def test_an_unknown_one_is_refused(scene: Scene) -> None:
    await scene.server.listen(scene.holder)
    with pytest.raises(RefusedError, match="no such proof"):
        await scene.fetch(by=bytes(32))


async def test_one_peer_gets_only_so_many_bytes_a_second_and_others_are_served_meanwhile(scene: Scene) -> None:
    await scene.server.listen(scene.holder)
    greedy, fetched, waits_s = scene.asker(), 0, []
    began_s = scene.now_s
    while scene.now_s < began_s + 10.0:
        try:
            fetched += len(await scene.fetch(greedy))
        except BusyError as error:
            waits_s.append(error.retry_after_s)
            await scene.clock.sleep(0.01)
    assert 5.0 * BYTES_PER_S < fetched <= 11.0 * BYTES_PER_S
    assert min(waits_s) > 0
    assert await scene.fetch() == PROOF


async def test_only_a_few_are_served_at_once_and_one_of_each_peer(scene: Scene) -> None:
    await scene.server.listen(scene.holder)
    fetches = [asyncio.create_task(scene.fetch()) for _ in range(MAX_SERVED_AT_ONCE + 2)]
    twice = scene.asker()
    fetches += [asyncio.create_task(scene.fetch(twice)) for _ in range(2)]
    results = await asyncio.gather(*fetches, return_exceptions=True)
    assert sum(result == PROOF for result in results) == MAX_SERVED_AT_ONCE
    assert sum(isinstance(result, BusyError) for result in results) == 4
    await scene.clock.sleep(1.0)
    assert await scene.fetch() == PROOF


async def test_attack_a_request_that_never_comes_and_an_asker_that_never_reads(scene: Scene) -> None:
    """Neither holds one of the few places for long."""
    scene.network._buffer_bytes = PART_BYTES
    await scene.server.listen(scene.holder)
    began_s = scene.now_s
    silent = await scene.asker().dial(HOLDER, Channel.PROOF.protocol)
    with pytest.raises(PeerLostError):
        await silent.read_exactly(1)
    assert scene.now_s - began_s == pytest.approx(REQUEST_S, abs=0.1)
    for _ in range(MAX_SERVED_AT_ONCE):
        lazy = FrameStream(await scene.asker().dial(HOLDER, Channel.PROOF.protocol), Channel.PROOF, Role.DIALER)
        await lazy.send(FetchProof(DIGEST))
    await scene.clock.sleep(1.0)
    with pytest.raises(BusyError):
        await scene.fetch()
    await scene.clock.sleep(PART_S)
    assert await scene.fetch() == PROOF


async def test_attack_a_request_that_is_something_else(scene: Scene) -> None:
    await scene.server.listen(scene.holder)
    stream = await scene.asker().dial(HOLDER, Channel.PROOF.protocol)
    await stream.write(b"\xff" * 64)
    with pytest.raises(PeerLostError):
        await stream.read_exactly(1)
    assert await scene.fetch() == PROOF


async def test_attack_a_holder_that_hangs_up_in_the_middle(scene: Scene) -> None:
    async def answer(frames: FrameStream) -> None:
        await frames.send(ProofPart(len(PROOF)), PROOF[:PART_BYTES])

    await scene.hostile(answer)
    with pytest.raises(PeerLostError):
        await scene.fetch()


async def test_attack_a_holder_that_says_nothing(scene: Scene) -> None:
    async def answer(frames: FrameStream) -> None:
        await asyncio.sleep(3600)

    await scene.hostile(answer)
    began_s = scene.now_s
    with pytest.raises(PeerUnreachableError, match="part of the proof"):
        await scene.fetch()
    assert scene.now_s - began_s <= PART_S + 0.1


async def test_attack_a_holder_that_drips(scene: Scene) -> None:
    """A byte now and then keeps no reader for longer than the whole may take."""

    async def answer(frames: FrameStream) -> None:
        for byte in PROOF:
            await frames.send(ProofPart(len(PROOF)), bytes([byte]))
            await asyncio.sleep(1.0)

    await scene.hostile(answer)
    began_s = scene.now_s
    with pytest.raises(PeerUnreachableError, match="did not send the proof within"):
        await scene.fetch()
    assert scene.now_s - began_s == pytest.approx(PART_S + len(PROOF) / LEAST_BYTES_PER_S, abs=0.1)


@pytest.mark.parametrize(
    "parts",
    [
        [(len(PROOF), PROOF + b"more")],
        [(len(PROOF), PROOF[:PART_BYTES])] * 5,
        [(len(PROOF), b"")],
        [(len(PROOF) + 1, PROOF[:PART_BYTES])],
        [(len(PROOF), PROOF[:PART_BYTES]), (MAX_PROOF_BYTES, PROOF[:PART_BYTES])],
        [(len(PROOF), bytes(2 * PART_BYTES + 1))],
    ],
    ids=["too long", "one part too many", "an empty part", "another size", "a size that grows", "a part too large"],
)
async def test_attack_other_lengths_than_were_announced(scene: Scene, parts: list[tuple[int, bytes]]) -> None:
    async def answer(frames: FrameStream) -> None:
        for total, part in parts:
            await frames.send(ProofPart(total), part)
        await asyncio.sleep(100)

    await scene.hostile(answer)
    with pytest.raises((ProtocolViolation, BadProofError)) as caught:
        await scene.fetch()
    assert caught.value.peer == HOLDER


async def test_attack_other_bytes_of_the_right_length(scene: Scene) -> None:
    async def answer(frames: FrameStream) -> None:
        for start in range(0, len(PROOF), PART_BYTES):
            await frames.send(ProofPart(len(PROOF)), bytes(PART_BYTES) if start else PROOF[:PART_BYTES])

    await scene.hostile(answer)
    with pytest.raises(BadProofError, match="another proof") as caught:
        await scene.fetch()
    assert caught.value.peer == HOLDER


async def test_a_holder_that_is_not_there_and_a_size_that_cannot_be(scene: Scene) -> None:
    with pytest.raises(PeerUnreachableError):
        await fetch_proof(scene.asker(), PeerId("12D3KooWNobody"), DIGEST, size=10)
    for size in (0, MAX_PROOF_BYTES + 1):
        with pytest.raises(ConfigError):
            await scene.fetch(size=size)


async def test_attack_another_message_in_a_parts_place(scene: Scene) -> None:
    async def answer(frames: FrameStream) -> None:
        frames._machine.sent = lambda message: None  # type: ignore[method-assign,assignment]
        await frames.send(Noop())
        await asyncio.sleep(100)

    await scene.hostile(answer)
    with pytest.raises(ProtocolViolation):
        await scene.fetch()
