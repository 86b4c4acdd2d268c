"""What a server is worth: the swarm's predicted speed with and without it, and what the machine could alone. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec

from swarm.client.finding.snapshot import Snapshot
from swarm.core.errors import NoRouteError
from swarm.core.ids import PeerId
from swarm.core.listing import Listing
from swarm.scheduling.bounds import Bounds

FASTER = 1.1
"""By less than this factor predictions are alike: they are not that exact."""
BUSY_TEXT = (
    "This machine was busy with other work while it was measured: its figures are low; "
    "they are measured again while it serves."
)


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a step of a new session takes, None where there is no chain, and then why."""

    step: Bounds | None
    why: str = ""

    @property
    def tokens_per_s(self) -> float | None:
        """In the middle of what may be."""
        return None if self.step is None else 1 / self.step.middle_s

    @property
    def range_tokens_per_s(self) -> tuple[float, float] | None:
        """From what to what."""
        return None if self.step is None else (1 / self.step.most_s, 1 / self.step.least_s)


@dataclass(frozen=True, slots=True)
class Prospects:
    """For somebody who asks from where this server stands. ``alone_tokens_per_s`` is what this machine would do with
    the whole model in its own memory, None if it cannot hold it or was not measured; ``fits`` says which.
    ``busy`` says that others took the machine while it was measured, so that its figures are low."""

    joined: Forecast
    without: Forecast
    fits: bool = False
    alone_tokens_per_s: float | None = None
    busy: bool = False

    @property
    def faster_alone(self) -> bool:
        """True if this machine by itself would answer faster than the swarm may with it; not while that cannot, nor
        where a busy machine was measured, whose figure in both is low."""
        alone, joined = self.alone_tokens_per_s, self.joined.range_tokens_per_s
        return not self.busy and alone is not None and joined is not None and alone > FASTER * joined[1]


def prospects(
    swarm: Snapshot,
    own: Listing,
    rtt_s: Mapping[PeerId, float],
    *,
    fits: bool,
    alone_step_s: float | None,
    busy: bool = False,
) -> Prospects:
    """What ``own`` adds to ``swarm``, a view with or without it, for a client beside it.

    ``rtt_s`` are round trips from here by peer id, measured for whoever asks here and for links from and to this
    server. ``alone_step_s`` is a decode step over all layers on this machine, None: unknown; it counts if the model
    ``fits``. ``busy``: others took this machine while it was measured. As good as the figures are: other people's
    sessions to come are not foreseen, and contexts are short.
    O(routing).
    """
    others = [one for one in swarm.listings if one.peer != own.peer]
    asker: dict[str, float] = {str(peer): seconds for peer, seconds in rtt_s.items()} | {own.peer: 0.0}
    alone = 1 / alone_step_s if fits and alone_step_s else None
    return Prospects(
        _forecast(replace(swarm, listings=[*others, _with_links(own, rtt_s)], client_rtt_s=asker)),
        _forecast(replace(swarm, listings=others, client_rtt_s=asker)),
        fits,
        alone,
        busy,
    )


def _with_links(own: Listing, rtt_s: Mapping[PeerId, float]) -> Listing:
    """``own`` as one that has measured these round trips; the same link counts in both directions."""
    if own.metrics is None:
        return own
    known = own.metrics.rtt_s | {str(peer): seconds for peer, seconds in rtt_s.items() if peer != own.peer}
    return Listing(own.announcement, own.record, msgspec.structs.replace(own.metrics, rtt_s=known))


def _forecast(swarm: Snapshot) -> Forecast:
    route = swarm.route
    return Forecast(None, route.message) if isinstance(route, NoRouteError) else Forecast(swarm.expected)


def prospects_text(found: Prospects) -> str:
    """The same in sentences for the owner of the machine."""
    parts = [_speed_text(found.joined, found.without)]
    alone = found.alone_tokens_per_s
    if found.faster_alone and alone is not None:
        parts.append(f"This machine alone would be faster (about {rate(alone)} tok/s): it could hold the whole model.")
    elif alone is not None:
        parts.append(f"This machine alone could hold the whole model, at about {rate(alone)} tok/s.")
    if found.busy:
        parts.append(BUSY_TEXT)
    return " ".join(parts)


def _speed_text(joined: Forecast, without: Forecast) -> str:
    after, before = joined.step, without.step
    if after is None:
        return f"No answers yet: {joined.why}."
    speed = f"A new session from here gets {rates(after)} tok/s{_doubts(after)}"
    if before is None:
        return f"{speed}; without this server none ({without.why})."
    ends = ((after.least_s, before.least_s), (after.most_s, before.most_s))
    if all(max(pair) <= FASTER * min(pair) for pair in ends):
        return f"{speed}, with this server or without."
    return f"{speed}, {rates(before)} without this server{_doubts(before)}."


def rates(step: Bounds) -> str:
    """``about 9.1``, or ``4 to 12`` where more would pretend to know."""
    if step.vague:
        return f"{rate(1 / step.most_s)} to {rate(1 / step.least_s)}"
    return f"about {rate(1 / step.middle_s)}"


def _doubts(step: Bounds) -> str:
    return f" ({step.doubts})" if step.vague else ""


def rate(tokens_per_s: float) -> str:
    """Two digits: more would pretend to know."""
    return f"{tokens_per_s:.0f}" if tokens_per_s >= 10 else f"{tokens_per_s:.2g}"


def prospects_json(found: Prospects) -> dict[str, object]:
    """The same as fields of an event; what is unknown is null."""
    return {
        "tokens_per_s": found.joined.tokens_per_s,
        "tokens_per_s_range": found.joined.range_tokens_per_s,
        "tokens_per_s_without": found.without.tokens_per_s,
        "tokens_per_s_without_range": found.without.range_tokens_per_s,
        "reason": found.joined.why or None,
        "reason_without": found.without.why or None,
        "guessed_figures": 0 if found.joined.step is None else found.joined.step.guessed,
        "fits_alone": found.fits,
        "tokens_per_s_alone": found.alone_tokens_per_s,
        "faster_alone": found.faster_alone,
        "busy_while_measured": found.busy,
    }
