"""A client's receipts: whole windows are found as the last receipt comes, through rollbacks and heals."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from receipted_chain import NOW_S, Chain, forge, leaves_of, opening

from swarm.core.errors import (
    BadSignatureError,
    BrokenLinkError,
    ConfigError,
    CoverageGapError,
    EquivocationError,
    UnequalRowsError,
    UnexpectedSignerError,
)
from swarm.verification.signed.book import Mark, ReceiptBook
from swarm.verification.signed.compact import pack
from swarm.verification.signed.coverage import Known
from swarm.verification.signed.leaves import Leaf
from swarm.verification.signed.merkle import leaf_hash
from swarm.verification.signed.receipts import SignedReceipt
from swarm.verification.signed.windows import WindowBuilder

LAYERS = 9
MANY = 4096


SEAM = Known(seams=frozenset({(3, 2)}))
"""Between the newcomer of ``healed`` and the stage behind it."""


def book_of(chain: Chain) -> ReceiptBook:
    book = ReceiptBook(LAYERS)
    book.layout(chain.openings)
    return book


def take(book: ReceiptBook, signed: SignedReceipt, mark: Mark = (0, 0)) -> int | None:
    stage = signed.receipt.opening.stage
    return book.receive(stage, pack(signed), now_s=NOW_S, sent_rows=MANY, mark=mark)


def take_all(book: ReceiptBook, windows: list[list[SignedReceipt]], mark: Mark = (0, 0)) -> list[int]:
    """Every receipt, window by window; the windows that became whole."""
    found = [take(book, signed, mark) for window in windows for signed in window]
    return [window for window in found if window is not None]


def nudged(leaves: list[Leaf]) -> list[Leaf]:
    """As another machine computes them: what is sent on is a bit different."""
    return [dataclasses.replace(leaf, sent=leaf_hash(leaf.sent)) for leaf in leaves]


@settings(max_examples=30)
@given(st.data())
def test_a_window_is_whole_when_its_last_receipt_comes(data: st.DataObject) -> None:
    chain = Chain(3, 6, LAYERS)
    chain.compute(100)
    windows = chain.close(100)
    queues = [list(stage) for stage in zip(*windows, strict=True)]  # each control stream keeps its own order
    book, whole, come = book_of(chain), list[int](), [0, 0, 0]
    while any(queues):
        stage = data.draw(st.sampled_from([place for place, queue in enumerate(queues) if queue]))
        window = take(book, queues[stage].pop(0))
        come[stage] += 1
        complete = min(come)
        assert window == (complete - 1 if complete > len(whole) else None)
        whole += [] if window is None else [window]
        assert len(book.owed(96)) == 9 - sum(min(count, 3) for count in come)
    for number in whole:
        assert list(book.verify(number, now_s=NOW_S).receipts) == windows[number]
    assert [one.receipt.window for one in book.receipts_of(1)] == [0, 1, 2, 3]


def test_a_window_that_is_not_whole_names_its_gap() -> None:
    chain = Chain(3, 6, LAYERS)
    book = book_of(chain)
    for signed in chain.window()[:2]:
        take(book, signed)
    with pytest.raises(CoverageGapError, match="6:9"):
        book.verify(0, now_s=NOW_S)
    assert book.owed(32) == [(0, 2)]


def test_a_rollback_takes_windows_back() -> None:
    chain = Chain(3, 6, LAYERS)
    book = book_of(chain)
    chain.compute(96)
    take_all(book, chain.commit(96))
    roll_back(chain, book, 40)
    assert book.owed(96) == [(window, stage) for window in (1, 2) for stage in range(3)]
    chain.compute(10, version=1)
    (short,) = chain.close(50)
    assert take_all(book, [short], (0, 1)) == [1]
    assert book.verify(1, now_s=NOW_S, known=Known(positions=(32, 50))).rows == 18
    assert [one.receipt.window for one in book.receipts_of(0)] == [0, 1]


def test_a_server_that_signs_a_window_again_takes_back_those_above() -> None:
    chain = Chain(LAYERS)
    book = book_of(chain)
    chain.compute(96)
    take_all(book, chain.commit(96))
    chain.truncate(0)
    chain.compute(32, version=1)
    take_all(book, chain.commit(32))
    assert [one.receipt.window for one in book.receipts_of(0)] == [0]


def test_receipts_that_cross_with_a_rollback_count_for_nothing() -> None:
    chain = Chain(3, 6, LAYERS)
    book = book_of(chain)
    crossing = chain.window()
    take(book, crossing[0])
    roll_back(chain, book, 16)
    assert [take(book, signed) for signed in crossing[1:]] == [None, None]
    chain.compute(16, version=1)
    assert take_all(book, chain.commit(32), (0, 1)) == [0]
    assert book.verify(0, now_s=NOW_S).unlinked == ()


def test_receipts_that_cross_with_a_rollback_of_other_rows_count() -> None:
    """They are for windows that the rollback left alone, and will not be signed again."""
    chain = Chain(3, 6, LAYERS)
    book = book_of(chain)
    chain.compute(96)
    windows = chain.commit(96)
    take_all(book, windows[:1])
    for keep, mark in ((80, (0, 1)), (70, (1, 0)), (90, (1, 1))):
        roll_back(chain, book, keep, mark)
    assert take_all(book, windows[1:]) == [1]
    assert book.owed(96) == [(2, 0), (2, 1), (2, 2)]


def test_the_furthest_rollback_since_counts() -> None:
    chain = Chain(3, 6, LAYERS)
    book = book_of(chain)
    chain.compute(96)
    windows = chain.commit(96)
    for keep, mark in ((33, (0, 1)), (64, (0, 2))):
        roll_back(chain, book, keep, mark)
    assert take_all(book, windows) == [0]
    assert book.owed(96)[0] == (1, 0)


def roll_back(chain: Chain, book: ReceiptBook, keep: int, mark: Mark = (0, 1)) -> None:
    chain.truncate(min(keep, chain.builders[0].length))
    book.truncate(keep, mark)


def test_rollbacks_are_told_in_order() -> None:
    book = book_of(Chain(LAYERS))
    book.truncate(0, (1, 0))
    for earlier in ((0, 5), (1, 0)):
        with pytest.raises(ConfigError):
            book.truncate(0, earlier)


def healed(book: ReceiptBook, chain: Chain, rows: int) -> None:
    """Stage 1's server is gone; stage 3 takes over its layers and computes its rows again."""
    newcomer = opening(3, 3, 6)
    signed_rows = book.whole_rows(rows)
    chain.openings[1], chain.builders[1] = newcomer, WindowBuilder(newcomer, 10)
    for builder in chain.builders:
        builder.resume(signed_rows)
    chain.builders[1].replayed(nudged(leaves_of(newcomer, range(rows))))
    book.heal(chain.openings, (1, 0), signed_rows=signed_rows)


