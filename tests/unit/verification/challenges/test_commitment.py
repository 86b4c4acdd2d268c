"""The audit commitment binds and is frozen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import BadSignatureError, ConfigError
from swarm.verification.challenges.commitment import AUDIT_SECRET_BYTES, check_opening, commit

secrets = st.binary(min_size=AUDIT_SECRET_BYTES, max_size=AUDIT_SECRET_BYTES)


def test_frozen_vector() -> None:
    """Another value here means that old commitments can no longer be opened: that takes a new domain tag."""
    assert commit(bytes(range(32))).hex() == "6d12186c69c8f4c5233aa6c24daaf4db60553e8b13f0006b1915f5bc3e7d5584"


@given(secrets)
def test_the_secret_opens_its_commitment(secret: bytes) -> None:
    check_opening(commit(secret), secret)


@given(secrets, secrets)
def test_no_other_secret_does(secret: bytes, other: bytes) -> None:
    if secret != other:
        with pytest.raises(BadSignatureError):
            check_opening(commit(secret), other)


@pytest.mark.parametrize("length", [0, 31, 33])
def test_wrong_lengths(length: int) -> None:
    with pytest.raises(ConfigError):
        commit(bytes(length))
    with pytest.raises(BadSignatureError):
        check_opening(commit(bytes(32)), bytes(length))
    with pytest.raises(BadSignatureError):
        check_opening(bytes(length), bytes(32))
