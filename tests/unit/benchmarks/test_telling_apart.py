"""The classifiers that tell challenges from traffic: they find what is there, and nothing where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.telling_apart import auc, directions, linear, phrases, shuffled, trees

SESSIONS = 160


def sessions(shift: float, *, clients: int = SESSIONS) -> tuple[np.ndarray, list[int], list[str]]:
    """Five numbers a session, drawn alike but for the first, which is ``shift`` higher in every second session."""
    rng = np.random.default_rng(3)
    labels = [number % 2 for number in range(SESSIONS)]
    data = rng.normal(size=(SESSIONS, 5))
    data[:, 0] += shift * np.array(labels)
    return data, labels, [f"{number % 2} {number % clients}" for number in range(SESSIONS)]


def noisy(data: np.ndarray) -> np.ndarray:
    return data + np.random.default_rng(1).normal(scale=0.05, size=data.shape)


@pytest.mark.parametrize("make", [linear, trees, directions])
def test_a_difference_is_found_and_none_is_invented(make: type) -> None:
    spread = np.random.default_rng(0).normal(size=(5, 60)) if make is directions else np.eye(5)  # that takes vectors
    for shift, lowest, highest in ((3.0, 0.9, 1.0), (0.0, 0.35, 0.65)):
        data, labels, clients = sessions(shift)
        found = auc([make], noisy(data @ spread), labels, clients)
        assert lowest <= found.value <= highest
        assert found.low <= found.value <= found.high


def test_what_only_names_a_client_is_of_no_use() -> None:
    """A number that each of sixteen clients keeps, drawn without regard to its kind: folds are of clients."""
    data, labels, clients = sessions(0.0, clients=16)
    for column, _ in enumerate(data.T):
        habits = np.random.default_rng(column).normal(size=16)
        data[:, column] = habits[np.arange(SESSIONS) % 16]
    assert auc([linear], data, labels, clients).value < 0.75
    mixed = np.random.default_rng(0).permutation(SESSIONS)  # as if each session had another client
    assert auc([trees], data, labels, [str(number) for number in mixed]).value > 0.95


def test_words_are_found() -> None:
    rng = np.random.default_rng(1)
    labels = [number % 2 for number in range(SESSIONS)]
    texts = [" ".join(map(str, rng.integers(0, 40, 12) + 20 * label)) for label in labels]
    clients = [str(number) for number in range(SESSIONS)]
    assert auc([phrases], texts, labels, clients).value > 0.9
    same = [" ".join(map(str, rng.integers(0, 40, 12))) for _ in labels]
    assert 0.35 < auc([phrases], same, labels, clients).value < 0.65


def test_shuffled_labels_stay_with_their_clients() -> None:
    _, labels, clients = sessions(0.0, clients=16)
    dealt = shuffled(labels, clients, 5)
    assert dealt != labels
    assert len(set(zip(clients, dealt, strict=True))) == 16
    assert sum(dealt) == sum(labels)  # clients here have as many sessions each


def test_the_best_classifier_counts() -> None:
    data, labels, clients = sessions(0.0)
    data[:, 1] = np.where(np.arange(SESSIONS) // 2 % 2, 1, -1)
    data[:, 2] = data[:, 1] * (2 * np.array(labels) - 1)  # neither number says anything without the other
    alone, both = (auc(makers, data, labels, clients) for makers in ([linear], [linear, trees]))
    assert alone.value < 0.65
    assert both.value > 0.8
    assert set(both.figures()) == {"auc", "low", "high"}
