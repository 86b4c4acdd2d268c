"""swarm: strangers' computers answer prompts on a model that none of them could hold alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from swarm.core.version import VERSION as __version__

if TYPE_CHECKING:
    from swarm.client.blocking import SwarmModel
    from swarm.client.causal_lm import SwarmForCausalLM
    from swarm.client.results import GenerationResult
    from swarm.core.errors import GenerationInterruptedError, SwarmError

__all__ = [
    "GenerationInterruptedError",
    "GenerationResult",
    "SwarmError",
    "SwarmForCausalLM",
    "SwarmModel",
    "__version__",
]

_LAZY = {
    "SwarmModel": "swarm.client.blocking",
    "SwarmForCausalLM": "swarm.client.causal_lm",
    "GenerationResult": "swarm.client.results",
    "GenerationInterruptedError": "swarm.core.errors",
    "SwarmError": "swarm.core.errors",
}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'swarm' has no attribute {name!r}")
