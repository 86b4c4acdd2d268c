"""Servers as auditors: who covers a stage's layers, and how one of them is made to compute its rows again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from swarm.client.plan import StagePlan
from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.core.numerics import Numerics
from swarm.core.spans import Span


def covering(
    listings: Sequence[Listing], span: Span, numerics: Numerics, *, excluded: Collection[PeerId]
) -> list[StagePlan]:
    """The live servers that hold ``span`` with ``numerics``' dtype and quantization, without the ``excluded``.

    In the order of the listings; a server that begins with layer 0 counts only if it holds the embeddings too.
    """
    raise NotImplementedError
