"""Which computation of a row went where: against stages that write it down row by row."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from swarm.verification.signed.lineage import Lineage, Runs

Row = tuple[int, int]
"""Which stage computed it, and when."""


@dataclass
class Written:
    """A stage's rows: as signed for, as held, and as they came when it signed for them."""

    signed: list[Row] = field(default_factory=list)
    held: list[Row] = field(default_factory=list)
    came: list[Row] = field(default_factory=list)


class Plain:
    """What ``Lineage`` says, the long way."""

    def __init__(self) -> None:
        self.stages: dict[int, Written] = {}
        self.order: list[int] = []
        self.time = 0

    def seat(self, order: list[int]) -> None:
        self.order = order
        for number in order:
            self.stages.setdefault(number, Written())

    def truncate(self, keep: int) -> None:
        for number in self.order:
            stage = self.stages[number]
            del stage.signed[keep:], stage.held[keep:], stage.came[keep:]

    def compute(self, rows: int) -> None:
        self.time += 1
        self.take({*self.order}, len(self.stages[self.order[0]].held), rows, rows)

    def recompute(self, numbers: set[int], keep: int, signed_rows: int) -> None:
        self.time += 1
        self.take(numbers, 0, keep, signed_rows)

    def take(self, numbers: set[int], first: int, last: int, signed_rows: int) -> None:
        """Rows ``[first, last)`` go through these stages, one after the other."""
        client = [(-1, self.time)] * last
        for before, number in pairwise([-1, *self.order]):
            if number not in numbers:
                continue
            stage = self.stages[number]
            wire = client if before == -1 else self.stages[before].held
            stays = min(signed_rows, len(stage.signed)) if first == 0 else first
            stage.held[first:] = [(number, self.time)] * (last - first)
            stage.signed[stays:] = stage.held[stays:]
            stage.came[stays:] = wire[stays:last]

    def seams(self, first: int, last: int) -> set[tuple[int, int]]:
        return {
            (before, after)
            for before, after in pairwise(self.order)
            if self.stages[before].signed[first:last] != self.stages[after].came[first:last]
        }


def alike_from(one: list[Row], other: list[Row]) -> int:
    return max((row + 1 for row, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), default=0)


events = st.lists(
    st.one_of(
        st.tuples(st.just("step"), st.integers(1, 5), st.just(0)),
        st.tuples(st.just("rollback"), st.integers(0, 12), st.integers(1, 4)),
        st.tuples(st.just("heal"), st.sets(st.integers(0, 3)), st.tuples(st.integers(-1, 3), st.integers(0, 12))),
    ),
    max_size=10,
)


@given(events)
def test_equals_the_rows_written_down(script: list[tuple[str, object, object]]) -> None:
    plain, lineage, rows, fresh, generation = Plain(), Lineage(), 3, 4, 0
    for one in (plain, lineage):
        one.seat([0, 1, 2, 3])
        one.compute(rows)
    for verb, what, more in script:
        if verb == "heal":
            generation += 1
            fed, signed = more  # type: ignore[misc]
            order = [fresh + place if place in what else number for place, number in enumerate(plain.order)]  # type: ignore[operator]
            fresh += 4
            again = {number for place, number in enumerate(order) if place in what or place <= fed}  # type: ignore[operator]
            for one in (plain, lineage):
                one.seat(order)
            signed_rows = min(signed, rows)
            plain.recompute(again, rows, signed_rows)
            lineage.recompute(frozenset(again), rows, signed_rows, generation)
        else:
            keep = rows if verb == "step" else min(what, rows)  # type: ignore[type-var]
            rows = keep + (what if verb == "step" else more)  # type: ignore[operator]
            for one in (plain, lineage):
                one.truncate(keep)
                one.compute(rows)
        check(plain, lineage, rows)


def check(plain: Plain, lineage: Lineage, rows: int) -> None:
    for first in range(0, rows, 4):
        assert lineage.seams(first, min(first + 4, rows)) == plain.seams(first, min(first + 4, rows))
    for number in plain.order:
        assert lineage.judged_from(number) == alike_from(plain.stages[number].signed, plain.stages[number].held)
    for before, after in pairwise(plain.order):
        assert lineage.linked_from(before, after) == alike_from(plain.stages[before].held, plain.stages[after].came)


def test_what_a_failed_heal_began_is_held_by_nobody_for_sure() -> None:
    lineage = Lineage()
    lineage.seat([0, 1])
    lineage.compute(40)
    lineage.lose(frozenset({0, 7}), 3)
    assert (lineage.judged_from(0), lineage.judged_from(1), lineage.linked_from(0, 1)) == (40, 0, 40)
    assert lineage.seams(0, 40) == frozenset()


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 20), st.integers(0, 2)), max_size=20))
def test_runs_are_a_list_with_fewer_entries(script: list[tuple[bool, int, int]]) -> None:
    runs, plain = Runs[int](), list[int]()
    for cuts, rows, value in script:
        if cuts:
            runs.truncate(rows)
            del plain[rows:]
        else:
            runs.extend(rows, value)
            plain += [value] * (rows - len(plain))
        assert [runs[row] for row in range(runs.rows)] == plain
        changes = [row for row, pair in enumerate(pairwise([None, *plain])) if pair[0] != pair[1]]
        assert list(runs.starts(len(plain))) == changes
