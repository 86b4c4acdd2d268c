"""Closed sessions as servers leave them: made by hand from a real model, kept and given back by toy servers.

A ``Library`` computes a session through stages that may cheat, and hands out the ``SessionRecord`` that its client
would have. An ``Archive`` is one of its servers, and knows nothing but how to answer a fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from tiny_model import LAYERS
from virtual_time import LoopClock

from swarm.client.evidence.records import SessionRecord, StageRecord
from swarm.client.plan import StagePlan
from swarm.core.announcement import Announcement
from swarm.core.errors import NetworkError, PeerError
from swarm.core.ids import ModelId, PeerId
from swarm.core.keys import Identity
from swarm.core.numerics import Numerics
from swarm.core.sampling import SamplingParams
from swarm.core.spans import Span
from swarm.decoding.history import History
from swarm.decoding.sampling import choose
from swarm.engine.replica import Replica
from swarm.transport.framing import FrameStream
from swarm.transport.memory import MemoryNetwork
from swarm.transport.protocol import Stream
from swarm.verification.challenges.commitment import commit
from swarm.verification.signed.leaves import Answers, Leaf, digest_rows, id_hashes, row_hashes, step_leaves
from swarm.verification.signed.receipts import Opening, sign_receipt
from swarm.verification.signed.windows import WindowBuilder, counter_base
from swarm.verification.verdicts.calibration import Calibration, Floats, calibrate
from swarm.verification.verdicts.sketch import Sketcher
from swarm.wire.evidence import FetchedRows, FetchRows
from swarm.wire.fields import Codec
from swarm.wire.messages import Refused
from swarm.wire.payload import pack_ids
from swarm.wire.session import Channel, Role
from swarm.wire.tensors import cut_tensor, decode_tensor, encode_tensor, from_float32, to_float32

FRAME_ROWS = 50
"""Not a multiple of a window."""
SPANS = (Span(0, 1), Span(1, 3), Span(3, 5))

Cheat = Callable[[Floats, Floats], Floats]
"""Inputs and right outputs ``[n, hidden]`` → the outputs that a server answers with."""


def honest(inputs: Floats, outputs: Floats) -> Floats:
    return outputs


def calibrated(replica: Replica, model: ModelId, texts: int = 4, rows: int = 160) -> Calibration:
    """The replica's model calibrated on random tokens: to a random model they are as good as any text."""
    dice = np.random.default_rng(99)
    ids = [dice.integers(4, replica.info.vocab_size, rows) for _ in range(texts)]
    states = [np.concatenate([replica.embedded(text) for text in ids])]
    for layer in range(LAYERS):
        parts = np.split(states[-1], texts)
        states.append(np.concatenate([replica.outputs(part, span=Span(layer, layer + 1)) for part in parts]))
    counted = np.tile(np.arange(rows) > 0, texts)
    return calibrate(model, np.stack(states), counted, text="random tokens")


@dataclass
class KeptStage:
    """What a server has of one stage. ``sent`` is None at a tail."""

    client: PeerId
    commitment: bytes
    leaves: list[Leaf]
    outputs: bytes
    sent: bytes | None
    codec: Codec
    dtype: str
    hidden: int
    ids: Sequence[int] | None


