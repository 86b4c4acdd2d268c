"""What travels of a receipt, and what a reader makes of it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from receipted_chain import NOW_S, Chain, forge

from swarm.core.errors import (
    BadSignatureError,
    BrokenChainError,
    EquivocationError,
    ExpiredReceiptError,
    ProtocolViolation,
)
from swarm.verification.signed.compact import COMPACT_BYTES, MIN_LIFETIME_S, ReceiptChain, pack, unpack
from swarm.verification.signed.equivocation import EquivocationProof
from swarm.verification.signed.receipts import NO_HASH, SignedReceipt


def windows(count: int) -> tuple[Chain, list[SignedReceipt]]:
    chain = Chain(3)
    return chain, [chain.window()[0] for _ in range(count)]


def reader(chain: Chain) -> ReceiptChain:
    return ReceiptChain(chain.openings[0])


def test_a_stage_read_from_its_wire_form() -> None:
    chain, signed = windows(3)
    chain.compute(5)
    signed.append(chain.close(101)[0][0])
    following = reader(chain)
    assert [following.receive(pack(one), now_s=NOW_S) for one in signed] == signed


def test_a_token_costs_about_eight_bytes_a_hop() -> None:
    _, (signed,) = windows(1)
    countersignature = b"\0" * 64
    assert len(pack(signed)) == COMPACT_BYTES == 177
    assert (len(pack(signed)) + len(countersignature)) / signed.receipt.rows < 8


@pytest.mark.parametrize("window", [0, 40, 2**17 - 1])
def test_every_window_and_the_largest_counter_travel(window: int) -> None:
    _, (signed,) = windows(1)
    far = forge(signed, first=32 * window, last=32 * window + 7, counter=2**63 - 1, expires_s=2**32 - 1)
    assert unpack(pack(far), far.receipt.opening, far.receipt.previous) == far


def test_attack_bytes_that_are_no_receipt() -> None:
    chain, (signed,) = windows(1)
    good = pack(signed)
    for data in (
        b"",
        good[:-1],
        good + b"\0",
        b"\xff" * 4 + good[4:],  # a window beyond any context
        good[:4] + b"\0" + good[5:],  # no rows
        good[:4] + b"\x21" + good[5:],  # 33 rows
        good[:5] + b"\xff" * 8 + good[13:],  # no such counter
    ):
        with pytest.raises(ProtocolViolation):
            reader(chain).receive(data, now_s=NOW_S)


def test_attack_any_changed_byte() -> None:
    chain, (signed,) = windows(1)
    good = pack(signed)
    for place in range(5, len(good), 7):
        data = bytearray(good)
        data[place] ^= 1
        with pytest.raises((BadSignatureError, ProtocolViolation)):
            reader(chain).receive(bytes(data), now_s=NOW_S)


@pytest.mark.parametrize(
    "lie", [{"nonce": bytes(16)}, {"model": "other@main#0123456789abcdef"}, {"numerics": "bfloat16"}, {"end": 4}]
)
def test_attack_receipt_for_another_opening(lie: dict[str, object]) -> None:
    """What was agreed at OPEN does not travel, so a receipt for anything else does not verify."""
    chain, (signed,) = windows(1)
    with pytest.raises(BadSignatureError):
        reader(chain).receive(pack(forge(signed, **lie)), now_s=NOW_S)


def test_attack_receipt_kept_back() -> None:
    chain, signed = windows(3)
    following = reader(chain)
    following.receive(pack(signed[0]), now_s=NOW_S)
    with pytest.raises(BrokenChainError):
        following.receive(pack(signed[2]), now_s=NOW_S)
    with pytest.raises(BadSignatureError):  # the first one a reader sees has no predecessor
        reader(chain).receive(pack(signed[1]), now_s=NOW_S)
    assert following.receive(pack(signed[1]), now_s=NOW_S) == signed[1]


def test_attack_receipt_replayed() -> None:
    chain, signed = windows(2)
    following = reader(chain)
    for one in signed:
        following.receive(pack(one), now_s=NOW_S)
    for one in signed:
        with pytest.raises(BrokenChainError):
            following.receive(pack(one), now_s=NOW_S)


def test_attack_receipt_with_another_predecessor() -> None:
    chain, signed = windows(2)
    following = reader(chain)
    following.receive(pack(signed[0]), now_s=NOW_S)
    with pytest.raises(BadSignatureError):
        following.receive(pack(forge(signed[1], previous=NO_HASH)), now_s=NOW_S)


def test_attack_counter_used_twice() -> None:
    chain, (signed,) = windows(1)
    following = reader(chain)
    following.receive(pack(signed), now_s=NOW_S)
    with pytest.raises(EquivocationError) as caught:
        following.receive(pack(forge(signed, out_root=bytes(32))), now_s=NOW_S)
    assert caught.value.peer == signed.receipt.signer
    one, other = EquivocationProof.parse(caught.value.proof).verify()
    assert signed.receipt in (one, other)
    assert following.last == signed


def test_attack_false_second_receipt_frames_nobody() -> None:
    """Somebody on the way changes a receipt that was sent twice: no signature, no equivocation."""
    chain, (signed,) = windows(1)
    following = reader(chain)
    following.receive(pack(signed), now_s=NOW_S)
    changed = SignedReceipt(replace(signed.receipt, out_root=bytes(32)), signed.signature)
    with pytest.raises(BadSignatureError):
        following.receive(pack(changed), now_s=NOW_S)


def test_attack_receipt_that_expires_before_an_audit() -> None:
    chain, (signed,) = windows(1)
    for expires_s, what in ((NOW_S - 1, "ago"), (NOW_S + int(MIN_LIFETIME_S) - 1, "too soon")):
        with pytest.raises(ExpiredReceiptError, match=what):
            reader(chain).receive(pack(forge(signed, expires_s=expires_s)), now_s=NOW_S)
    reader(chain).receive(pack(forge(signed, expires_s=NOW_S + int(MIN_LIFETIME_S))), now_s=NOW_S)


def test_a_rollback_reads_as_a_later_receipt() -> None:
    chain, signed = windows(2)
    following = reader(chain)
    for one in signed:
        following.receive(pack(one), now_s=NOW_S)
    chain.truncate(20)
    chain.compute(12, version=1)
    again = following.receive(pack(chain.commit(32)[0][0]), now_s=NOW_S)
    assert (again.receipt.window, again.receipt.counter) == (0, signed[1].receipt.counter + 1)
