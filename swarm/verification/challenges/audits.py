"""Which windows a client audits: a lottery whose ticket is the receipt and whose draw the client fixed beforehand.

At OPEN the client commits to a secret r by H(r). A window is audited if H(tag ‖ r ‖ receipt hash) < q. While the server
computes and signs it knows H(r) alone, so it can neither tell which windows are looked at nor try receipts until one is
not. The client cannot pick windows after the fact without changing r. Source: DESIGN, section 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from swarm.core.errors import BadProofError, ConfigError
from swarm.verification.challenges.commitment import AUDIT_SECRET_BYTES, check_opening
from swarm.verification.signed.receipts import Receipt

_DOMAIN = b"swarm/audit/1\0"
_TICKETS = 2**64


def is_selected(secret: bytes, receipt: Receipt, rate: float) -> bool:
    """True if ``receipt``'s window is audited at ``rate`` q in [0, 1] with the session's ``secret`` r.

    The first 64 bits of SHA-256 against ⌊q · 2^64⌋: the share is q to within 2^-64, the same on every machine; a window
    that is selected at one rate is so at every higher one. One secret serves one session. ``ConfigError`` for a secret
    of another length, or a rate that is none.
    """
    if len(secret) != AUDIT_SECRET_BYTES:
        raise ConfigError(f"an audit secret has {AUDIT_SECRET_BYTES} bytes, not {len(secret)}")
    if not 0 <= rate <= 1:  # a NaN fails this too
        raise ConfigError(f"an audit rate of {rate}", hint="choose one from 0 to 1")
    ticket = int.from_bytes(sha256(_DOMAIN + secret + receipt.digest()).digest()[:8], "big")
    return ticket < int(rate * _TICKETS)


def check_selection(commitment: bytes, secret: bytes, receipt: Receipt, rate: float) -> None:
    """Raise unless ``receipt`` was selected by the secret that ``commitment`` (from OPEN) was made from.

    ``BadSignatureError`` for another secret, ``BadProofError`` if the window was not drawn.
    """
    check_opening(commitment, secret)
    if not is_selected(secret, receipt, rate):
        raise BadProofError(f"rows {receipt.first}:{receipt.last} were not drawn for an audit at rate {rate}")


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """The audit of one stage. ``drawn`` are the windows that the lottery chose.

    ``rows`` is how many rows from position 0 on are replayed, in one prefill; every window in ``judged`` lies on the
    way and is judged as well, drawn or not.
    """

    drawn: tuple[int, ...]
    judged: tuple[int, ...]
    rows: int


def plan_audit(secret: bytes, receipts: Sequence[Receipt], rate: float) -> AuditPlan | None:
    """What to replay of one stage, given the receipts that count of it; None if no window was drawn.

    A newcomer's receipts begin where it took over: earlier windows are replayed and not judged. ``ConfigError`` if the
    receipts are not those of one opening.
    """
    if len({receipt.opening for receipt in receipts}) > 1:
        raise ConfigError("an audit replays one stage at a time")
    drawn = sorted(receipt.window for receipt in receipts if is_selected(secret, receipt, rate))
    if not drawn:
        return None
    judged = sorted({receipt.window for receipt in receipts if receipt.window <= drawn[-1]})
    rows = max(receipt.last for receipt in receipts if receipt.window == drawn[-1])
    return AuditPlan(tuple(drawn), tuple(judged), rows)
