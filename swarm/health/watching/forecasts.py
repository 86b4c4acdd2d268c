"""What routing predicts of each model: again where something changed, and for no more time than a page can spare."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarm.core.listing import Listing
from swarm.health.picture.building import NO_PREDICTION, Prediction, predict, replicas
from swarm.health.picture.figures import rounded
from swarm.health.sight import NOTHING_HEARD, Heard, Sight

ALWAYS = 8
"""Models, the most important ones, that are predicted whenever something about them has changed;"""
SPARED_S = 0.5
"""the others while so much time is not used up, those first that have waited longest: whoever makes up many models of
thousands of layers would have all wait for them."""
LATER = Prediction(None, None, "its chain has not been worked out yet")


@dataclass(frozen=True, slots=True)
class _Made:
    key: object
    prediction: Prediction
    turn: int


class Forecasts:
    """Remembers what was predicted. ``cpu_s`` is time that this thread has worked."""

    def __init__(self, cpu_s: Callable[[], float] = time.thread_time) -> None:
        self._cpu_s = cpu_s
        self._made: dict[str, _Made] = {}
        self._turn = 0

    def predicted(self, sights: Sequence[Sight]) -> dict[str, Prediction]:
        """A prediction for each, the most important ones first; those that had to wait have their last one."""
        self._turn += 1
        made = {sight.model: self._made[sight.model] for sight in sights if sight.model in self._made}
        due: list[tuple[bool, int, int, Sight, list[Listing], object]] = []
        for place, sight in enumerate(sights):
            serving = replicas(sight)
            key, known = _key(sight, serving), made.get(sight.model)
            if known is None or known.key != key:
                due.append((place >= ALWAYS, 0 if known is None else known.turn, place, sight, serving, key))
        due.sort(key=lambda one: one[:3])
        until_s = None
        for may_wait, _, _, sight, serving, key in due:
            if may_wait:
                until_s = until_s or self._cpu_s() + SPARED_S
                if self._cpu_s() >= until_s:
                    break
            made[sight.model] = _Made(key, predict(sight, serving), self._turn)
        self._made = made
        return {
            sight.model: made[sight.model].prediction
            if sight.model in made
            else (LATER if sight.servers else NO_PREDICTION)
            for sight in sights
        }


def _key(sight: Sight, serving: Sequence[Listing]) -> object:
    """Routes are the same where no record and no distance is another."""
    versions = [_version(one, sight.heard.get(one.peer, NOTHING_HEARD)) for one in serving]
    return sight.layers, sight.hidden_size, versions


def _version(listing: Listing, heard: Heard) -> tuple[object, ...]:
    told, metrics = listing.announcement, listing.metrics
    number = None if metrics is None else metrics.sequence
    return told.peer, told.instance, told.sequence, number, heard.rtt_s and rounded(heard.rtt_s)
