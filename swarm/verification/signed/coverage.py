"""Coverage: the receipts of one window, put side by side, say that every layer answered once, for the same rows.

What it shows: each stage is answered for by the server that was asked, no layer was left out, and what one says it sent
is what the next says it received. What it does not: that any of them computed it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from swarm.core.errors import (
    BrokenLinkError,
    ConfigError,
    CoverageGapError,
    CoverageOverlapError,
    DuplicateStageError,
    EquivocationError,
    SpanOutsideModelError,
    UnequalRowsError,
    UnexpectedSignerError,
    WrongModelError,
    WrongNonceError,
    WrongNumericsError,
    WrongSpanError,
)
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_STAGES
from swarm.verification.signed.equivocation import EquivocationProof, conflict
from swarm.verification.signed.receipts import Opening, Receipt, SignedReceipt, verify_receipt

Expected = Mapping[PeerId, Sequence[Opening]]


@dataclass(frozen=True, slots=True)
class Known:
    """What the client knows of a window without being told; None is not checked.

    ``positions`` are the accepted rows ``[first, last)``. ``entry_root`` is over the rows it sent to the first stage,
    ``exit_root`` over those it got from the last. ``seams`` are pairs of neighbouring stages whose link a heal has cut
    in this window: the second received some of its rows from a server that is gone, so the two roots cannot agree.
    """

    positions: tuple[int, int] | None = None
    entry_root: bytes | None = None
    exit_root: bytes | None = None
    seams: frozenset[tuple[int, int]] = frozenset()


NOTHING_KNOWN = Known()


@dataclass(frozen=True, slots=True)
class CoveredWindow:
    """One window that ``verify_coverage`` found whole: its receipts in the order of the layers.

    ``unlinked`` are the seams whose link was therefore not compared.
    """

    receipts: tuple[SignedReceipt, ...]
    unlinked: tuple[tuple[int, int], ...] = ()

    @property
    def window(self) -> int:
        return self.receipts[0].receipt.window

    @property
    def rows(self) -> int:
        return self.receipts[0].receipt.rows


def by_signer(openings: Iterable[Opening]) -> dict[PeerId, tuple[Opening, ...]]:
    """Openings as ``verify_coverage`` takes them; one server may run several stages."""
    grouped: defaultdict[PeerId, tuple[Opening, ...]] = defaultdict(tuple)
    for opening in openings:
        grouped[PeerId(opening.signer)] += (opening,)
    return dict(grouped)


def verify_coverage(
    receipts: Sequence[SignedReceipt],
    layer_count: int,
    expected_by_signer: Expected,
    *,
    now_s: float,
    known: Known = NOTHING_KNOWN,
) -> CoveredWindow:
    """The receipts of one window in the order of their layers, if they cover the model; it never says False.

    ``expected_by_signer`` holds what each server was opened for. Raises, in the order of the checks:
    ``BadSignatureError``, ``ExpiredReceiptError``; ``UnexpectedSignerError``, ``WrongNonceError``, ``WrongModelError``,
    ``WrongNumericsError``; ``EquivocationError`` (with its proof); ``UnequalRowsError``; ``DuplicateStageError``,
    ``SpanOutsideModelError``, ``CoverageOverlapError``, ``CoverageGapError``, ``WrongSpanError``; ``BrokenLinkError``,
    which blames neither end. ``ConfigError`` if ``layer_count`` is no model's, or for more receipts than a chain has
    stages. About 80 µs a receipt.
    """
    if layer_count < 1:
        raise ConfigError(f"a model of {layer_count} layers")
    if len(receipts) > MAX_STAGES:
        raise ConfigError(f"{len(receipts)} receipts of one window, a chain has at most {MAX_STAGES} stages")
    found = [verify_receipt(signed, now_s=now_s) for signed in receipts]
    openings = [_opening_of(receipt, expected_by_signer) for receipt in found]
    _check_counters(receipts)
    _check_rows(found, known)
    _check_tiling(found, layer_count, expected_by_signer)
    for receipt, opening in zip(found, openings, strict=True):
        if receipt.opening.span != opening.span:
            raise WrongSpanError(
                f"signed for layers {receipt.opening.span}, opened for {opening.span}", peer=receipt.signer
            )
    ordered = tuple(sorted(receipts, key=lambda signed: signed.receipt.opening.start))
    unlinked = _check_links([signed.receipt for signed in ordered], known)
    return CoveredWindow(ordered, unlinked)


def _opening_of(receipt: Receipt, expected: Expected) -> Opening:
    """What the receipt's signer was asked to do, if the receipt says that this is what it did (its span aside)."""
    said, peer = receipt.opening, receipt.signer
    asked = next((opening for opening in expected.get(PeerId(peer), ()) if opening.stage == said.stage), None)
    if asked is None:
        raise UnexpectedSignerError(f"signed for stage {said.stage}, which it was not asked to run", peer=peer)
    if (said.nonce, said.session, said.client) != (asked.nonce, asked.session, asked.client):
        raise WrongNonceError("the receipt was signed for another opening", peer=peer)
    if said.model != asked.model:
        raise WrongModelError(f"signed for the model {said.model}, not {asked.model}", peer=peer)
    if said.calibration != asked.calibration:
        raise WrongModelError("signed for another calibration of the model", peer=peer)
    if said.numerics != asked.numerics:
        raise WrongNumericsError(f"signed as {said.numerics}, chosen as {asked.numerics}", peer=peer)
    return asked