class Archive:
    """A toy server. ``answer`` is what a subclass, or a test, replaces."""

    def __init__(self, network: MemoryNetwork, seed: int, span: Span, model: ModelId) -> None:
        self.identity = Identity(bytes([seed]) * 32)
        self.transport = network.transport(self.identity)
        self.span = span
        self.model = model
        self.kept: dict[tuple[bytes, int], KeptStage] = {}
        self.asked: list[FetchRows] = []
        self.answer: Callable[[FrameStream, FetchRows], object] = self.give

    async def start(self) -> Archive:
        await self.transport.listen(Channel.FETCH.protocol, self._serve)
        return self

    @property
    def peer(self) -> PeerId:
        return self.identity.peer_id

    def plan(self, numerics: str) -> StagePlan:
        announcement = Announcement(
            model=str(self.model),
            peer=self.peer,
            instance=1,
            sequence=1,
            expires_s=1e10,
            started_s=1.0,
            layer_count=LAYERS,
            start=self.span.start,
            end=self.span.end,
            numerics=Numerics.parse(numerics),
            addresses=self.transport.addresses,
        )
        return StagePlan(announcement, self.peer.encode(), self.span)

    async def _serve(self, stream: Stream) -> None:
        fetch = FrameStream(stream, Channel.FETCH, Role.LISTENER)
        try:
            while True:
                message = (await fetch.receive()).message
                assert isinstance(message, FetchRows)
                self.asked.append(message)
                result = self.answer(fetch, message)
                if asyncio.iscoroutine(result):
                    await result
        except (NetworkError, PeerError):
            return

    async def give(self, fetch: FrameStream, asked: FetchRows) -> None:
        """As an honest server answers."""
        kept = self.kept.get((asked.session, asked.stage))
        if kept is None or fetch.peer != kept.client or commit(asked.secret) != kept.commitment:
            await fetch.send(Refused("no such session"))
            return
        for first in range(asked.first, asked.last, FRAME_ROWS):
            last = min(first + FRAME_ROWS, asked.last)
            ids = asked.want == "sent" and kept.ids is not None
            await fetch.send(FetchedRows(first, last - first, ids), *self.payload(kept, asked, first, last))

    def payload(self, kept: KeptStage, asked: FetchRows, first: int, last: int) -> list[bytes | memoryview]:
        if asked.want == "leaves":
            return [b"".join(leaf.canonical() for leaf in kept.leaves[first:last])]
        if asked.want == "outputs":
            return list(cut_tensor(kept.outputs, "raw", kept.dtype, kept.hidden, first, last))
        head = [] if kept.ids is None else [pack_ids(kept.ids[first:last])]
        return [*head, *cut_tensor(kept.sent or b"", kept.codec, kept.dtype, kept.hidden, first, last)]


@dataclass(kw_only=True)
class Tale:
    """How a session went. ``cheats`` by stage; ``lie`` makes the tail answer with another token."""

    prompt: Sequence[int]
    answers: int = 12
    cheats: Mapping[int, Cheat] = field(default_factory=dict)
    params: SamplingParams = field(default_factory=SamplingParams)
    codec: Codec = "raw"
    numerics: str = "float32"
    remote_head: bool = True
    secret: bytes = bytes(range(32))
    lie: Callable[[int, int], int] = lambda position, token: token
    calibrated: bool = True