def test_a_heal_leaves_a_seam_in_the_open_window_only() -> None:
    chain = Chain(3, 6, LAYERS)
    book = book_of(chain)
    chain.compute(70)
    take_all(book, chain.commit(64))
    healed(book, chain, 70)
    chain.compute(58)
    assert take_all(book, chain.commit(128), (1, 0)) == [2, 3]
    with pytest.raises(BrokenLinkError):
        book.verify(2, now_s=NOW_S)
    found = [book.verify(window, now_s=NOW_S, known=SEAM if window == 2 else Known()) for window in range(4)]
    assert [window.unlinked for window in found] == [(), (), ((3, 2),), ()]
    stages = [[one.receipt.opening.stage for one in window.receipts] for window in found]
    assert stages == [[0, 1, 2], [0, 1, 2], [0, 3, 2], [0, 3, 2]]


def test_a_rollback_behind_a_heal_makes_the_newcomer_sign_the_older_window() -> None:
    chain = Chain(3, 6, LAYERS)
    book = book_of(chain)
    chain.compute(70)
    take_all(book, chain.commit(64))
    healed(book, chain, 70)
    roll_back(chain, book, 40, (1, 1))
    chain.compute(56, version=1)
    assert take_all(book, chain.commit(96), (1, 1)) == [1, 2]
    found = [book.verify(window, now_s=NOW_S, known=SEAM if window == 1 else Known()) for window in range(3)]
    assert [window.unlinked for window in found] == [(), ((3, 2),), ()]


def test_attack_newcomer_breaks_links_after_the_seam() -> None:
    chain = Chain(3, 6, LAYERS)
    book = book_of(chain)
    chain.compute(40)
    take_all(book, chain.commit(32))
    healed(book, chain, 40)
    chain.compute(56)
    open_window, next_window = chain.commit(96)
    take_all(book, [open_window], (1, 0))
    take_all(book, [[next_window[0], next_window[2], forge(next_window[1], out_root=bytes(32))]], (1, 0))
    with pytest.raises(BrokenLinkError):
        book.verify(2, now_s=NOW_S)


