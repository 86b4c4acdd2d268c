"""Who tells the model index of a model: a few servers of each, so that the index stays one small key."""

from __future__ import annotations

from collections.abc import Iterable

from swarm.core.ids import rank_of
from swarm.core.model_entry import ModelEntry

ENTRIES_PER_MODEL = 4


def should_list(entries: Iterable[ModelEntry], model: str, peer: str, *, wanted: int = ENTRIES_PER_MODEL) -> bool:
    """Whether the server ``peer`` should publish (or renew) an entry for ``model``, given the live ``entries``.

    A newcomer does if fewer than ``wanted`` name the model. Of those that do, all but the first ``wanted`` by hash let
    theirs expire: many may have joined at once and seen nobody. Same entries, same answer, whatever their order.
    """
    named = {entry.peer for entry in entries if entry.model == model}
    if peer not in named:
        return len(named) < wanted
    return peer in sorted(named, key=rank_of)[:wanted]


def one_per_model(entries: Iterable[ModelEntry]) -> list[ModelEntry]:
    """One entry for each model, in order of model id; of several the last by peer id, so that readers agree."""
    return list({entry.model: entry for entry in sorted(entries, key=lambda entry: (entry.model, entry.peer))}.values())
