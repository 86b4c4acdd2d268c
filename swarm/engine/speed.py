"""How fast a span computes, alone and unloaded."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanSpeed:
    """A decode step over n layers takes ``fixed_s + n * tau_s``.

    ``step_s`` is the time of a step over the whole span for 1, 2, 4 and 8 sessions together (empty: not measured).
    """

    tau_s: float
    fixed_s: float = 0.0
    step_s: tuple[float, ...] = ()
    prefill_tokens_per_s: float = 0.0

    @property
    def power_layers_per_s(self) -> float:
        """Layers of a decode step in a second."""
        return 1.0 / self.tau_s if self.tau_s > 0 else 0.0


UNMEASURED = SpanSpeed(tau_s=1.0)
"""What is said of a span that nobody measured: slow enough to be nobody's first choice."""