def _check_counters(receipts: Sequence[SignedReceipt]) -> None:
    seen: dict[tuple[str, bytes, int], SignedReceipt] = {}
    for signed in receipts:
        receipt = signed.receipt
        earlier = seen.setdefault((receipt.signer, receipt.opening.nonce, receipt.counter), signed)
        if conflict(earlier.receipt, receipt):
            raise EquivocationError(
                f"two receipts with counter {receipt.counter}",
                peer=receipt.signer,
                proof=EquivocationProof.of(earlier, signed).to_bytes(),
            )


def _check_rows(receipts: Sequence[Receipt], known: Known) -> None:
    positions = known.positions
    for receipt in receipts:
        if positions is not None and (receipt.first, receipt.last) != positions:
            raise UnequalRowsError(
                f"signed for rows {receipt.first}:{receipt.last}, accepted were {positions[0]}:{positions[1]}",
                peer=receipt.signer,
            )
    for one, other in pairwise(receipts):
        if (one.first, one.last) != (other.first, other.last):
            raise UnequalRowsError(
                f"stage {one.opening.stage} signed for rows {one.first}:{one.last}, "
                f"stage {other.opening.stage} for {other.first}:{other.last}"
            )


def _check_tiling(receipts: Sequence[Receipt], layer_count: int, expected: Expected) -> None:
    stages: set[int] = set()
    for receipt in receipts:
        opening = receipt.opening
        if opening.stage in stages:
            raise DuplicateStageError(f"a second receipt of stage {opening.stage}", peer=receipt.signer)
        stages.add(opening.stage)
        if opening.end > layer_count:
            raise SpanOutsideModelError(
                f"signed for layers {opening.span} of a model that has {layer_count}", peer=receipt.signer
            )
    reached = 0
    for span in sorted(receipt.opening.span for receipt in receipts):
        if span.start < reached:
            raise CoverageOverlapError(
                f"two receipts for layers {span.start}:{min(reached, span.end)}", peer=_strayed(receipts, expected)
            )
        if span.start > reached:
            break
        reached = span.end
    if reached < layer_count:
        starts = [receipt.opening.start for receipt in receipts if receipt.opening.start > reached]
        hole_end = min(starts, default=layer_count)
        peer = _strayed(receipts, expected) or _missing(reached, stages, expected)
        raise CoverageGapError(f"no receipt for layers {reached}:{hole_end}", peer=peer)


def _strayed(receipts: Sequence[Receipt], expected: Expected) -> str:
    """Who signed for other layers than it was opened for, if anybody did."""
    return next((one.signer for one in receipts if one.opening.span != _opening_of(one, expected).span), "")


def _missing(layer: int, stages: set[int], expected: Expected) -> str:
    """Who was asked to run ``layer`` and gave no receipt."""
    openings = [opening for asked in expected.values() for opening in asked if opening.stage not in stages]
    return next((opening.signer for opening in openings if opening.start <= layer < opening.end), "")


def _check_links(ordered: Sequence[Receipt], known: Known) -> tuple[tuple[int, int], ...]:
    first, last = ordered[0], ordered[-1]
    if known.entry_root is not None and first.in_root != known.entry_root:
        _broken("the client", first.opening.client, f"stage {first.opening.stage}", first.signer)
    unlinked = []
    for one, other in pairwise(ordered):
        pair = (one.opening.stage, other.opening.stage)
        if pair in known.seams:
            unlinked.append(pair)
        elif one.out_root != other.in_root:
            _broken(f"stage {pair[0]}", one.signer, f"stage {pair[1]}", other.signer)
    if known.exit_root is not None and last.out_root != known.exit_root:
        _broken(f"stage {last.opening.stage}", last.signer, "the client", last.opening.client)
    return tuple(unlinked)


def _broken(sender: str, sending: str, receiver: str, receiving: str) -> None:
    raise BrokenLinkError(
        f"{sender} (peer {sending[-8:]}) says it sent other rows than {receiver} (peer {receiving[-8:]}) received; "
        "either may be wrong, or the path between them",
        peers=(sending, receiving),
        hint="do not place the two next to each other again",
    )
