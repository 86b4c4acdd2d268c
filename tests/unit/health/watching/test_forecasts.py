"""What is predicted when: known models at once, all together within the time a page can spare."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from sights import MODEL, server, sight

from swarm.core.listing import Listing
from swarm.health.picture.building import NO_PREDICTION, Prediction
from swarm.health.sight import Seen, Sight
from swarm.health.watching import forecasts
from swarm.health.watching.forecasts import ALWAYS, LATER, SPARED_S, Forecasts

COST_S = SPARED_S / 2


class Desk:
    """Forecasts that note whom they were made for, each for the same time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[str] = []
        self.spent_s = 0.0
        self.forecasts = Forecasts(lambda: self.spent_s)
        monkeypatch.setattr(forecasts, "predict", self._predict)

    def _predict(self, seen: Sight, serving: list[Listing]) -> Prediction:
        self.made.append(seen.model)
        self.spent_s += COST_S
        return Prediction(None, float(len(self.made)), seen.model)

    def look(self, sights: list[Sight]) -> list[str]:
        """For whom something was predicted now."""
        self.made.clear()
        self.told = self.forecasts.predicted(sights)
        return list(self.made)


def models(count: int, sequence: int = 1) -> list[Sight]:
    def at(one: Seen) -> Seen:
        assert one.listing.metrics is not None
        metrics = replace(one.listing.metrics, sequence=sequence)
        return Seen(Listing(one.listing.announcement, b"", metrics), one.seen_at)

    return [sight([at(server(0, 0, 6))], model=f"{number:02}{MODEL}") for number in range(count)]


def test_what_has_not_changed_is_not_predicted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    assert desk.look(models(2)) == [one.model for one in models(2)]
    first = desk.told
    assert desk.look(models(2)) == []
    assert desk.told == first
    assert len(desk.look(models(2, sequence=2))) == 2
    assert desk.look([sight([], model="empty")]) == ["empty"]


def test_the_first_models_never_wait_and_of_the_others_each_has_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, many = Desk(monkeypatch), ALWAYS + 6
    first, rest = models(many)[:ALWAYS], models(many)[ALWAYS:]
    for turn in range(1, 7):
        made = desk.look(models(many, sequence=turn))
        assert made[:ALWAYS] == [one.model for one in first]
        assert made[ALWAYS:] == [one.model for one in rest[2 * (turn - 1) % 6 :][:2]], "whoever waited longest"
        waiting = [one.model for one in rest if desk.told[one.model] == LATER]
        assert len(waiting) == max(6 - 2 * turn, 0)
        assert all(desk.told[one.model].reason == one.model for one in rest if one.model not in waiting)


def test_a_model_without_servers_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(monkeypatch)
    many = [*models(ALWAYS + 6), *(sight([], model=f"empty{number}") for number in range(3))]
    desk.look(many)
    assert desk.told["empty0"] == NO_PREDICTION
