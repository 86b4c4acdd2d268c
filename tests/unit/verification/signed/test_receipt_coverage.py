"""Coverage: a whole chain passes, and every way in which it is not whole has its own error."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from receipted_chain import CLIENT, EXPIRES_S, NOW_S, SERVERS, Chain, forge, leaves_of, opening, sign

from swarm.core.errors import (
    BadSignatureError,
    BrokenLinkError,
    ConfigError,
    CoverageGapError,
    CoverageOverlapError,
    DuplicateStageError,
    EquivocationError,
    ExpiredReceiptError,
    PeerError,
    SpanOutsideModelError,
    UnequalRowsError,
    UnexpectedSignerError,
    WrongModelError,
    WrongNonceError,
    WrongNumericsError,
    WrongSpanError,
)
from swarm.verification.signed.coverage import CoveredWindow, Known, by_signer, verify_coverage
from swarm.verification.signed.equivocation import EquivocationProof
from swarm.verification.signed.merkle import leaf_hash
from swarm.verification.signed.receipts import SignedReceipt
from swarm.verification.signed.windows import WindowBuilder

LAYERS = 9
KNOWS_ROWS = Known(positions=(0, 32))


def chain_of_three() -> tuple[Chain, list[SignedReceipt]]:
    chain = Chain(3, 6, LAYERS)
    return chain, chain.window()


def check(chain: Chain, receipts: list[SignedReceipt], known: Known = KNOWS_ROWS) -> CoveredWindow:
    return verify_coverage(receipts, LAYERS, chain.expected, now_s=NOW_S, known=known)


@settings(max_examples=40)
@given(st.sets(st.integers(1, LAYERS - 1), max_size=7), st.permutations(range(8)), st.integers(1, 32))
def test_every_tiling_in_every_order_covers(cuts: set[int], order: list[int], rows: int) -> None:
    chain = Chain(*sorted(cuts), LAYERS)
    chain.compute(rows)
    receipts = chain.close(rows)[0]
    shuffled = [receipts[place] for place in order if place < len(receipts)]
    covered = check(chain, shuffled, Known())
    assert list(covered.receipts) == receipts
    assert (covered.window, covered.rows, covered.unlinked) == (0, rows, ())


@settings(max_examples=40)
@given(st.sets(st.integers(1, LAYERS - 1), min_size=1, max_size=7), st.data())
def test_no_subset_of_a_chain_covers(cuts: set[int], data: st.DataObject) -> None:
    chain = Chain(*sorted(cuts), LAYERS)
    receipts = chain.window()
    kept = data.draw(st.lists(st.sampled_from(receipts), unique_by=id, max_size=len(receipts) - 1))
    with pytest.raises(CoverageGapError) as caught:
        check(chain, kept)
    first_missing = next(one for one in receipts if one not in kept)
    assert caught.value.peer == first_missing.receipt.signer


def test_a_server_may_run_two_stages() -> None:
    chain = Chain(3, 6, LAYERS)
    chain.openings[2] = opening(2, 6, LAYERS, server=0)
    chain.builders[2].opening = chain.openings[2]
    chain.expected = by_signer(chain.openings)
    chain.compute(32)
    base = 2**40
    receipts = [
        sign(replace(builder.commit(32, EXPIRES_S)[0], counter=base * (stage + 1)))
        for stage, builder in enumerate(chain.builders)
    ]
    assert len(check(chain, receipts).receipts) == 3


def test_attack_bad_signature() -> None:
    chain, receipts = chain_of_three()
    receipts[1] = SignedReceipt(receipts[1].receipt, receipts[0].signature)
    with pytest.raises(BadSignatureError) as caught:
        check(chain, receipts)
    assert caught.value.peer == receipts[1].receipt.signer


@pytest.mark.parametrize(
    "lie",
    [{"nonce": bytes(16)}, {"session": bytes(16)}, {"client": SERVERS[5].peer_id}],
    ids=lambda lie: next(iter(lie)),
)
def test_attack_receipt_of_another_opening(lie: dict[str, object]) -> None:
    chain, receipts = chain_of_three()
    receipts[1] = forge(receipts[1], **lie)
    with pytest.raises(WrongNonceError) as caught:
        check(chain, receipts)
    assert caught.value.peer == receipts[1].receipt.signer


def test_attack_gap_because_a_server_skips_its_last_layer() -> None:
    chain, receipts = chain_of_three()
    receipts[1] = forge(receipts[1], end=5)
    with pytest.raises(CoverageGapError, match="5:6") as caught:
        check(chain, receipts)
    assert caught.value.peer == receipts[1].receipt.signer


def test_attack_gap_because_a_receipt_is_kept_back() -> None:
    chain, receipts = chain_of_three()
    for missing in range(3):
        with pytest.raises(CoverageGapError, match=f"{3 * missing}:{3 * missing + 3}") as caught:
            check(chain, receipts[:missing] + receipts[missing + 1 :])
        assert caught.value.peer == receipts[missing].receipt.signer


def test_attack_no_receipts_at_all() -> None:
    chain, _ = chain_of_three()
    with pytest.raises(CoverageGapError):
        check(chain, [])


def test_attack_overlap_because_a_server_claims_its_neighbours_layer() -> None:
    chain, receipts = chain_of_three()
    receipts[1] = forge(receipts[1], start=2)
    with pytest.raises(CoverageOverlapError, match="2:3") as caught:
        check(chain, receipts)
    assert caught.value.peer == receipts[1].receipt.signer


def test_attack_span_outside_the_model() -> None:
    chain, receipts = chain_of_three()
    receipts[2] = forge(receipts[2], end=LAYERS + 1)
    with pytest.raises(SpanOutsideModelError) as caught:
        check(chain, receipts)
    assert caught.value.peer == receipts[2].receipt.signer


def test_attack_two_colluding_neighbours_move_their_border() -> None:
    """Together they still tile the model, and their roots agree; but the one was asked for layers 0:3."""
    chain, receipts = chain_of_three()
    receipts[0], receipts[1] = forge(receipts[0], end=2), forge(receipts[1], start=2)
    with pytest.raises(WrongSpanError) as caught:
        check(chain, receipts)
    assert caught.value.peer == receipts[0].receipt.signer


def test_attack_duplicate_stage() -> None:
    chain, receipts = chain_of_three()
    with pytest.raises(DuplicateStageError):
        check(chain, [*receipts, receipts[1]])
    later = forge(receipts[1], counter=receipts[1].receipt.counter + 1)
    with pytest.raises(DuplicateStageError) as caught:
        check(chain, [*receipts, later])
    assert caught.value.peer == receipts[1].receipt.signer


def test_attack_receipt_claims_more_rows() -> None:
    chain = Chain(3, 6, LAYERS)
    chain.compute(20)
    receipts = chain.close(20)[0]
    receipts[1] = forge(receipts[1], last=32)
    with pytest.raises(UnequalRowsError) as caught:
        check(chain, receipts, Known(positions=(0, 20)))
    assert caught.value.peer == receipts[1].receipt.signer
    with pytest.raises(UnequalRowsError, match=r"stage 0.*0:20.*stage 1.*0:32") as caught:
        check(chain, receipts, Known())
    assert caught.value.peer == ""  # without knowing the rows nobody can say whose they are


def test_attack_the_whole_chain_claims_more_rows() -> None:
    chain, receipts = chain_of_three()
    with pytest.raises(UnequalRowsError):
        check(chain, receipts, Known(positions=(0, 20)))


def test_attack_receipt_of_another_window() -> None:
    chain, receipts = chain_of_three()
    receipts[1] = forge(receipts[1], first=32, last=64)
    with pytest.raises(UnequalRowsError):
        check(chain, receipts)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("liar", ["sender", "receiver"])
def test_attack_broken_link_blames_neither(place: int, liar: str) -> None:
    chain, receipts = chain_of_three()
    where, field = (place, "out_root") if liar == "sender" else (place + 1, "in_root")
    receipts[where] = forge(receipts[where], **{field: bytes(32)})
    with pytest.raises(BrokenLinkError, match="either may be wrong") as caught:
        check(chain, receipts)
    assert caught.value.peers == (SERVERS[place].peer_id, SERVERS[place + 1].peer_id)
    assert caught.value.peer == ""
    assert isinstance(caught.value, PeerError)


def test_attack_head_server_embeds_other_ids() -> None:
    """The client knows what it sent, so the first stage's word is checked as well."""
    chain, receipts = chain_of_three()
    sent = receipts[0].receipt.in_root
    assert check(chain, receipts, Known(entry_root=sent))
    with pytest.raises(BrokenLinkError) as caught:
        check(chain, [forge(receipts[0], in_root=bytes(32)), *receipts[1:]], Known(entry_root=sent))
    assert caught.value.peers == (CLIENT.peer_id, SERVERS[0].peer_id)