def test_attack_receipt_of_rows_that_were_never_sent() -> None:
    """Else a server could fill a client's memory with windows."""
    chain = Chain(LAYERS)
    book, (signed,) = book_of(chain), chain.window()
    with pytest.raises(UnequalRowsError) as caught:
        book.receive(0, pack(signed), now_s=NOW_S, sent_rows=31)
    assert caught.value.peer == signed.receipt.signer
    assert book.receipts_of(0) == []


def test_attack_receipt_on_a_stage_that_was_never_opened() -> None:
    chain = Chain(LAYERS)
    with pytest.raises(UnexpectedSignerError):
        book_of(chain).receive(1, pack(chain.window()[0]), now_s=NOW_S, sent_rows=MANY)


def test_attack_receipt_sent_as_another_stages() -> None:
    chain = Chain(3, LAYERS)
    with pytest.raises(BadSignatureError):
        book_of(chain).receive(1, pack(chain.window()[0]), now_s=NOW_S, sent_rows=MANY)


def test_attack_two_receipts_under_one_counter() -> None:
    chain = Chain(LAYERS)
    book, (signed,) = book_of(chain), chain.window()
    take(book, signed)
    with pytest.raises(EquivocationError):
        take(book, forge(signed, in_root=bytes(32)))
    assert book.receipts_of(0) == [signed]


def test_layouts_that_cannot_be() -> None:
    chain = Chain(LAYERS)
    with pytest.raises(ConfigError):
        book_of(chain).layout([opening(0, 0, 3)])
    with pytest.raises(ConfigError):
        ReceiptBook(LAYERS).verify(0, now_s=NOW_S)


def test_the_server_before_has_signed_too_little() -> None:
    """Its receipt of window 1 was lost with it: after the heal all sign that window, the newcomer among them."""
    chain = Chain(3, 6, LAYERS)
    book = book_of(chain)
    chain.compute(70)
    first, second = chain.commit(64)
    take_all(book, [first, [second[0], second[2]]])
    assert book.whole_rows(70) == 32
    healed(book, chain, 70)
    assert book.owed(64) == [(1, 0), (1, 3), (1, 2)]
    assert take_all(book, chain.commit(70), (1, 0)) == [1]
    assert book.verify(1, now_s=NOW_S, known=SEAM).unlinked == ((3, 2),)


def test_a_heal_that_failed_has_voided_what_servers_will_sign_again() -> None:
    chain = Chain(3, 6, LAYERS)
    chain.compute(70)
    first, second = chain.commit(70)
    book = book_of(chain)
    assert take_all(book, [first, second[:2]]) == [0]
    assert book.whole_rows(70) == 32
    assert take(book, second[2]) == 1  # it comes when the others were told already
    book.void(32, (1, 0))
    assert book.whole_rows(70) == 32  # so the next attempt tells them the same
    assert (
        take(book, forge(second[2], counter=second[2].receipt.counter + 1, previous=second[2].receipt.digest())) is None
    )
    chain.truncate(70)
    for builder in chain.builders:
        builder.resume(32)
    [again] = chain.commit(70)
    book.heal(chain.openings, (2, 0), signed_rows=32)
    assert take(book, again[0], (2, 0)) is None
    assert book.owed(64) == [(1, 1), (1, 2)]


def test_the_end_comes_without_a_mark() -> None:
    chain = Chain(3, 6, LAYERS)
    chain.compute(100)
    windows = chain.commit(100)
    book = book_of(chain)
    take_all(book, windows[:2])
    book.finish(40)
    assert take_all(book, windows[2:]) == []  # signed before they heard of the end
    [last] = chain.close(40)
    assert take_all(book, [last]) == [1]
    assert [one.receipt.last for one in book.receipts_of(0)] == [32, 40]
    assert book.verify(1, now_s=NOW_S, known=Known(positions=(32, 40))).rows == 8
    book.finish(40)
    assert [one.receipt.last for one in book.receipts_of(0)] == [32, 40]
    assert book.last_of(0) == last[0]
    assert book.last_of(9) is None


def test_what_a_liar_signed_from_some_window_on_is_owed_again() -> None:
    chain = Chain(3, 6, LAYERS)
    chain.compute(100)
    book = book_of(chain)
    take_all(book, chain.commit(100))
    book.reject(chain.openings[1].signer, 1)
    assert book.owed(96) == [(1, 1), (2, 1)]
    assert book.whole_rows(96) == 32
