"""Accusations as records: what makes sense, what fits, and where they stand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from proofs_at_hand import accusation, evidence_against

from swarm.core.accusation import MAX_EVIDENCE_BYTES, MAX_PROOFS, Accusation, ProofRef
from swarm.core.errors import BadRecordError, ConfigError
from swarm.core.keys import RECORD_DOMAIN, Identity
from swarm.core.limits import MAX_ADDRESS_CHARS, MAX_ADDRESSES, MAX_RECORD_BYTES
from swarm.core.records import SignedRecord, accusation_key, key_of, read_record, sign_record

MODEL = "demo@main#0123456789abcdef"
HOLDER, SUBJECT = Identity(b"h" * 32), Identity(b"s" * 32)
NOW_S = 1_800_000_000.0
PROOF = ProofRef(bytes(32), 1000)


def make(**changes: Any) -> Accusation:
    return accusation(HOLDER, SUBJECT, MODEL, NOW_S, **changes)


def test_it_is_read_as_it_was_signed_and_stands_under_its_subject() -> None:
    for record in (make(), make(proofs=(PROOF,), addresses=("/ip4/192.0.2.1/tcp/1",))):
        assert read_record(sign_record(HOLDER, record), now_s=NOW_S) == record
        assert key_of(record) == accusation_key(MODEL, SUBJECT.peer_id)
    assert key_of(make()) != key_of(accusation(HOLDER, HOLDER, MODEL, NOW_S))
    assert key_of(make()).startswith("swarm/accusation/1/")


def test_the_largest_ones_fit() -> None:
    long = "m" * 200 + "@" + "r" * 100 + "#0123456789abcdef"
    evidence = b"e" * MAX_EVIDENCE_BYTES
    assert len(sign_record(HOLDER, make(model=long, evidence=evidence))) <= MAX_RECORD_BYTES
    proofs = tuple(ProofRef(bytes([n]) * 32, 64 * 1024 * 1024) for n in range(MAX_PROOFS))
    addresses = tuple(f"/dns4/{n}" + "x" * (MAX_ADDRESS_CHARS - 10) for n in range(MAX_ADDRESSES - 2))
    assert len(sign_record(HOLDER, make(model=long, proofs=proofs, addresses=addresses))) <= MAX_RECORD_BYTES
    assert len(evidence_against(SUBJECT, long)) <= MAX_EVIDENCE_BYTES


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"evidence": b""}, "brings evidence, or says where"),
        ({"evidence": b"x", "proofs": (PROOF,)}, "brings evidence, or says where"),
        ({"addresses": ("/ip4/192.0.2.1/tcp/1",)}, "brings evidence, or says where"),
        ({"proofs": (PROOF, ProofRef(PROOF.digest, 7))}, "names one proof twice"),
        ({"subject": HOLDER.peer_id}, "accuses itself"),
        ({"subject": "nobody"}, "accuses nobody"),
        ({"subject": SUBJECT.peer_id + " "}, "accuses nobody"),
        ({"model": "no model"}, "malformed model id"),
        ({"protocol": 2}, "speaks protocol 2"),
    ],
    ids=str,
)
def test_what_makes_no_sense_is_neither_signed_nor_read(changes: dict[str, Any], why: str) -> None:
    record = make(**changes)
    with pytest.raises(ConfigError, match=why):
        sign_record(HOLDER, record)
    with pytest.raises(BadRecordError, match=why):
        read_record(skipped_our_checks(builtins(record)), now_s=NOW_S)


@pytest.mark.parametrize(
    "changes",
    [
        {"proofs": [[bytes(31), 7]], "evidence": b""},
        {"proofs": [[bytes(32), 0]], "evidence": b""},
        {"proofs": [[bytes(32), 2**40]], "evidence": b""},
        {"proofs": [[bytes([n]) * 32, 7] for n in range(MAX_PROOFS + 1)], "evidence": b""},
        {"evidence": bytes(MAX_EVIDENCE_BYTES + 1)},
        {"subject": "s" * 65},
        {"addresses": ["x" * (MAX_ADDRESS_CHARS + 1)], "proofs": [[bytes(32), 7]], "evidence": b""},
    ],
    ids=str,
)
def test_attack_what_is_out_of_bounds_is_malformed(changes: dict[str, Any]) -> None:
    with pytest.raises(BadRecordError, match="malformed"):
        read_record(skipped_our_checks({**builtins(make()), **changes}), now_s=NOW_S)


@pytest.mark.parametrize("left_s", [-1.0, 0.0, 361.0, 1e9])
def test_it_lives_for_five_minutes_at_most(left_s: float) -> None:
    with pytest.raises(BadRecordError, match="expires in"):
        read_record(sign_record(HOLDER, make(expires_s=NOW_S + left_s)), now_s=NOW_S)


def builtins(record: Accusation) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(record, builtin_types=(bytes,))
    return fields


def skipped_our_checks(fields: dict[str, Any]) -> bytes:
    payload = msgspec.msgpack.encode(fields)
    return msgspec.msgpack.encode(SignedRecord(HOLDER.peer_id, HOLDER.sign(RECORD_DOMAIN, payload), payload))
