"""A server needs memory for its span, not for the model: peak of a process from its start to READY."""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger(__name__)

RATIO = 0.7
"""What a third of the layers may need at most of what all of them do; the libraries alone take a good part of it."""
SAVED = 0.9
"""Of the weights that it does not hold, the share by which its peak must be lower."""


def test_ten_of_thirty_layers_peak_far_below_the_whole_model(swarm30: list[Any], launcher: Any) -> None:
    whole, part = launcher.server("0:30", "--dtype", "float32").ready(), swarm30[1]
    whole_weights, part_weights = (server.event("banner")["memory_bytes"] for server in (whole, part))
    figures = {
        "whole_peak_mb": round(whole.peak_bytes / 1e6, 1),
        "part_peak_mb": round(part.peak_bytes / 1e6, 1),
        "whole_weights_mb": round(whole_weights / 1e6, 1),
        "part_weights_mb": round(part_weights / 1e6, 1),
    }
    log.info("memory: %s", figures)  # pytest -rA shows it
    assert part.peak_bytes < RATIO * whole.peak_bytes, figures
    assert whole.peak_bytes - part.peak_bytes > SAVED * (whole_weights - part_weights), figures
