"""How well a classifier tells two kinds of sessions apart: AUC on sessions of clients it was not trained on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata
from sklearn.decomposition import PCA
from sklearn.ensemble import GradientBoostingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

Floats = npt.NDArray[np.float64]
FOLDS = 5
BOOTSTRAPS = 500
COMPONENTS = 24
Make = Callable[[], Any]
"""A fresh classifier in the form of scikit-learn's."""


@dataclass(frozen=True, slots=True)
class Auc:
    """Area under the ROC curve, and the 95 % interval of a bootstrap over clients."""

    value: float
    low: float
    high: float

    def figures(self) -> dict[str, float]:
        return {"auc": round(self.value, 3), "low": round(self.low, 3), "high": round(self.high, 3)}


def linear() -> Any:
    """Logistic regression on standardized numbers."""
    return make_pipeline(StandardScaler(), LogisticRegression(C=0.3, max_iter=2000))


def trees() -> Any:
    """Gradient boosting of shallow trees, which sees combinations."""
    return GradientBoostingClassifier(n_estimators=60, max_depth=2, subsample=0.7, max_features="sqrt", random_state=0)


def directions() -> Any:
    """Logistic regression on the main directions of long vectors."""
    reduced = PCA(COMPONENTS, random_state=0)
    return make_pipeline(StandardScaler(), reduced, StandardScaler(), LogisticRegression(C=0.3, max_iter=2000))


def phrases() -> Any:
    """Logistic regression on the tokens, pairs and triples of tokens that a text of numbers holds."""
    grams = TfidfVectorizer(token_pattern=r"\S+", ngram_range=(1, 3), sublinear_tf=True, min_df=2)
    return make_pipeline(grams, LogisticRegression(C=10.0, max_iter=2000))


def auc(makers: Sequence[Make], data: Any, labels: Sequence[int], clients: Sequence[str], seed: int = 0) -> Auc:
    """Out-of-fold AUC of the best of some classifiers; all sessions of a client are in one fold.

    ``data`` is an array of numbers ``[sessions, features]`` or a list of texts, ``labels`` are 1 for a challenge. Each
    fold's scores enter as ranks, since classifiers of different folds do not share a scale. The best of several that
    tell nothing is a little above one half by chance.
    """
    known, groups = np.asarray(labels), np.asarray(clients)
    rows = data if isinstance(data, np.ndarray) else np.asarray(data, dtype=object)
    tries = [_scores(make, rows, known, groups, seed) for make in makers]
    return _with_interval(known, max(tries, key=lambda scores: _area(known, scores)), groups, seed)


def shuffled(labels: Sequence[int], clients: Sequence[str], seed: int) -> list[int]:
    """The same labels dealt out anew, a client's together: nothing can tell these apart."""
    names = list(dict.fromkeys(clients))
    kinds = dict(zip(clients, labels, strict=True))
    order = np.random.default_rng(seed).permutation(len(names))
    dealt = {name: kinds[names[other]] for name, other in zip(names, order, strict=True)}
    return [dealt[client] for client in clients]


def _scores(make: Make, rows: Any, known: npt.NDArray[np.int64], groups: Any, seed: int) -> Floats:
    scores = np.zeros(len(known))
    for train, test in StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed).split(rows, known, groups):
        classifier = make().fit(rows[train], known[train])
        scores[test] = _ranks(classifier.predict_proba(rows[test])[:, 1])
    return scores


def _ranks(scores: Floats) -> Floats:
    return np.asarray(rankdata(scores) / len(scores))


def _area(labels: npt.NDArray[np.int64], scores: Floats) -> float:
    """The share of pairs of one of each kind in which the challenge scores higher, ties half: the area."""
    ones = int(labels.sum())
    above = float(rankdata(scores)[labels == 1].sum()) - ones * (ones + 1) / 2
    return above / (ones * (len(labels) - ones))


def _with_interval(known: npt.NDArray[np.int64], scores: Floats, groups: npt.NDArray[Any], seed: int) -> Auc:
    rng, found = np.random.default_rng(seed), []
    names, places = np.unique(groups, return_inverse=True)
    of_client = [np.flatnonzero(places == number) for number in range(len(names))]
    for _ in range(BOOTSTRAPS):
        drawn = np.concatenate([of_client[number] for number in rng.integers(0, len(names), len(names))])
        if 0 < known[drawn].sum() < len(drawn):
            found.append(_area(known[drawn], scores[drawn]))
    low, high = np.quantile(found, [0.025, 0.975])
    return Auc(_area(known, scores), float(low), float(high))
