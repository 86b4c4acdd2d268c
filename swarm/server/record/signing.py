"""What all receipts of a server share: its key, its counters, how long they count, and the desk they are written at."""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from swarm.core.announcement import Announcement
from swarm.core.clock import Clock
from swarm.core.errors import ConfigError
from swarm.core.keys import Identity
from swarm.core.spans import Span
from swarm.verification.signed.receipts import NO_HASH, Opening, Receipt, SignedReceipt, sign_receipt
from swarm.verification.signed.windows import WindowBuilder, counter_base
from swarm.verification.verdicts.calibration import Calibration
from swarm.verification.verdicts.sketch import Sketcher
from swarm.wire.messages import Open

MAX_SKETCHERS = 16
"""Spans whose projections are kept ready, 192 · hidden bytes each: clients choose which parts of a span they use."""


class Desk:
    """Signs for one server. ``turn`` is held while a window is made, so that only one is made in a turn of the loop.

    Counters never repeat, neither over sessions nor over restarts (``counter_base``), whatever clients do. Receipts
    count ``lifetime_s`` from when they are signed. Raises ``ConfigError`` for another model's calibration.
    """

    def __init__(
        self,
        identity: Identity,
        clock: Clock,
        announced: Announcement,
        lifetime_s: float,
        calibration: Calibration | None,
    ) -> None:
        if calibration is not None:
            header = calibration.header
            if (header.model, header.layers) != (announced.model, announced.layer_count):
                raise ConfigError(f"a calibration of {header.model} for a server of {announced.model}")
        self.turn = asyncio.Lock()
        self.signed = 0
        """Receipts, since the desk was set up."""
        self.countersigned = 0
        """Sessions whose client signed that it was served."""
        self.calibration_digest = b"" if calibration is None else calibration.digest()
        self._identity = identity
        self._clock = clock
        self._lifetime_s = lifetime_s
        self._calibration = calibration
        self._base = 0
        self._sketchers: OrderedDict[Span, Sketcher] = OrderedDict()

    @property
    def expires_s(self) -> int:
        """Until when a receipt counts that is signed now."""
        return int(self._clock.wall_s() + self._lifetime_s)

    def opening(self, client: str, opened: Open, announced: Announcement) -> Opening:
        """What every receipt of a stage repeats."""
        return Opening(
            signer=self._identity.peer_id,
            client=client,
            session=opened.session,
            nonce=opened.nonce,
            stage=opened.stage,
            start=opened.start,
            end=opened.end,
            model=announced.model,
            calibration=self.calibration_digest or NO_HASH,
            numerics=str(announced.numerics),
            commitment=opened.commitment,
        )

    def builder(self, opening: Opening) -> WindowBuilder:
        """An empty builder of windows, with counters of its own."""
        self._base = counter_base(self._clock.wall_s(), self._base)
        return WindowBuilder(opening, self._base)

    def sketcher(self, span: Span) -> Sketcher | None:
        """The projections of a span; None without a calibration."""
        if self._calibration is None:
            return None
        if span not in self._sketchers:
            self._sketchers[span] = Sketcher.of(self._calibration, span, digest=self.calibration_digest)
            if len(self._sketchers) > MAX_SKETCHERS:
                self._sketchers.popitem(last=False)
        self._sketchers.move_to_end(span)
        return self._sketchers[span]

    def sign(self, receipt: Receipt) -> SignedReceipt:
        """With this server's key."""
        self.signed += 1
        return sign_receipt(self._identity, receipt)
