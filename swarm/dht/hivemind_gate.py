"""hivemind's question about every entry, to store or answered: is it one of our records, in its place?"""

from __future__ import annotations

from swarm.core.errors import BadRecordError, PeerError
from swarm.core.limits import MAX_RECORD_BYTES
from swarm.dht.hivemind_import import DHTID, DHTRecord, MSGPackSerializer, RecordValidatorBase
from swarm.dht.judge import Judge

_EXPIRY_SLACK_S = 0.001
_PACKED_OVERHEAD_BYTES = 16


class RecordGate(RecordValidatorBase):  # type: ignore[misc]  # hivemind has no types
    """Judges every entry this node is asked to store, and every entry another node answers with.

    An entry passes if it is one of our records: under the one key its content names and its signer's subkey, signed by
    that peer, with the entry's expiry equal to the signed one. So a plain value cannot wipe a key, nobody overwrites
    another's record, and what cannot be decoded never reaches hivemind's reader, which would hang on it. One bad entry
    spoils a whole answer, so nothing here depends on the reader's clock: how long a record may live is a question to
    the storage and to the reader.
    """

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def validate(self, record: DHTRecord) -> bool:
        """hivemind's question about one entry. Never raises."""
        try:
            subkey, value = _unpack(record.subkey), _unpack(record.value)
            if not isinstance(subkey, str) or not isinstance(value, bytes):
                raise BadRecordError("not a record under a peer id")
            found, key = self._judge.read(subkey, value, now_s=record.expiration_time - 1.0)
            if not abs(found.expires_s - record.expiration_time) <= _EXPIRY_SLACK_S:  # a NaN is refused, too
                raise BadRecordError("stored until another time than the signed one", peer=subkey)
            if DHTID.generate(source=key).to_bytes() != record.key:
                raise BadRecordError("stored under a key of something else", peer=subkey)
        except PeerError as error:
            self._judge.drop(error)
            return False
        except Exception as error:  # hivemind calls this in the middle of an RPC: whatever is wrong, the answer is no
            self._judge.drop(BadRecordError(f"unreadable: {error!r}"))
            return False
        return True

    def longest_s(self, subkey: str, packed: bytes, expires_s: float) -> float:
        """How long the record in the stored form ``packed`` may live by its kind; 0 if it is none. Never raises."""
        try:
            value = _unpack(packed)
        except Exception:  # as in ``validate``
            return 0.0
        return self._judge.longest_s(subkey, value, expires_s=expires_s) if isinstance(value, bytes) else 0.0


def _unpack(packed: bytes) -> object:
    if len(packed) > MAX_RECORD_BYTES + _PACKED_OVERHEAD_BYTES:
        raise BadRecordError(f"record of {len(packed)} bytes")
    unpacked: object = MSGPackSerializer.loads(packed)
    return unpacked
