"""The receipts of one session as its client collects them: which have come, which count, and which windows are whole.

A client feeds every receipt as it arrives, says when it rolled back and who runs which layers from which row on, and is
told when the last receipt of a window is there.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from swarm.core.errors import ConfigError, UnequalRowsError, UnexpectedSignerError
from swarm.verification.signed.compact import ReceiptChain
from swarm.verification.signed.coverage import NOTHING_KNOWN, CoveredWindow, Known, by_signer, verify_coverage
from swarm.verification.signed.receipts import WINDOW_ROWS, Opening, SignedReceipt

Mark = tuple[int, int]
"""``(generation, epoch)`` of a step: it rises with every rollback and heal."""


class ReceiptBook:
    """Receipts by window and stage. ``layout`` comes first. A receipt takes about 1 KB until the book is dropped."""

    def __init__(self, layer_count: int) -> None:
        self.layer_count = layer_count
        self._chains: dict[int, ReceiptChain] = {}
        self._eras: list[tuple[int, tuple[int, ...]]] = []
        """From which window on which stages answer, in that order."""
        self._windows: dict[int, dict[int, SignedReceipt]] = {}
        self._rollbacks: list[tuple[Mark, int]] = []
        """Since which mark windows from which one on are void, as signed before it; both ascending."""
        self._final_rows: int | None = None

    def layout(self, openings: Sequence[Opening]) -> None:
        """These stages answer, in the order of their layers, from the first row on."""
        self._arrange(openings, 0)

    def heal(self, openings: Sequence[Opening], mark: Mark, *, signed_rows: int) -> None:
        """The chain was healed and is ``openings`` now; steps have ``mark`` from now on.

        All of its servers were told ``signed_rows`` (``whole_rows`` before the heal) and sign from that window on.
        Which links cannot hold, because one of two neighbours computed rows again, is for ``verify``'s caller to know.
        ``ConfigError`` if a stage's number was used for another opening, or ``mark`` is not later than those before.
        """
        self._take_back(signed_rows, mark)
        self._arrange(openings, signed_rows // WINDOW_ROWS)

    def receive(self, stage: int, data: bytes, *, now_s: float, sent_rows: int, mark: Mark = (0, 0)) -> int | None:
        """Take a receipt from the stage's server; the window that now has all of its receipts, or None.

        ``sent_rows`` is how many rows the client ever sent: no server has more to sign for. ``mark`` is where the
        server stood when it signed: of what a later rollback has voided, the receipt is a link of its chain and no
        more. Raises what ``ReceiptChain.receive`` does, ``UnexpectedSignerError`` for a stage that was never opened,
        and ``UnequalRowsError`` for rows that were never sent.
        """
        chain = self._chains.get(stage)
        if chain is None:
            raise UnexpectedSignerError(f"a receipt of stage {stage}, which was never opened")
        signed = chain.receive(data, now_s=now_s)
        receipt = signed.receipt
        if receipt.last > sent_rows:
            raise UnequalRowsError(
                f"signed for rows up to {receipt.last}, {sent_rows} were sent", peer=chain.opening.signer
            )
        beyond = self._final_rows is not None and receipt.last > self._final_rows
        if beyond or self._is_void(receipt.window, mark):
            return None
        found = self._windows.setdefault(receipt.window, {})
        if stage in found:  # signed again, so the windows above are taken back
            for window in [window for window in self._windows if window > receipt.window]:
                self._windows[window].pop(stage, None)
        found[stage] = signed
        answering = self._stages(receipt.window)
        return receipt.window if stage in answering and found.keys() >= set(answering) else None

    def verify(self, window: int, *, now_s: float, known: Known = NOTHING_KNOWN) -> CoveredWindow:
        """``verify_coverage`` of what has come for ``window``, by those who answer for it; raises what that raises."""
        stages, found = self._stages(window), self._windows.get(window, {})
        openings = [self._chains[stage].opening for stage in stages]
        return verify_coverage(
            [found[stage] for stage in stages if stage in found],
            self.layer_count,
            by_signer(openings),
            now_s=now_s,
            known=known,
        )

    def truncate(self, keep: int, mark: Mark) -> None:
        """The client rolled back to ``keep`` rows, and steps have ``mark`` from now on.

        What reaches beyond is void, to be signed by whoever runs it now. ``ConfigError`` if ``mark`` is not later than
        those before.
        """
        self._take_back(keep, mark)
        self._return_to(keep)

    def void(self, rows: int, mark: Mark) -> None:
        """A heal failed whose servers sign again from ``rows`` on, as they were told: what they signed before is void.

        The rows are held. ``ConfigError`` if ``mark``, of the failed heal, is not later than those before.
        """
        self._take_back(rows, mark)

    def finish(self, keep: int) -> None:
        """The session ends with ``keep`` rows: what reaches beyond does not count, whenever it was signed. Idempotent.

        No step says so, only the request to sign the rest, so it has no mark: a window that ends at ``keep`` is signed
        again by whoever had signed more of it.
        """
        self._final_rows = keep
        self._drop(keep)
        self._return_to(keep)

    def reject(self, signer: str, window: int) -> None:
        """What ``signer`` has signed from ``window`` on does not count: it lied there, and somebody else is to sign."""
        openings = {stage: chain.opening for stage, chain in self._chains.items()}
        for found in (found for number, found in self._windows.items() if number >= window):
            for stage in [stage for stage in found if openings[stage].signer == signer]:
                del found[stage]

    def whole_rows(self, rows: int) -> int:
        """Of the first ``rows``, those in windows of which every receipt has come, from the first window on."""
        return min((window for window, _ in self.owed(rows)), default=rows // WINDOW_ROWS) * WINDOW_ROWS

    def owed(self, rows: int) -> list[tuple[int, int]]:
        """``(window, stage)`` of every receipt that is missing for the full windows below ``rows``, in order."""
        return [
            (window, stage)
            for window in range(rows // WINDOW_ROWS)
            for stage in self._stages(window)
            if stage not in self._windows.get(window, {})
        ]

    def receipts_of(self, stage: int) -> list[SignedReceipt]:
        """The receipts of a stage that count, by window."""
        return [found[stage] for _, found in sorted(self._windows.items()) if stage in found]

    def last_of(self, stage: int) -> SignedReceipt | None:
        """The receipt that a stage signed last, whether it counts or not."""
        return self._chains[stage].last if stage in self._chains else None

    def _arrange(self, openings: Sequence[Opening], start: int) -> None:
        for opening in openings:
            chain = self._chains.setdefault(opening.stage, ReceiptChain(opening))
            if chain.opening != opening:
                raise ConfigError(f"stage {opening.stage} is opened twice")
        self._eras = [era for era in self._eras if era[0] < start]
        self._eras.append((start, tuple(opening.stage for opening in openings)))

    def _take_back(self, keep: int, mark: Mark) -> None:
        if self._rollbacks and mark <= self._rollbacks[-1][0]:
            raise ConfigError(f"a rollback marked {mark} after one marked {self._rollbacks[-1][0]}")
        start = keep // WINDOW_ROWS
        while self._rollbacks and self._rollbacks[-1][1] >= start:
            self._rollbacks.pop()
        self._rollbacks.append((mark, start))
        self._drop(keep)

    def _drop(self, keep: int) -> None:
        for found in self._windows.values():
            for stage in [stage for stage, signed in found.items() if signed.receipt.last > keep]:
                del found[stage]

    def _return_to(self, keep: int) -> None:
        """Whoever answers now signs again from the window of row ``keep`` on."""
        start, (last_start, stages) = keep // WINDOW_ROWS, self._eras[-1]
        self._eras = [era for era in self._eras if era[0] < min(start, last_start)]
        self._eras.append((min(start, last_start), stages))

    def _is_void(self, window: int, mark: Mark) -> bool:
        """True if a rollback after ``mark`` took ``window`` back: the first such one went back furthest."""
        later = bisect_right(self._rollbacks, mark, key=lambda rollback: rollback[0])
        return later < len(self._rollbacks) and self._rollbacks[later][1] <= window

    def _stages(self, window: int) -> tuple[int, ...]:
        stages = next((stages for start, stages in reversed(self._eras) if start <= window), None)
        if stages is None:
            raise ConfigError("nobody was said to answer for any layers")
        return stages
