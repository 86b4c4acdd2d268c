"""What a user may set of the directory. Bounds that all nodes must share are constants elsewhere."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DirectoryOptions:
    """Time limits and rhythms in seconds, bounds on memory in bytes. The defaults suit servers and clients alike."""

    rpc_timeout_s: float = 3.0
    """A node that does not answer one request in this time is passed over."""
    call_timeout_s: float = 15.0
    """A whole lookup or store, over all nodes."""
    connect_timeout_s: float = 10.0
    survey_every_s: float = 60.0
    """How often records are looked for at all depths of sharding."""
    neighbours_every_s: float = 4.0
    """How often the depths beside the usual one are read; below the lifetime of any record."""
    replicas_known_s: float = 30.0
    """How long a writer goes on storing at the nodes that it found nearest to a key."""
    held_bytes: int = 64 * 1024 * 1024
    """What a node holds for others, over all keys."""
    remembered_bytes: int = 32 * 1024 * 1024
    """Live records whose signatures are not checked again: both of 10,000 servers take 20 MB."""
