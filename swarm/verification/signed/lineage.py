"""Whose computation of a row each stage has signed for, keeps, and took in: after heals these may differ.

A stage that is fed again what it had signed keeps those leaves, and holds other rows. Two neighbours' receipts can
agree only where the one signed for what the other took in.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Generic, TypeVar

V = TypeVar("V")


class Runs(Generic[V]):
    """A value for each row, where most rows have the one of the row before."""

    def __init__(self) -> None:
        self.rows = 0
        self._starts: list[int] = []
        self._values: list[V] = []

    def __getitem__(self, row: int) -> V:
        return self._values[bisect_right(self._starts, row) - 1]

    def truncate(self, keep: int) -> None:
        """Forget the rows from ``keep`` on."""
        self.rows = min(self.rows, keep)
        while self._starts and self._starts[-1] >= self.rows:
            self._starts.pop()
            self._values.pop()

    def extend(self, rows: int, value: V) -> None:
        """The rows up to ``rows`` that are not there yet have ``value``."""
        if rows > self.rows and not (self._values and self._values[-1] == value):
            self._starts.append(self.rows)
            self._values.append(value)
        self.rows = max(self.rows, rows)

    def starts(self, rows: int) -> Iterator[int]:
        """Where runs below ``rows`` begin."""
        return (start for start in self._starts if start < rows)


COMPUTED = 0
"""In a step, by all stages at once; rows that a heal brought back have its generation, which is above 0."""


@dataclass(slots=True)
class _Stage:
    """By row: which computation was signed for, which one is held, and of whom it took in which."""

    signed: Runs[int] = field(default_factory=Runs)
    held: Runs[int] = field(default_factory=Runs)
    came: Runs[tuple[int, int]] = field(default_factory=Runs)


class Lineage:
    """Of all stages a session ever had, by number. Time and memory grow with heals, not with rows."""

    def __init__(self) -> None:
        self._stages: dict[int, _Stage] = {}
        self._order: tuple[int, ...] = ()

    def seat(self, order: Sequence[int]) -> None:
        """These stages are the chain now."""
        self._order = tuple(order)
        for number in order:
            self._stages.setdefault(number, _Stage())

    def truncate(self, keep: int) -> None:
        """The chain went back to ``keep`` rows."""
        for number in self._order:
            stage = self._stages[number]
            for runs in (stage.signed, stage.held, stage.came):
                runs.truncate(keep)

    def compute(self, rows: int) -> None:
        """Every stage has computed the rows up to ``rows`` that it did not hold."""
        for before, number in pairwise((-1, *self._order)):
            stage = self._stages[number]
            stage.signed.extend(rows, COMPUTED)
            stage.held.extend(rows, COMPUTED)
            stage.came.extend(rows, (before, COMPUTED))

    def recompute(self, numbers: frozenset[int], keep: int, signed_rows: int, generation: int) -> None:
        """The stages ``numbers`` of the chain took in ``keep`` rows again.

        What they had signed below ``signed_rows`` stays as it was; a newcomer had signed nothing.
        """
        for before, number in pairwise((-1, *self._order)):
            if number not in numbers:
                continue
            stage, feeder = self._stages[number], self._stages.get(before)
            stage.signed.truncate(signed_rows)
            stage.came.truncate(signed_rows)
            stage.held = Runs()
            stage.held.extend(keep, generation)
            points = () if feeder is None else feeder.held.starts(keep)
            for row, end in pairwise([*sorted({0, *points}), keep]):
                if end > stage.came.rows:
                    stage.came.extend(end, (before, generation if feeder is None else feeder.held[row]))
            stage.signed.extend(keep, generation)

    def lose(self, numbers: frozenset[int], generation: int) -> None:
        """The stages ``numbers`` were told to compute everything again, and nobody knows how far they came."""
        for number in numbers & self._stages.keys():
            held = self._stages[number].held
            rows = held.rows
            held.truncate(0)
            held.extend(rows, generation)

    def seams(self, first: int, last: int) -> frozenset[tuple[int, int]]:
        """Neighbours ``(before, after)`` of which ``before`` signed for another computation of some row in
        ``[first, last)`` than came to ``after``.
        """
        return frozenset(pair for pair in pairwise(self._order) if self._signed_alike_from(*pair, last) > first)

    def judged_from(self, number: int) -> int:
        """From which row on a stage holds what it signed for."""
        signed, held = self._stages[number].signed, self._stages[number].held
        return _alike_from(signed, held, signed.rows, lambda row: signed[row] == held[row])

    def linked_from(self, before: int, after: int) -> int:
        """From which row on ``before`` holds what came to ``after``."""
        held, came = self._stages[before].held, self._stages[after].came
        return _alike_from(held, came, came.rows, lambda row: came[row] == (before, held[row]))

    def _signed_alike_from(self, before: int, after: int, rows: int) -> int:
        signed, came = self._stages[before].signed, self._stages[after].came
        return _alike_from(signed, came, min(rows, came.rows), lambda row: came[row] == (before, signed[row]))


def _alike_from(one: Runs[Any], other: Runs[Any], rows: int, alike: Callable[[int], bool]) -> int:
    """The first of ``rows`` from which on all are ``alike``; 0 if they all are."""
    end = rows
    for start in sorted({*one.starts(rows), *other.starts(rows)}, reverse=True):
        if not alike(start):
            return end
        end = start
    return 0
