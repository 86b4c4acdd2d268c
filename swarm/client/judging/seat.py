"""Where one node judges the servers of one model, and speaks of them."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.core.clock import Clock
from swarm.core.ids import ModelId
from swarm.dht.protocol import Directory
from swarm.runtime.reputation import ReputationStore
from swarm.transport.protocol import Transport

JUDGED_AT_ONCE = 4
"""Proofs under way, so that a slow holder keeps nobody else's waiting; computed again is one at a time."""


@dataclass(frozen=True, slots=True)
class Seat:
    """The node's network, clock and store, which holds what it knows of others, and its proofs.

    So many proofs of others are fetched and judged ``at_once``, each held in memory.
    """

    transport: Transport
    directory: Directory
    clock: Clock
    model: ModelId
    store: ReputationStore
    at_once: int = JUDGED_AT_ONCE
