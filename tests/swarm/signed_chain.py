"""A chain driven by hand whose receipts are collected, and checked against what its client knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from by_hand import HandChain, Place
from harness import LAYERS, Node

from swarm.core.numerics import Numerics
from swarm.verification.book import ReceiptBook
from swarm.verification.coverage import CoveredWindow, Known
from swarm.verification.leaves import id_hashes
from swarm.verification.merkle import merkle_root
from swarm.verification.receipts import NO_HASH, WINDOW_ROWS, Opening, SignedReceipt, countersign
from swarm.wire.evidence import Countersign, Settle, Settled
from swarm.wire.messages import Result


class SignedChain(HandChain):
    """``settle`` at the end; ``covered`` are the windows that hold then."""

    def __init__(self, client: Any, nodes: Sequence[Node], **opening: Any) -> None:
        super().__init__(client, nodes, **({"kv_tokens": 256} | opening))
        self.book = ReceiptBook(LAYERS)
        self.tokens: dict[int, int] = {}
        """Tokens the tail chose, by the row they were chosen after."""
        self.settled: dict[int, int] = {}
        self.fresh_from = 0
        """Rows before it were computed again at the last heal: the tail's receipts hold no answers for them."""

    async def open(self) -> SignedChain:
        await super().open()
        self.book.layout([opening_of(place, self.client) for place in self.places])
        return self

    async def ask(self, ids: Sequence[int], **changes: Any) -> Result:
        first = changes.get("keep", len(self.ids))
        result = await super().ask(ids, **changes)
        want = len(result.tokens)
        self.tokens |= dict(zip(range(first + len(ids) - want, first + len(ids)), result.tokens, strict=True))
        return result

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

    def read_receipts(self) -> None:
        """Put into the book what has come so far."""
        for place in self.places:
            for signed in place.receipts:
                mark = (signed.generation, signed.epoch)
                self.book.receive(place.number, signed.receipt, now_s=self.now_s, sent_rows=10_000, mark=mark)
            place.receipts.clear()

    def verified(self, window: int, keep: int) -> CoveredWindow:
        rows = range(window * WINDOW_ROWS, min(keep, (window + 1) * WINDOW_ROWS))
        answers = [self.tokens.get(row) if row >= self.fresh_from else None for row in rows]
        known = Known(
            positions=(rows.start, rows.stop),
            entry_root=merkle_root(id_hashes([self.ids[row] for row in rows])),
            exit_root=merkle_root(id_hashes(answers)) if self.opening.get("head", True) else None,
        )
        return self.book.verify(window, now_s=self.now_s, known=known)

    async def heal_signed(self, lost: Mapping[int, Sequence[Node]], keep: int | None = None) -> None:
        """Heal as a client does that knows which windows have all their receipts."""
        self.read_receipts()
        keep = len(self.ids) if keep is None else keep
        before = list(self.places)
        signed_rows = self.book.whole_rows(keep)
        said = await self.heal(lost, keep, signed_rows)
        newcomers = [place for place in self.places if place not in before]
        fed_to = [index for index, place in enumerate(self.places) if place in newcomers]
        unlogged = any(said[index - 1].logged_rows < keep for index in fed_to if index and index - 1 in said)
        again = self.places[: fed_to[-1] + 1] if unlogged or 0 in fed_to else newcomers
        cut = [
            (one.number, other.number)
            for one, other in zip(self.places, self.places[1:], strict=False)
            if one in again and other not in again
        ]
        if self.tail in again:
            self.fresh_from = keep
        openings = [opening_of(place, self.client) for place in self.places]
        self.book.heal(openings, (self.generation, 0), keep=keep, signed_rows=signed_rows, cut=cut)

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