class Library:
    """Archives of three stages, the client that had sessions with them, and the weights that all computed with."""

    def __init__(self, replica: Replica, calibration: Calibration, model: ModelId) -> None:
        self.clock = LoopClock()
        self.network = MemoryNetwork(self.clock)
        self.replica = replica
        self.calibration = calibration
        self.model = model
        self.client = Identity(b"c" * 32)
        self.transport = self.network.transport(self.client)
        self.archives = [Archive(self.network, 1 + place, span, model) for place, span in enumerate(SPANS)]
        self._sessions = 0

    async def start(self) -> Library:
        for archive in self.archives:
            await archive.start()
        return self

    async def close(self) -> None:
        await self.network.close()

    def embedded(self, ids: Sequence[int]) -> bytes:
        """What a client with a local head sends for them."""
        return self.replica.embedded(ids).tobytes()

    def session(self, tale: Tale) -> SessionRecord:
        """Compute it, have every stage keep and sign its part, and return what the client knows."""
        ids, answers = list(tale.prompt), list[tuple[int, int]]()
        if tale.remote_head:
            for _ in range(tale.answers):
                row = self.replica.logits(self._flow(ids, tale)[-1][1][-1:])[0]
                token = choose(row, History(ids, answer_start=len(tale.prompt)), len(ids), tale.params).token_id
                answers.append((len(ids) - 1, tale.lie(len(ids) - 1, token)))
                ids.append(answers[-1][1])
            ids.pop()  # what was chosen last was never fed
        flow = self._flow(ids, tale)
        self._sessions += 1
        session = self._sessions.to_bytes(16, "big")
        stages = tuple(self._stage(place, session, tale, ids, answers, flow) for place in range(len(SPANS)))
        return SessionRecord(
            model=self.model,
            layer_count=LAYERS,
            session=session,
            secret=tale.secret,
            token_ids=tuple(ids),
            answers=tuple(answers),
            params=((len(tale.prompt), tale.params),),
            codec=tale.codec,
            remote_head=tale.remote_head,
            horizon=len(ids),
            stages=stages,
            covered_rows=len(ids),
        )

    def _flow(self, ids: Sequence[int], tale: Tale) -> list[tuple[Floats, Floats]]:
        """Inputs as received, and outputs, of every stage."""
        dtype, flow = Numerics.parse(tale.numerics).dtype, list[tuple[Floats, Floats]]()
        rows: Floats = self.replica.embedded(ids)
        for place, span in enumerate(SPANS):
            right = self.replica.outputs(rows if place else list(ids), span=span)
            outputs = np.asarray(tale.cheats.get(place, honest)(rows, right), np.float32)
            outputs = to_float32(from_float32(outputs, dtype), dtype).reshape(outputs.shape)
            flow.append((rows, outputs))
            rows = self._received(outputs, tale.codec, dtype)
        return flow

    def _received(self, outputs: Floats, codec: Codec, dtype: str) -> Floats:
        wire = encode_tensor(from_float32(np.asarray(outputs, np.float32), dtype), codec, dtype, outputs.shape[1])
        return to_float32(decode_tensor(wire, codec, dtype, *outputs.shape), dtype).reshape(outputs.shape)

    def _stage(
        self,
        place: int,
        session: bytes,
        tale: Tale,
        ids: Sequence[int],
        answers: Sequence[tuple[int, int]],
        flow: Sequence[tuple[Floats, Floats]],
    ) -> StageRecord:
        archive, dtype, hidden = self.archives[place], Numerics.parse(tale.numerics).dtype, flow[0][0].shape[1]
        ids_ride = ids if tale.remote_head else None
        tail = place == len(SPANS) - 1

        def digests(rows: bytes) -> list[bytes]:
            pieces = cut_tensor(rows, tale.codec, dtype, hidden, 0, len(ids))
            return digest_rows(len(ids), *(piece for piece in pieces if len(piece)))

        def wire(rows: Floats) -> bytes:
            return bytes(encode_tensor(from_float32(np.asarray(rows, np.float32), dtype), tale.codec, dtype, hidden))

        inputs, computed = flow[place]
        outputs = from_float32(np.asarray(computed, np.float32), dtype)
        if place:
            received = row_hashes(digests(wire(flow[place - 1][1])), ids_ride)
        else:
            received = id_hashes(ids) if tale.remote_head else row_hashes(digests(wire(inputs)))
        sketcher = Sketcher.of(self.calibration, archive.span)
        leaves = step_leaves(
            0,
            received,
            made := digest_rows(len(ids), outputs),
            None if tail else row_hashes(digests(wire(computed)), ids_ride),
            sketches=sketcher.sketch(computed - inputs, first=0).tobytes() if tale.calibrated else b"",
            answers=Answers([made[at] for at, _ in answers], [token for _, token in answers]) if tail else None,
        )
        opening = Opening(
            signer=archive.peer,
            client=self.client.peer_id,
            session=session,
            nonce=session,
            stage=place,
            start=archive.span.start,
            end=archive.span.end,
            model=str(self.model),
            calibration=self.calibration.digest() if tale.calibrated else bytes(32),
            numerics=tale.numerics,
            commitment=commit(tale.secret),
        )
        builder = WindowBuilder(opening, counter_base(self._sessions, 0))
        builder.append(leaves)
        receipts = builder.close(len(ids), 2_000_000_000)
        sent = None if tail else wire(computed)
        peer = self.client.peer_id
        archive.kept[(session, place)] = KeptStage(
            peer, opening.commitment, leaves, outputs, sent, tale.codec, dtype, hidden, ids_ride
        )
        signed = tuple(sign_receipt(archive.identity, receipt) for receipt in receipts)
        return StageRecord(opening, archive.plan(tale.numerics), signed, place - 1 if place else None)
