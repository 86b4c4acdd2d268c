"""A chain driven by hand whose receipts are collected, and checked against what its client knows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from by_hand import HandChain, Place
from fakes import HIDDEN
from harness import MOMENT_S, Node
from tiny_model import LAYERS

from swarm.core.errors import PeerLostError
from swarm.core.numerics import Numerics
from swarm.core.sampling import SamplingParams
from swarm.verification.signed.book import ReceiptBook
from swarm.verification.signed.coverage import CoveredWindow, Known
from swarm.verification.signed.leaves import digest_rows, id_hashes, row_hashes
from swarm.verification.signed.lineage import Lineage
from swarm.verification.signed.merkle import merkle_root
from swarm.verification.signed.receipts import NO_HASH, WINDOW_ROWS, Opening, SignedReceipt, countersign
from swarm.wire.evidence import Countersign, Settle, Settled, Signed
from swarm.wire.messages import Close, LinkLost, Pace, Result
from swarm.wire.tensors import cut_tensor


class SignedChain(HandChain):
    """``settle`` at the end; ``covered`` are the windows that hold then."""

    def __init__(self, client: Any, nodes: Sequence[Node], **opening: Any) -> None:
        super().__init__(client, nodes, **({"kv_tokens": 256} | opening))
        self.book = ReceiptBook(LAYERS)
        self.lineage = Lineage()
        self.tokens: dict[int, int] = {}
        """Tokens the tail chose, by the row they were chosen after."""
        self.settled: dict[int, int] = {}
        self.hashes: dict[int, bytes] = {}
        """Hashes of the rows that a tail without a head sent, by row."""
        self.params = SamplingParams(temperature=1.1, seed=3, top_logprobs=1)
        self.epoch = 0

    async def open(self) -> SignedChain:
        await super().open()
        self.book.layout([opening_of(place, self.client) for place in self.places])
        self.lineage.seat([place.number for place in self.places])
        return self

    async def ask(self, ids: Sequence[int], **changes: Any) -> Result:
        first = changes.get("keep", len(self.ids))
        result = await super().ask(ids, **changes)
        want = len(result.tokens)
        self.tokens |= dict(zip(range(first + len(ids) - want, first + len(ids)), result.tokens, strict=True))
        return result

    async def send(self, ids: Sequence[int], **changes: Any) -> None:
        await super().send(ids, **({"epoch": self.epoch} | changes))
        self.lineage.truncate(changes["keep"])
        self.lineage.compute(changes["keep"] + len(ids))

    async def ask_rows(self, ids: Sequence[int], want: int) -> None:
        """One step, answered with hidden rows."""
        control, keep = self.tail.control, len(self.ids)
        assert control is not None
        assert self.tail.opened is not None
        await self.send(ids, keep=keep, want=want)
        while not isinstance((frame := await control.receive()).message, Result):
            if isinstance(frame.message, Signed):
                self.tail.receipts.append(frame.message)
        self.ids += ids
        dtype = self.tail.node.engine.info.dtype
        parts = cut_tensor(frame.payload, self.tail.opened.codec, dtype, HIDDEN, 0, want)
        digests = digest_rows(want, *(part for part in parts if len(part)))
        self.hashes |= dict(zip(range(len(self.ids) - want, len(self.ids)), row_hashes(digests), strict=True))

    async def roll_back(self, keep: int) -> None:
        """The next step goes on from ``keep`` rows, in a new epoch."""
        self.epoch, self._seq = self.epoch + 1, 0
        self.ids = self.ids[:keep]
        self.tokens = {row: token for row, token in self.tokens.items() if row < keep}
        self.book.truncate(keep, (self.generation, self.epoch))

    async def close(self) -> None:
        """The client is done."""
        for place in self.places:
            assert place.control is not None
            await place.control.send(Close())

    async def settle(self, keep: int | None = None, besides: Sequence[Place] = ()) -> list[CoveredWindow]:
        """Settle with every server, read what it has sent, and check every window."""
        keep = len(self.ids) if keep is None else keep
        for place in self.places:
            if place not in besides:
                await self.ask_to_settle(place, keep)
        self.read_receipts()
        return [self.verified(window, keep) for window in range(-(-keep // WINDOW_ROWS))]

    async def ask_to_settle(self, place: Place, keep: int) -> None:
        assert place.control is not None
        await place.control.send(Settle(keep))
        reply = await self.heard(place)
        assert isinstance(reply, Settled), reply
        self.settled[place.number] = reply.rows

    async def catch_up(self) -> None:
        """Read whatever receipts have been sent by now."""
        for place in self.places:
            assert place.control is not None
            with suppress(TimeoutError, PeerLostError):
                async with asyncio.timeout(MOMENT_S):
                    while isinstance(message := (await place.control.receive()).message, Signed | Pace | LinkLost):
                        place.receipts += [message] if isinstance(message, Signed) else []
                    raise AssertionError(message)
        self.read_receipts()

    def read_receipts(self) -> None:
        """Put into the book what has come so far."""
        for place in self.places:
            for signed in place.receipts:
                mark = (signed.generation, signed.epoch)
                self.book.receive(place.number, signed.receipt, now_s=self.now_s, sent_rows=10_000, mark=mark)
            place.receipts.clear()

    def verified(self, window: int, keep: int) -> CoveredWindow:
        rows = range(window * WINDOW_ROWS, min(keep, (window + 1) * WINDOW_ROWS))
        answers = id_hashes([self.tokens.get(row) for row in rows])
        known = Known(
            positions=(rows.start, rows.stop),
            entry_root=merkle_root(id_hashes([self.ids[row] for row in rows])),
            seams=self.lineage.seams(rows.start, rows.stop),
            exit_root=merkle_root([self.hashes.get(row, answer) for row, answer in zip(rows, answers, strict=True)]),
        )
        return self.book.verify(window, now_s=self.now_s, known=known)

    async def heal_signed(self, lost: Mapping[int, Sequence[Node]], keep: int | None = None) -> None:
        """Heal as a client does that knows which windows have all their receipts."""
        self.read_receipts()
        keep = len(self.ids) if keep is None else keep
        before = list(self.places)
        signed_rows = self.book.whole_rows(keep)
        self.epoch = 0
        said = await self.heal(lost, keep, signed_rows)
        unfed = 0  # places before it are fed from the front, newcomers behind it from logs
        logged = True
        for index, place in enumerate(self.places):
            if place in before:
                logged = said[before.index(place)].logged_rows >= keep
            elif not logged or index == 0:
                logged, unfed = False, index + 1
        again = [place for index, place in enumerate(self.places) if index < unfed or place not in before]
        if self.tail in again:  # rows that it computes again hold no answers
            self.tokens = {row: token for row, token in self.tokens.items() if row < signed_rows}
        openings = [opening_of(place, self.client) for place in self.places]
        self.book.heal(openings, (self.generation, 0), signed_rows=signed_rows)
        self.lineage.seat([place.number for place in self.places])
        self.lineage.truncate(keep)
        numbers = frozenset(place.number for place in again)
        self.lineage.recompute(numbers, keep, signed_rows, self.generation)

    async def countersign(self, place: Place) -> None:
        last = self.book.receipts_of(place.number)[-1]
        await place.control.send(Countersign(countersign(self.client.identity, last.receipt)))

    def receipts(self, place: Place) -> list[SignedReceipt]:
        return self.book.receipts_of(place.number)

    @property
    def now_s(self) -> float:
        return float(self.client.swarm.clock.wall_s())


def opening_of(place: Place, client: Any) -> Opening:
    """What both ends know of a stage."""
    opened, accepted, info = place.opened, place.accepted, place.node.engine.info
    assert opened is not None
    assert accepted is not None
    assert accepted.receipts
    return Opening(
        signer=place.node.peer,
        client=client.peer,
        session=opened.session,
        nonce=opened.nonce,
        stage=place.number,
        start=opened.start,
        end=opened.end,
        model=opened.model,
        calibration=accepted.calibration or NO_HASH,
        numerics=str(Numerics(info.dtype, info.quantization)),
        commitment=opened.commitment,
    )
