"""From a failed audit of a challenge to a fraud proof, and from anybody's proof to the sentence that it supports."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from swarm.client.auditing.audit import StageAudit
from swarm.client.auditing.reference import Reference
from swarm.core.ids import PeerId
from swarm.verification.calibration import Calibration
from swarm.verification.judging import WindowVerdict
from swarm.verification.proofs import ChallengeText, Charge, FraudProof
from swarm.verification.verdict import DENSE, Thresholds

__all__ = ["ChallengeText", "Conviction", "References", "convict", "prove"]

References = Callable[[Charge], Awaitable[Sequence[Reference]]]
"""Who computes a charge again: the own replica alone, or two servers that cover the span."""


@dataclass(frozen=True, slots=True)
class Conviction:
    """A proof that holds: ``subject`` answered for ``charge`` what it did not compute."""

    subject: PeerId
    charge: Charge
    verdict: WindowVerdict

    @property
    def sentence(self) -> str:
        """For people."""
        raise NotImplementedError


def prove(audit: StageAudit, text: ChallengeText, calibration: Calibration) -> FraudProof:
    """The proof of the first window that failed hard by its rows, in a session whose secret was a challenge's seed.

    Raises ``MisuseError`` if nothing can be proven to others: no such window, a session with a local head (its rows
    carry no ids), a stage that did not sign for every window from the first, or a server whose tokens alone are wrong
    (no receipt says with which parameters it was to sample).
    """
    raise NotImplementedError


async def convict(
    data: bytes, references: References, calibration: Calibration, thresholds: Thresholds = DENSE
) -> Conviction:
    """Check a proof that came from anybody: signatures, trees, seed, then the rows, computed again.

    Raises ``BadProofError`` (or another ``PeerError``) that says what is wrong with it, and what a reference raises.
    """
    raise NotImplementedError
