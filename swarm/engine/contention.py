"""Whether others took the processors while something was measured here, so that its figures are low."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil
import torch

LACKING_SHARE = 0.25
"""Of the threads that compute, so many without a processor of their own show in what is measured."""
LEAST_WALL_S = 0.1
"""Systems count processor time in ticks of some 10 ms: a shorter look says nothing."""
_BUSY_FIELDS = "user", "nice", "system", "irq", "softirq", "steal"


@dataclass(frozen=True, slots=True)
class CpuReading:
    """At one moment: the time, and the processor time that everybody and this process have used by then."""

    wall_s: float
    all_s: float
    own_s: float


def read_cpu() -> CpuReading:
    """Now. Where the system counts nothing ``all_s`` stays 0, which looks like a machine of our own."""
    try:
        times = psutil.cpu_times()
    except (OSError, RuntimeError, psutil.Error):
        times = None
    all_s = sum(float(getattr(times, field, 0.0)) for field in _BUSY_FIELDS)
    return CpuReading(time.perf_counter(), all_s, time.process_time())


def contended(before: CpuReading, after: CpuReading, *, threads: int, cores: int) -> bool:
    """True if what others used of ``cores`` between the readings left too few for ``threads`` that compute.

    Not noticed: others on the second hardware thread of a core, a container's quota, and a slow disk.
    """
    wall_s = after.wall_s - before.wall_s
    if wall_s < LEAST_WALL_S:
        return False
    others = max((after.all_s - before.all_s) - (after.own_s - before.own_s), 0.0) / wall_s
    return others + threads - cores > LACKING_SHARE * threads


def cpu_threads(devices: Sequence[str]) -> int:
    """Threads of this process that compute on ``devices``: torch's, or the one that feeds a GPU."""
    return torch.get_num_threads() if "cpu" in devices else 1


def cpu_cores() -> int:
    """Processors of the machine."""
    return psutil.cpu_count() or 1
