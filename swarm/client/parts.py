"""What a client is made of, and how it works."""

from __future__ import annotations

from dataclasses import dataclass

from swarm.client.tokenizer import Tokenizer
from swarm.core.clock import Clock
from swarm.core.errors import ConfigError
from swarm.core.keys import Identity
from swarm.dht.protocol import Directory
from swarm.models.files import ModelFiles
from swarm.models.progress import Progress, silent
from swarm.runtime.reputation import ReputationStore
from swarm.transport.protocol import Transport
from swarm.wire.fields import Codec


@dataclass(frozen=True, slots=True)
class ClientParts:
    """What a client is made of."""

    transport: Transport
    directory: Directory
    clock: Clock
    files: ModelFiles
    tokenizer: Tokenizer
    reputation: ReputationStore | None = None
    """What it knows of others, and notes; None: only as long as the client lives. Closed with the client."""
    identity: Identity | None = None
    """The node's own, to counter-sign receipts; None: they stay without."""

    def __post_init__(self) -> None:
        if self.identity is not None and self.identity.peer_id != self.transport.peer_id:
            raise ConfigError("a client's identity is its node's")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """How a client works. Times in seconds; ``progress`` is for the weights a local head loads.

    ``busy_timeout_s`` is how long to wait for room when every chain is full, ``heal_timeout_s`` for somebody who takes
    over layers that a chain has lost, ``step_timeout_s`` for the answer to one step.
    """

    remote_head: bool = True
    codec: Codec = "raw"
    mixed_numerics: bool = False
    busy_timeout_s: float = 60.0
    heal_timeout_s: float = 60.0
    step_timeout_s: float = 60.0
    progress: Progress = silent
