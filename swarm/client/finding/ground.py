"""What everything of one client stands on: its node, its view of the swarm, and what it makes of others."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from swarm.client.finding.avoided import Avoided
from swarm.client.finding.view import SwarmView
from swarm.core.clock import Clock
from swarm.runtime.reputation import ReputationStore
from swarm.transport.protocol import Transport
from swarm.transport.pulse import PulseKeeper


@dataclass(frozen=True, slots=True)
class Ground:
    """Shared by all sessions of one client; whoever opens chains and whoever mends them note what they learn here."""

    transport: Transport
    clock: Clock
    view: SwarmView
    avoided: Avoided
    pulse: PulseKeeper
    random: Random
    reputation: ReputationStore

    @property
    def salt(self) -> int:
        """A fresh lot for one choice among equals."""
        return self.random.getrandbits(64)