def test_attack_tail_signs_other_answers_than_it_gave() -> None:
    chain, receipts = chain_of_three()
    got = receipts[2].receipt.out_root
    assert check(chain, receipts, Known(exit_root=got))
    with pytest.raises(BrokenLinkError) as caught:
        check(chain, [*receipts[:2], forge(receipts[2], out_root=bytes(32))], Known(exit_root=got))
    assert caught.value.peers == (SERVERS[2].peer_id, CLIENT.peer_id)


@pytest.mark.parametrize("lie", [{"model": "demo@main#fedcba9876543210"}, {"calibration": b"\1" * 32}])
def test_attack_wrong_model(lie: dict[str, object]) -> None:
    chain, receipts = chain_of_three()
    receipts[1] = forge(receipts[1], **lie)
    with pytest.raises(WrongModelError) as caught:
        check(chain, receipts)
    assert caught.value.peer == receipts[1].receipt.signer


@pytest.mark.parametrize("numerics", ["float32+nf4", "bfloat16"])
def test_attack_wrong_quantization_or_dtype(numerics: str) -> None:
    chain, receipts = chain_of_three()
    receipts[1] = forge(receipts[1], numerics=numerics)
    with pytest.raises(WrongNumericsError) as caught:
        check(chain, receipts)
    assert caught.value.peer == receipts[1].receipt.signer


