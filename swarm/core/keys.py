"""One Ed25519 key per node: libp2p identity, signature key and peer id in one."""

from __future__ import annotations

import base58
from nacl.exceptions import BadSignatureError as NaclBadSignature
from nacl.signing import SigningKey, VerifyKey

from swarm.core.errors import BadSignatureError, ConfigError
from swarm.core.ids import PeerId

# Protobuf of libp2p's crypto.proto: field 1 KeyType (Ed25519 = 1), field 2 the key bytes.
_PRIVATE_PREFIX = bytes([0x08, 0x01, 0x12, 0x40])
_PUBLIC_PREFIX = bytes([0x08, 0x01, 0x12, 0x20])
# Multihash "identity" of 36 bytes: short public keys are embedded in the peer id, not hashed.
_MULTIHASH_PREFIX = bytes([0x00, 0x24])

SEED_BYTES = 32
SIGNATURE_BYTES = 64

RECORD_DOMAIN = b"swarm/record/1"


def _tagged(domain: bytes, message: bytes) -> bytes:
    return len(domain).to_bytes(1, "big") + domain + message


class Identity:
    """A node's key pair. The private half never leaves this object except through ``to_protobuf``."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise ConfigError(f"an Ed25519 seed has {SEED_BYTES} bytes, not {len(seed)}")
        self._key = SigningKey(seed)
        self.public_key: bytes = bytes(self._key.verify_key)
        self.peer_id = peer_id_of(self.public_key)

    def sign(self, domain: bytes, message: bytes) -> bytes:
        """64-byte signature over ``message`` under a domain tag, so that it means nothing in another domain."""
        return bytes(self._key.sign(_tagged(domain, message)).signature)

    def to_protobuf(self) -> bytes:
        """The key as libp2p stores it: ``PrivateKey{Ed25519, seed || public}``."""
        return _PRIVATE_PREFIX + bytes(self._key) + self.public_key

    @classmethod
    def from_protobuf(cls, data: bytes) -> Identity:
        """Read libp2p's form; raise ``ConfigError`` for another key type or a damaged file."""
        if len(data) != 68 or not data.startswith(_PRIVATE_PREFIX):
            raise ConfigError("not an Ed25519 libp2p key", hint="delete the identity file to get a new one")
        identity = cls(data[4:36])
        if identity.public_key != data[36:]:
            raise ConfigError("the key file is damaged", hint="delete the identity file to get a new one")
        return identity


def peer_id_of(public_key: bytes) -> PeerId:
    """Peer id of an Ed25519 public key: base58 of the identity multihash of its protobuf (libp2p peer-ids spec)."""
    return PeerId(base58.b58encode(_MULTIHASH_PREFIX + _PUBLIC_PREFIX + public_key).decode("ascii"))


def public_key_of(peer_id: str) -> bytes:
    """The 32-byte public key inside a peer id; ``BadSignatureError`` if it holds none (an RSA id, or not an id)."""
    try:
        raw = base58.b58decode(peer_id) if len(peer_id) <= 64 else b""
    except ValueError:
        raw = b""
    prefix = _MULTIHASH_PREFIX + _PUBLIC_PREFIX
    key = raw[len(prefix) :]
    # One key has one name: base58 is one to one, but decoders forgive blanks around it.
    if len(key) != 32 or raw[: len(prefix)] != prefix or not peer_id.isalnum():
        raise BadSignatureError("not an Ed25519 peer id", peer=peer_id[:64])
    return key


def verify(peer_id: str, domain: bytes, message: bytes, signature: bytes) -> None:
    """Raise ``BadSignatureError`` unless ``peer_id``'s key signed ``message`` in ``domain``. About 53 µs."""
    key = public_key_of(peer_id)
    try:
        VerifyKey(key).verify(_tagged(domain, message), signature)
    except (NaclBadSignature, ValueError) as error:
        raise BadSignatureError("signature does not verify", peer=peer_id) from error
