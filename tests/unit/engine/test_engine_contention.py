"""A measurement that had to share the machine says so."""

from __future__ import annotations

import pytest

from swarm.engine.contention import CpuReading, contended, cpu_cores, cpu_threads, read_cpu

WALL_S = 4.0


@pytest.mark.parametrize(
    ("threads", "cores", "own", "others", "busy"),
    [
        (2, 2, 2.0, 0.0, False),
        (2, 2, 1.9, 0.1, False),
        (2, 2, 1.0, 1.0, True),
        (2, 2, 0.2, 1.8, True),
        (1, 2, 1.0, 1.0, False),  # the other core is free for others
        (1, 2, 0.5, 1.5, True),
        (8, 16, 8.0, 7.0, False),
        (8, 16, 5.0, 11.0, True),
        (1, 1, 0.4, 0.0, False),  # waiting for a disk or a GPU is nobody's fault
    ],
)
def test_others_count_where_they_leave_too_few_processors(
    threads: int, cores: int, own: float, others: float, busy: bool
) -> None:
    before = CpuReading(10.0, 1000.0, 3.0)
    after = CpuReading(10.0 + WALL_S, 1000.0 + WALL_S * (own + others), 3.0 + WALL_S * own)
    assert contended(before, after, threads=threads, cores=cores) is busy


def test_a_system_that_counts_nothing_and_a_glance_say_nothing() -> None:
    before = CpuReading(0.0, 0.0, 0.0)
    assert not contended(before, CpuReading(4.0, 0.0, 4.0), threads=1, cores=1)
    assert not contended(before, CpuReading(0.05, 0.1, 0.0), threads=2, cores=2)


def test_readings_of_this_machine_only_grow() -> None:
    before = read_cpu()
    after = read_cpu()
    assert after.wall_s >= before.wall_s
    assert after.own_s >= before.own_s
    assert after.all_s >= before.all_s >= 0
    assert cpu_cores() >= 1
    assert cpu_threads(("cuda:0",)) == 1
    assert cpu_threads(("cpu",)) >= 1