def test_attack_expired_receipt() -> None:
    chain, receipts = chain_of_three()
    receipts[1] = forge(receipts[1], expires_s=NOW_S)
    with pytest.raises(ExpiredReceiptError) as caught:
        check(chain, receipts)
    assert caught.value.peer == receipts[1].receipt.signer


def test_attack_reused_counter() -> None:
    chain, receipts = chain_of_three()
    for differs in ({"out_root": bytes(32)}, {"first": 32, "last": 64}):
        with pytest.raises(EquivocationError) as caught:
            check(chain, [*receipts, forge(receipts[1], **differs)])
        assert caught.value.peer == receipts[1].receipt.signer
        assert EquivocationProof.parse(caught.value.proof).verify()[0].signer == receipts[1].receipt.signer


def test_attack_stranger_signs_for_a_stage() -> None:
    """Valid in itself, from a peer that was never opened, or for another stage than it was opened for."""
    chain, receipts = chain_of_three()
    for lie in ({"signer": SERVERS[5].peer_id}, {"stage": 2}):
        with pytest.raises(UnexpectedSignerError):
            check(chain, [receipts[0], forge(receipts[1], **lie), receipts[2]])


def test_after_a_heal_the_seam_is_named_and_not_compared() -> None:
    """The newcomer computed rows again that its successor has from the server that is gone, a bit apart."""
    chain = Chain(3, 6, LAYERS)
    chain.compute(20)
    chain.openings[1] = opening(3, 3, 6)
    chain.builders[1] = WindowBuilder(chain.openings[1], 10)
    chain.expected = by_signer(chain.openings)
    again = leaves_of(chain.openings[1], range(20))
    chain.builders[1].replayed([dataclasses.replace(leaf, sent=leaf_hash(leaf.sent)) for leaf in again])
    chain.compute(12)
    receipts = chain.commit(32)[0]
    with pytest.raises(BrokenLinkError):
        check(chain, receipts)
    covered = check(chain, receipts, Known(positions=(0, 32), seams=frozenset({(3, 2)})))
    assert covered.unlinked == ((3, 2),)


def test_attack_too_many_receipts() -> None:
    chain, receipts = chain_of_three()
    with pytest.raises(ConfigError):
        check(chain, receipts * 100)
    with pytest.raises(ConfigError):
        verify_coverage(receipts, 0, chain.expected, now_s=NOW_S)
