"""What an audit needs of a stage: its inputs, its outputs and its leaves, each checked against its receipts."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.client.records import SessionRecord, StageRecord
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.verification.calibration import Floats
from swarm.verification.leaves import Leaf
from swarm.verification.receipts import SignedReceipt


@dataclass(frozen=True, eq=False, slots=True)
class Material:
    """Rows ``[0, rows)`` of one stage as it received them, and from ``first`` on what it made of them.

    ``tensor`` is what it received, encoded as the session's codec has it, empty where it embeds the token ids itself.
    ``outputs`` are raw ``[rows - first, hidden]`` in its own dtype, ``leaves`` those of the same rows. ``receipts`` are
    those of the windows in ``[0, rows)``. ``attested``: all inputs are those that the receipts were signed over.
    """

    record: SessionRecord
    stage: StageRecord
    numerics: Numerics
    hidden: int
    rows: int
    first: int
    tensor: bytes
    outputs: bytes
    leaves: tuple[Leaf, ...]
    receipts: tuple[SignedReceipt, ...]
    attested: bool

    @property
    def span(self) -> Span:
        return self.stage.opening.span

    def received(self) -> Floats | None:
        """Float32 ``[rows, hidden]``, the codec undone; None where the stage embeds."""
        raise NotImplementedError

    def computed(self) -> Floats:
        """Float32 ``[rows - first, hidden]``."""
        raise NotImplementedError
