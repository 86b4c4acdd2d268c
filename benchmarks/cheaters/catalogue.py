"""Every cheat by the name it is started with."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.cheaters import evidence, rows, tokens, weights
from benchmarks.cheaters.cheat import Cheat
from swarm.core.errors import ConfigError

PLAIN: dict[str, Callable[[], Cheat]] = {
    "identity": weights.identity,
    "nf4": lambda: weights.quantized("nf4"),
    "int8": lambda: weights.quantized("int8"),
    "fp8": weights.fp8,
    "noise": weights.noise,
    "short-window": weights.short_window,
    "surrogate": weights.surrogate,
    "stale": rows.stale,
    "another": rows.another,
    "other-ids": rows.other_ids,
    "tokens": tokens.replaced,
    "tokens-in-reach": tokens.in_reach,
    "claims-rows": evidence.claims_rows,
    "claims-layers": evidence.claims_layers,
    "equivocates": evidence.equivocates,
    "busy-to-audits": evidence.busy_to_audits,
    "withholds": evidence.withholds,
    "frames": evidence.frames,
}
OF_A_LAYER: dict[str, Callable[[int], Cheat]] = {"skip": weights.skip, "late": rows.late, "rarely": rows.rarely}
"""Named with a layer of the whole model: ``skip:13``."""


def kinds() -> dict[str, str]:
    """The names, and what each does."""
    named = {name: make().summary for name, make in PLAIN.items()}
    return named | {f"{name}:N": make(0).summary.replace("layer 0", "layer N") for name, make in OF_A_LAYER.items()}


def find(kind: str) -> Cheat:
    """The cheat called ``kind``; ``ConfigError`` if there is none."""
    name, colon, layer = kind.partition(":")
    if not colon and name in PLAIN:
        return PLAIN[name]()
    if name in OF_A_LAYER and layer.isdecimal():
        return OF_A_LAYER[name](int(layer))
    raise ConfigError(f"no cheat is called {kind!r}", hint=f"choose one of {', '.join(kinds())}")
