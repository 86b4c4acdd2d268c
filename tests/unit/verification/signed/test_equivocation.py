"""Two receipts with one counter convict; nothing else does, and nobody can be framed with it."""

from __future__ import annotations

import msgspec
import pytest
from msgspec.structs import replace
from receipted_chain import Chain, forge

from swarm.core.errors import BadProofError, BadSignatureError, ConfigError
from swarm.core.limits import MAX_EQUIVOCATION_PROOF_BYTES
from swarm.verification.signed.equivocation import EquivocationProof
from swarm.verification.signed.receipts import SignedReceipt


def pair() -> tuple[SignedReceipt, SignedReceipt]:
    signed = Chain(3).window()[0]
    return signed, forge(signed, out_root=bytes(32))


def test_a_proof_stands_alone() -> None:
    one, other = pair()
    data = EquivocationProof.of(one, other).to_bytes()
    assert {*EquivocationProof.parse(data).verify()} == {one.receipt, other.receipt}
    assert EquivocationProof.of(other, one).to_bytes() == data
    assert len(data) <= MAX_EQUIVOCATION_PROOF_BYTES


def test_the_largest_proof_fits() -> None:
    signed = forge(Chain(3).window()[0], model="m" * 400, numerics="n" * 64, counter=2**63 - 1, expires_s=2**32 - 1)
    data = EquivocationProof.of(signed, forge(signed, in_root=bytes(32))).to_bytes()
    EquivocationProof.parse(data).verify()


@pytest.mark.parametrize(
    "differs", [{"first": 32, "last": 64}, {"stage": 3}, {"session": bytes(16)}, {"end": 4}, {"expires_s": 5}]
)
def test_whatever_differs_convicts(differs: dict[str, object]) -> None:
    signed = Chain(3).window()[0]
    EquivocationProof.parse(EquivocationProof.of(signed, forge(signed, **differs)).to_bytes()).verify()


def test_attack_two_signatures_of_one_receipt_are_no_equivocation() -> None:
    signed, _ = pair()
    resigned = SignedReceipt(signed.receipt, bytes(64))
    with pytest.raises(ConfigError):
        EquivocationProof.of(signed, resigned)


@pytest.mark.parametrize("change", [{"counter": 1}, {"nonce": bytes(16)}])
def test_attack_framing_with_receipts_that_may_both_be(change: dict[str, object]) -> None:
    signed, other = pair()
    harmless = forge(other, **change)
    with pytest.raises(ConfigError):
        EquivocationProof.of(signed, harmless)
    good = EquivocationProof.of(signed, other)
    fields = msgspec.msgpack.decode(good.to_bytes())
    fields[1:] = sorted([[one.receipt.canonical(), one.signature] for one in (signed, harmless)])
    with pytest.raises(BadProofError, match="contradict"):
        EquivocationProof.parse(msgspec.msgpack.encode(fields)).verify()


def test_attack_framing_two_servers_with_each_others_receipts() -> None:
    """Same nonce and counter, as in every chain; two signers."""
    one, other = Chain(3, 6).window()
    assert one.receipt.counter == other.receipt.counter
    with pytest.raises(ConfigError):
        EquivocationProof.of(one, other)


@pytest.mark.parametrize("root", [bytes(32), b"\xff" * 32], ids=["stands first", "stands last"])
def test_attack_framing_with_a_receipt_that_was_never_signed(root: bytes) -> None:
    signed = Chain(3).window()[0]
    forged = SignedReceipt(replace(signed.receipt, out_root=root), signed.signature)
    with pytest.raises(BadSignatureError):
        EquivocationProof.parse(EquivocationProof.of(signed, forged).to_bytes()).verify()


def test_attack_bytes_that_are_no_proof() -> None:
    data = EquivocationProof.of(*pair()).to_bytes()
    fields = msgspec.msgpack.decode(data)
    for wrong in (
        b"",
        data[:-1],
        data + b"\0",
        bytes(MAX_EQUIVOCATION_PROOF_BYTES + 1),
        b"\x91" * MAX_EQUIVOCATION_PROOF_BYTES,
        msgspec.msgpack.encode([*fields, 1]),
        msgspec.msgpack.encode(["equivocation/2", *fields[1:]]),
        msgspec.msgpack.encode([fields[0], [b"x" * 2000, fields[1][1]], fields[2]]),
        msgspec.msgpack.encode([fields[0], [fields[1][0], b"short"], fields[2]]),
    ):
        with pytest.raises(BadProofError):
            EquivocationProof.parse(wrong)


def test_attack_proof_in_another_order_or_without_receipts() -> None:
    """One pair of receipts makes one proof, so that a proof is not counted twice."""
    kind, one, other = msgspec.msgpack.decode(EquivocationProof.of(*pair()).to_bytes())
    for wrong in ([kind, other, one], [kind, one, one], [kind, [b"junk", one[1]], other]):
        with pytest.raises(BadProofError):
            EquivocationProof.parse(msgspec.msgpack.encode(wrong)).verify()
