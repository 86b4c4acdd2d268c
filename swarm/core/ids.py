"""Names of things: peers, models, sessions."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import NewType

from swarm.core.errors import ConfigError, ProtocolViolation

PeerId = NewType("PeerId", str)
"""A libp2p peer id in base58, e.g. ``12D3KooW…``; for Ed25519 it contains the public key."""

SECRET_BYTES = 16
SESSION_BYTES = 16
COMMITMENT_BYTES = 32
CHAIN_LABEL_BYTES = 8

_MODEL_ID = re.compile(r"[^@#\s]{1,200}@[^@#\s]{1,100}#[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class ModelId:
    """``name@revision#fingerprint``: two peers speak of one model only if all three agree.

    ``fingerprint`` is 16 hex digits over the configuration and the weight index.
    """

    name: str
    revision: str
    fingerprint: str

    def __post_init__(self) -> None:
        if not _MODEL_ID.fullmatch(str(self)):
            raise ConfigError(f"not a model id: {str(self)!r}", hint="expected name@revision#fingerprint")

    def __str__(self) -> str:
        return f"{self.name}@{self.revision}#{self.fingerprint}"

    @classmethod
    def parse(cls, text: str) -> ModelId:
        """Split ``name@revision#fingerprint``; raise ``ConfigError`` if it is not of that form."""
        if not _MODEL_ID.fullmatch(text):
            raise ConfigError(f"not a model id: {text[:80]!r}", hint="expected name@revision#fingerprint")
        name, rest = text.split("@")
        revision, fingerprint = rest.split("#")
        return cls(name, revision, fingerprint)


def chain_label(session: bytes) -> bytes:
    """What a session's chain is called in public: the same at all its servers, and no way back to the session.

    A session's bytes are random, so nobody finds them from their hash.
    """
    return hashlib.sha256(b"swarm/chain-label/1" + session).digest()[:CHAIN_LABEL_BYTES]


@dataclass(frozen=True, slots=True)
class SessionKey:
    """What a session is called at every server of its chain.

    ``client`` is the peer id the transport authenticated, never one a message claims, so a stranger who
    copies ``session`` gets a key of his own.
    """

    client: PeerId
    session: bytes
    stage: int

    def __post_init__(self) -> None:
        if len(self.session) != SESSION_BYTES or self.stage < 0:
            raise ProtocolViolation("malformed session key", peer=self.client)

    def __str__(self) -> str:
        return f"{self.session.hex()[:8]}/{self.stage}"


def rank_of(peer: str) -> bytes:
    """A peer's place among others where the same few are to do something, whoever looks: by hash, smallest first."""
    return hashlib.sha256(peer.encode()).digest()
