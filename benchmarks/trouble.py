"""A seeded schedule of kills, freezes and restarts that leaves every layer somebody who holds it. Pure.

The order and the pauses are fixed by the seed; what is not is how long a restart takes on this machine. So an event may
name machines that must be READY before it: whoever runs the schedule waits for those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from swarm.core.errors import ConfigError
from swarm.core.spans import Span, missing_layers

Act = Literal["kill", "freeze", "wake", "restart"]
COUNTED: tuple[Act, ...] = ("kill", "freeze", "restart")
"""What a number of events counts: waking somebody up does no harm."""
WEIGHTS: dict[Act, float] = {"kill": 2.0, "freeze": 2.0, "wake": 2.0, "restart": 4.0}
"""Of what is possible at a moment. Restarts come soon, or there would be nobody left to harm."""
KILL_FROZEN = 0.3
"""Share of those frozen that never wake."""
AT_ONCE = 0.15
"""Share of events that follow the one before without a pause."""
PAUSE_S = (0.3, 3.0)
"""Shortest and longest pause: a freeze is shorter or longer than it takes to be noticed, as it comes."""
DAEMON_TOO = 0.5
"""Share of freezes that stop the network daemon as well."""


@dataclass(frozen=True, slots=True)
class Event:
    """After ``pause_s``, and once the machines ``after`` are READY, ``act`` happens to machine ``number``."""

    act: Act
    number: int
    pause_s: float
    after: tuple[int, ...] = ()
    daemon: bool = False

    def __str__(self) -> str:
        waits = f", once {', '.join(f'#{number}' for number in self.after)} READY" if self.after else ""
        return f"+{self.pause_s:.2f} s{waits}: {self.act} #{self.number}{' and its daemon' if self.daemon else ''}"


@dataclass(slots=True)
class Standing:
    """Which machines serve, stand still, are dead, or were started again and may not be READY yet."""

    spans: Sequence[Span]
    layers: int
    frozen: set[int] = field(default_factory=set)
    dead: set[int] = field(default_factory=set)
    coming: set[int] = field(default_factory=set)

    def away(self, number: int) -> bool:
        """True if the machine holds nothing for anybody now."""
        return number in self.frozen or number in self.dead

    def spared(self, number: int) -> bool:
        """True if without this machine every layer still has a holder, perhaps one that is only coming."""
        left = [span for other, span in enumerate(self.spans) if other != number and not self.away(other)]
        return not missing_layers(left, self.layers)

    def apply(self, event: Event) -> None:
        """What ``event`` makes of it."""
        number = event.number
        self.coming -= {*event.after}
        for group in (self.frozen, self.dead, self.coming):
            group.discard(number)
        {"kill": self.dead, "freeze": self.frozen, "restart": self.coming, "wake": set()}[event.act].add(number)


def schedule(spans: Sequence[Span], layers: int, seed: int, count: int) -> list[Event]:
    """At least ``count`` kills, freezes and restarts of machines that hold ``spans`` of a model of ``layers``.

    At every moment every layer has a holder that runs and was READY before; at the end everybody runs. The same
    arguments give the same schedule. O(count * machines^2). ``ConfigError`` if no machine can be spared.
    """
    standing = Standing(spans, layers)
    if not any(standing.spared(number) for number in range(len(spans))):
        raise ConfigError("each of these machines holds a layer that no other does", hint="add replicas")
    random = Random(seed)
    events: list[Event] = []
    while sum(event.act in COUNTED for event in events) < count:
        event = _next(standing, random)
        events.append(event)
        standing.apply(event)
    for number in sorted(standing.frozen | standing.dead):
        events.append(Event("wake" if number in standing.frozen else "restart", number, _pause_s(random)))
    return events


def _next(standing: Standing, random: Random) -> Event:
    choices = list(_choices(standing))
    act, number = random.choices(choices, weights=[WEIGHTS[act] for act, _ in choices])[0]
    if act == "wake" and random.random() < KILL_FROZEN:
        act = "kill"
    harms = act in ("kill", "freeze") and not standing.away(number)
    after = tuple(sorted(_needed(standing, number))) if harms else ()
    return Event(act, number, _pause_s(random), after, daemon=act == "freeze" and random.random() < DAEMON_TOO)


def _choices(standing: Standing) -> Iterator[tuple[Act, int]]:
    for number in range(len(standing.spans)):
        if number in standing.dead:
            yield "restart", number
        elif number in standing.frozen:
            yield "wake", number
        elif standing.spared(number):
            yield "kill", number
            yield "freeze", number


def _needed(standing: Standing, number: int) -> set[int]:
    """Machines still coming that must be READY before ``number`` goes: itself, and those that hold its layers."""
    span = standing.spans[number]
    shared = {other for other in standing.coming if _overlap(standing.spans[other], span)}
    return shared | ({number} & standing.coming)


def _overlap(first: Span, second: Span) -> bool:
    return first.start < second.end and second.start < first.end


def _pause_s(random: Random) -> float:
    return 0.0 if random.random() < AT_ONCE else round(random.uniform(*PAUSE_S), 2)
