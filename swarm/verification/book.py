"""The receipts of one session as its client collects them: which have come, which count, and which windows are whole.

A client feeds every receipt as it arrives, says when it rolled back and who runs which layers from which row on, and is
told when the last receipt of a window is there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from swarm.core.errors import ConfigError, UnequalRowsError, UnexpectedSignerError
from swarm.verification.compact import ReceiptChain
from swarm.verification.coverage import NOTHING_KNOWN, CoveredWindow, Known, by_signer, verify_coverage
from swarm.verification.receipts import WINDOW_ROWS, Opening, SignedReceipt


class ReceiptBook:
    """Receipts by window and stage. ``layout`` comes first. A receipt takes about 1 KB until the book is dropped."""

    def __init__(self, layer_count: int) -> None:
        self.layer_count = layer_count
        self._chains: dict[int, ReceiptChain] = {}
        self._eras: list[tuple[int, tuple[int, ...]]] = []
        """From which window on which stages answer, in that order."""
        self._seams: dict[tuple[int, int], tuple[int, int]] = {}
        """In which windows ``[first, end)`` two neighbours' roots cannot agree."""
        self._windows: dict[int, dict[int, SignedReceipt]] = {}

    def layout(
        self,
        openings: Sequence[Opening],
        *,
        signed_rows: int = 0,
        replayed_rows: int = 0,
        cut: Iterable[tuple[int, int]] = (),
    ) -> None:
        """These stages answer for the window in which row ``signed_rows`` stands and for those after.

        Again after a heal: newcomers were told ``signed_rows`` and ``replayed_rows`` were computed again; ``cut`` are
        the pairs (last stage that did so, the one after it), whose rows up to there cannot agree. ``ConfigError`` if
        a stage's number was used for another opening, or nobody answers for the rows before.
        """
        for opening in openings:
            chain = self._chains.setdefault(opening.stage, ReceiptChain(opening))
            if chain.opening != opening:
                raise ConfigError(f"stage {opening.stage} is opened twice")
        start = signed_rows // WINDOW_ROWS
        if start and not self._eras:
            raise ConfigError(f"nobody was said to answer for the rows before {signed_rows}")
        self._eras = [era for era in self._eras if era[0] < start]
        self._eras.append((start, tuple(opening.stage for opening in openings)))
        self._seams |= dict.fromkeys(cut, (start, -(-replayed_rows // WINDOW_ROWS)))

    def receive(self, stage: int, data: bytes, *, now_s: float, sent_rows: int, stale: bool = False) -> int | None:
        """Take a receipt from the stage's server; the window that now has all of its receipts, or None.

        ``sent_rows`` is how many rows the client ever sent: no server has more to sign for. ``stale`` says that it was
        signed before the server heard of a rollback or a heal: it is a link of the chain and counts for nothing else.
        Raises what ``ReceiptChain.receive`` does, ``UnexpectedSignerError`` for a stage that was never opened, and
        ``UnequalRowsError`` for rows that were never sent.
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
        if stale:
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
        seams = {pair for pair, (first, end) in self._seams.items() if first <= window < end}
        openings = [self._chains[stage].opening for stage in stages]
        return verify_coverage(
            [found[stage] for stage in stages if stage in found],
            self.layer_count,
            by_signer(openings),
            now_s=now_s,
            known=replace(known, seams=known.seams | seams),
        )

    def truncate(self, keep: int) -> None:
        """The client rolled back to ``keep`` rows: what reaches beyond is void, to be signed by who runs it now."""
        for found in self._windows.values():
            for stage in [stage for stage, signed in found.items() if signed.receipt.last > keep]:
                del found[stage]
        start, end = keep // WINDOW_ROWS, -(-keep // WINDOW_ROWS)
        last_start, stages = self._eras[-1]
        self._eras = [era for era in self._eras if era[0] < min(start, last_start)]
        self._eras.append((min(start, last_start), stages))
        self._seams = {pair: (min(first, start), min(beyond, end)) for pair, (first, beyond) in self._seams.items()}

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

    def _stages(self, window: int) -> tuple[int, ...]:
        return next(stages for start, stages in reversed(self._eras) if start <= window)
