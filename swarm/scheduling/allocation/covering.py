"""Bin covering: as many groups of servers as can each hold the model, out of as few servers as possible.

Servers are indices into ``capacities``, which fall and are cut to ``layers``. Whatever m servers cover, the m largest
cover too (put them in the others' places), so s*(k) is the least m whose m largest servers cover k models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import accumulate
from typing import TypeAlias

Groups: TypeAlias = list[list[int]]

EXACT_UP_TO = 8
"""So many servers are covered exactly: 256 sets of them, half a millisecond for each territory."""


def exact_covers(capacities: Sequence[int], layers: int) -> list[Groups]:
    """For each k from 0 to the largest possible, k groups out of s*(k) servers. Exact. O(2^n * n).

    Servers are laid end to end and a group is closed as soon as it can hold the model; the best a set of servers can do
    is then the largest (groups, layers in the open one), and a better start never leads to a worse end, so dynamic
    programming over sets finds it.
    """
    count = len(capacities)
    best = [0] * (1 << count)  # groups * layers + layers in the open group
    last = [0] * (1 << count)
    for chosen in range(1, 1 << count):
        top = -1
        for index in range(count):
            if chosen >> index & 1:
                before = best[chosen ^ (1 << index)]
                reached = before + min(capacities[index], layers - before % layers)
                if reached > top:
                    top, last[chosen] = reached, index
        best[chosen] = top
    covers: list[Groups] = [[]]
    for used in range(1, count + 1):
        chosen = (1 << used) - 1
        if best[chosen] // layers == len(covers):
            line = []
            while chosen:
                line.append(last[chosen])
                chosen ^= 1 << last[chosen]
            covers.append(sorted(map(sorted, _cut(line[::-1], capacities, layers))))
    return covers


def _cut(line: Sequence[int], capacities: Sequence[int], layers: int) -> Groups:
    """Servers in a line, cut into groups that each hold the model; a rest that does not is dropped."""
    groups: Groups = [[]]
    held = 0
    for index in line:
        groups[-1].append(index)
        held += capacities[index]
        if held >= layers:
            groups.append([])
            held = 0
    return groups[:-1]


def tightest(capacities: Sequence[int], layers: int) -> int:
    """The least sum of capacities that is at least ``layers``: no group has less. 0 if all of them are too small.

    By subset sums as bits of one number: O(n) operations on ``layers`` bits, and few where ``layers`` itself is a sum.
    """
    _, reached = _closest(Counter(capacities), layers)
    return reached


def least_servers(capacities: Sequence[int], tight: int) -> list[int]:
    """A lower bound of s*(k) for each k from 0: the fewest largest servers with ``k * tight`` layers together.

    It ends with the largest k that the sum allows, an upper bound of the pipelines. ``tight`` is ``tightest``. O(n).
    """
    needed = [0]
    for used, total in enumerate(accumulate(capacities), start=1):
        if tight and total >= len(needed) * tight:
            needed.append(used)  # one server completes at most one group: capacities are cut to the model
    return needed


def cover(capacities: Sequence[int], layers: int, wanted: int) -> Groups:
    """At most ``wanted`` groups: the largest server left, with those whose sum comes closest above ``layers``.

    A heuristic: the sum is the least possible for each group in turn (exact, by subset sums; larger servers first, so
    that the small ones remain to fill gaps), and a group loses the servers that it can spare. Always finds one group if
    the sum allows it. O(groups * n) operations on ``layers`` bits at worst; where two or three fit exactly, which is
    the rule, O(groups * distinct capacities).
    """
    stock: dict[int, list[int]] = {}
    for index in range(len(capacities) - 1, -1, -1):
        stock.setdefault(capacities[index], []).append(index)
    counts = {capacity: len(stock[capacity]) for capacity in sorted(stock, reverse=True)}
    groups: Groups = []
    while len(groups) < wanted:
        first = next((capacity for capacity, count in counts.items() if count), 0)
        if not first:
            break
        counts[first] -= 1
        chosen, reached = _closest(counts, layers - first)
        if reached < layers - first:
            counts[first] += 1
            break
        for capacity in chosen:
            counts[capacity] -= 1
        groups.append([stock[capacity].pop() for capacity in (first, *chosen)])
    return [_spared(group, capacities, layers) for group in groups]


def _closest(counts: dict[int, int], wanted: int) -> tuple[list[int], int]:
    """Capacities out of ``counts`` (largest first) with the least sum of at least ``wanted``, and that sum.

    Nothing and 0 if all together are too small, or if nothing is wanted.
    """
    if wanted <= 0:
        return [], 0
    if pair := _exact_pair(counts, wanted):
        return pair, wanted
    alone = min((capacity for capacity, count in counts.items() if count and capacity > wanted), default=0)
    best, chosen = alone, [alone] if alone else []
    below = 1  # bit s is set if s < wanted is a sum of what was looked at
    inside = (1 << wanted) - 1
    steps: list[tuple[int, int]] = []
    best_step = -1
    for capacity, count in counts.items():
        for _ in range(min(count, -(-wanted // capacity)) if capacity < wanted else 0):
            steps.append((capacity, below))
            sums = below << capacity
            if over := sums >> wanted:
                reached = wanted + (over & -over).bit_length() - 1
                if not best or reached < best:
                    best, best_step = reached, len(steps) - 1
                    if best == wanted:
                        return _walk_back(steps, best_step, best), best
            if (grown := below | (sums & inside)) == below:
                break
            below = grown
    return (chosen if best_step < 0 else _walk_back(steps, best_step, best)), best


def _exact_pair(counts: dict[int, int], wanted: int) -> list[int]:
    """One capacity, or the two with the largest among them, that are ``wanted`` together; else nothing."""
    if counts.get(wanted):
        return [wanted]
    for capacity, count in counts.items():
        other = wanted - capacity
        if count and 0 < other <= capacity and counts.get(other, 0) > (other == capacity):
            return [capacity, other]
    return []


def _walk_back(steps: Sequence[tuple[int, int]], last: int, total: int) -> list[int]:
    """The capacities that made ``total`` with step ``last``, the larger first."""
    chosen = [steps[last][0]]
    total -= steps[last][0]
    for capacity, below in reversed(steps[:last]):
        if not total:
            break
        if not below >> total & 1:
            chosen.append(capacity)
            total -= capacity
    return chosen[::-1]


def _spared(group: Sequence[int], capacities: Sequence[int], layers: int) -> list[int]:
    """``group`` without the servers it can do without, the smallest first."""
    spare = sum(capacities[index] for index in group) - layers
    kept = []
    for index in sorted(group, key=lambda index: (capacities[index], -index)):
        if capacities[index] <= spare:
            spare -= capacities[index]
        else:
            kept.append(index)
    return kept[::-1]
