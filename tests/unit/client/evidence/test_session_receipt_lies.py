"""What servers may lie about in receipts: each lie is noted for what it is, and names the liar."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from paper_chain import CLIENT, PaperChain

from swarm.client.evidence.receipts import SPARE_RECEIPTS
from swarm.core.errors import (
    BadSignatureError,
    BrokenChainError,
    EquivocationError,
    PeerError,
    ProtocolViolation,
    UnequalRowsError,
    UnexpectedSignerError,
)
from swarm.verification.signed.equivocation import EquivocationProof
from swarm.verification.signed.receipts import Receipt
from swarm.wire.evidence import Signed


def first_receipt(chain: PaperChain, place: int) -> Receipt:
    signed = chain.stages[place].builder.signed_window(0)
    assert signed is not None
    return signed[0]


LIES: dict[str, tuple[dict[str, object], type[PeerError]]] = {
    "another session": ({"session": b"t" * 16}, BadSignatureError),
    "another nonce": ({"nonce": b"m" * 16}, BadSignatureError),
    "another client": ({"client": "12D3KooWother"}, BadSignatureError),
    "another span": ({"start": 0, "end": 4}, BadSignatureError),
    "another model": ({"model": "other@main#0123456789abcdef"}, BadSignatureError),
    "other numerics": ({"numerics": "bfloat16"}, BadSignatureError),
    "another calibration": ({"calibration": bytes([1]) * 32}, BadSignatureError),
    "another commitment": ({"commitment": bytes([1]) * 32}, BadSignatureError),
    "another predecessor": ({"previous": bytes([1]) * 32}, BadSignatureError),
    "rows that were never sent": ({"first": 96, "last": 128}, UnequalRowsError),
}


@pytest.mark.parametrize("name", sorted(LIES))
def test_a_lie_is_noted_and_names_the_liar(name: str) -> None:
    fields, kind = LIES[name]
    chain = PaperChain()
    chain.step(70)
    chain.step(1)
    liar = chain.stages[1]
    with pytest.raises(kind) as caught:
        chain.receipts.hear(1, liar.identity.peer_id, chain.forged(1, first_receipt(chain, 1), **fields))
    assert caught.value.peer == liar.identity.peer_id
    [problem] = chain.receipts.verification.problems
    assert (problem.kind, problem.peers, problem.proof) == ("lie", (liar.identity.peer_id,), b"")


def test_a_receipt_that_was_kept_back_breaks_the_chain() -> None:
    chain = PaperChain()
    chain.step(70)
    chain.step(1)
    chain.deliver(1, 1)
    second = chain.stages[1].builder.signed_window(1)
    assert second is not None
    with pytest.raises(BrokenChainError):
        chain.receipts.hear(1, "x", chain.forged(1, second[0], counter=second[0].counter + 1))


def test_two_receipts_with_one_counter_prove_themselves() -> None:
    chain = PaperChain()
    chain.step(70)
    chain.step(1)
    chain.deliver(1, 1)
    liar = chain.stages[1].identity.peer_id
    with pytest.raises(EquivocationError):
        chain.receipts.hear(1, liar, chain.forged(1, first_receipt(chain, 1), out_root=bytes(32)))
    [problem] = chain.receipts.verification.problems
    assert (problem.kind, problem.peers) == ("equivocation", (liar,))
    one, other = EquivocationProof.parse(problem.proof).verify()
    assert one.signer == other.signer == liar


@pytest.mark.parametrize("last", [30, 20])
def test_fewer_rows_than_were_accepted(last: int) -> None:
    """It shows when the window has all of its receipts, whoever's comes last."""
    chain = PaperChain()
    chain.step(70)
    chain.step(1)
    liar = chain.stages[1].identity.peer_id
    chain.receipts.hear(1, liar, chain.forged(1, first_receipt(chain, 1), last=last))
    chain.deliver(0)
    with pytest.raises(UnequalRowsError) as caught:
        chain.deliver(2)
    assert caught.value.peer == liar
    [problem] = chain.receipts.verification.problems
    assert (problem.kind, problem.peers) == ("lie", (liar,))
    assert chain.receipts.whole_rows(71) == 0, "whoever takes over signs that window"


@pytest.mark.parametrize(
    ("place", "field", "blamed"),
    [
        (0, "in_root", lambda peers: (CLIENT.peer_id, peers[0])),
        (0, "out_root", lambda peers: (peers[0], peers[1])),
        (1, "in_root", lambda peers: (peers[0], peers[1])),
        (2, "out_root", lambda peers: (peers[2], CLIENT.peer_id)),
    ],
)
def test_a_broken_link_blames_neither_and_breaks_nothing(
    place: int, field: str, blamed: Callable[[list[str]], tuple[str, str]]
) -> None:
    chain = PaperChain()
    chain.step(40)
    chain.step(1)
    peers = [stage.identity.peer_id for stage in chain.stages]
    chain.receipts.hear(place, peers[place], chain.forged(place, first_receipt(chain, place), **{field: bytes(32)}))
    for other in {0, 1, 2} - {place}:
        chain.deliver(other)
    assert chain.receipts.verification.windows == 0
    [problem] = chain.receipts.verification.problems
    assert (problem.kind, problem.peers) == ("broken link", blamed(peers))
    assert chain.receipts.linked() == {}, "nothing of it is counter-signed"


def test_receipts_without_end_are_a_violation() -> None:
    """Each of them right: one window, signed over and over."""
    chain = PaperChain()
    chain.step(40)
    chain.step(1)
    stage = chain.stages[1]
    receipt = first_receipt(chain, 1)
    for _ in range(41 // 32 + SPARE_RECEIPTS):
        chain.receipts.hear(1, stage.identity.peer_id, chain.forged(1, receipt))
        receipt = replace(receipt, previous=receipt.digest(), counter=receipt.counter + 1)
    with pytest.raises(ProtocolViolation, match="more receipts"):
        chain.receipts.hear(1, stage.identity.peer_id, chain.forged(1, receipt))


def test_a_window_signed_again_out_of_turn_is_covered_no_more() -> None:
    """Later receipts void earlier ones, so those of the windows above are gone too."""
    chain = PaperChain()
    chain.step(70)
    chain.step(1)
    chain.deliver_all()
    assert chain.receipts.verification.windows == 2
    last = chain.receipts._book.last_of(1)
    assert last is not None
    again = chain.forged(1, first_receipt(chain, 1), previous=last.receipt.digest(), counter=last.receipt.counter + 1)
    chain.receipts.hear(1, chain.stages[1].identity.peer_id, again)
    assert chain.receipts.verification.windows == 1
    assert chain.receipts.whole_rows(71) == 32


def test_a_stage_nobody_opened() -> None:
    chain = PaperChain()
    chain.step(40)
    chain.step(1)
    message: Signed = chain.stages[1].queue[0]
    with pytest.raises(UnexpectedSignerError):
        chain.receipts.hear(9, "stranger", message)
    assert [problem.peers for problem in chain.receipts.verification.problems] == [("stranger",)]
