"""The audit commitment: a client binds itself to a secret before the work, so that audits can be neither guessed nor
chosen afterwards."""

from __future__ import annotations

import hashlib
import hmac

from swarm.core.errors import BadSignatureError, ConfigError
from swarm.core.ids import COMMITMENT_BYTES

AUDIT_SECRET_BYTES = 32

_DOMAIN = b"swarm/commitment/1\0"


def commit(secret: bytes) -> bytes:
    """H(r): what OPEN carries for a secret ``r`` of ``AUDIT_SECRET_BYTES``; ``ConfigError`` for another length.

    SHA-256 under a domain tag: hiding as long as ``r`` is drawn uniformly, binding as long as SHA-256 has no
    collisions.
    """
    if len(secret) != AUDIT_SECRET_BYTES:
        raise ConfigError(f"an audit secret has {AUDIT_SECRET_BYTES} bytes, not {len(secret)}")
    return hashlib.sha256(_DOMAIN + secret).digest()


def check_opening(commitment: bytes, secret: bytes) -> None:
    """Raise ``BadSignatureError`` unless ``secret`` is what ``commitment`` was made from."""
    fits = len(secret) == AUDIT_SECRET_BYTES and len(commitment) == COMMITMENT_BYTES
    if not fits or not hmac.compare_digest(commit(secret), commitment):
        raise BadSignatureError("the revealed audit secret is not the one committed to")
