"""Sessions as a classifier takes them: by server and by group of features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks import tells
from benchmarks.crowd import Visit
from benchmarks.onlooker import Seen
from benchmarks.surprise import Reader
from swarm.client.auditing.traffic import everyday
from swarm.client.tokenizer import Tokenizer
from swarm.models.files import ModelFiles

WATCHED = ("head", "middle")
"""The first two servers of three: one takes ids, one takes rows, with ids beside them."""
BLIND = ("opening", "shape", "sampling", "timing", "client", "activations")
"""What needs no look at the text."""
GROUPS = {
    "head": ("opening", "shape", "sampling", "timing", "client", "all but the text", "text", "words", "all numbers"),
    "middle": ("timing", "activations", "mean row", "all but the text", "all numbers"),
}
"""By server, what a classifier is given."""


@dataclass(frozen=True, slots=True)
class Described:
    """One session: for each server numbers by group, the mean row that came in, and the prompt's ids as a text."""

    kind: str
    client: str
    numbers: Mapping[str, Mapping[str, list[float]]]
    vectors: Mapping[str, list[float]]
    words: str


def stacked(items: Sequence[Described], server: str, group: str) -> tuple[Any, str]:
    """The data of one group, and which sort of classifier takes it: numbers, a vector, or words."""
    if group == "words":
        return [item.words for item in items], "words"
    if group == "mean row":
        return np.array([item.vectors[server] for item in items]), "vector"
    taken = {"all but the text": BLIND, "all numbers": (*BLIND, "text")}.get(group, (group,))
    rows = [[value for name in taken for value in item.numbers[server].get(name, [])] for item in items]
    return np.array(rows), "numbers"


def describe(sights: Sequence[tuple[Visit, Mapping[str, Seen]]], files: ModelFiles) -> list[Described]:
    """Every session by every server; the sessions in the order of their coming."""
    tokenizer, reader, memory = Tokenizer.of(files), Reader(files), tells.Memory()
    traffic = everyday(tokenizer, files.context_tokens, interval_s=1.0).traffic
    found = []
    for visit, seen in sights:
        ids = seen[WATCHED[0]].ids.tolist()
        first = len(traffic.prefix)
        end = seen[WATCHED[0]].prompt_rows - len(traffic.suffix)
        asked = ids[first:end]
        surprise = reader.surprise(ids, first, end)
        text = tells.text(asked, tokenizer.decode(asked), surprise, memory.known_share(asked))
        found.append(
            Described(
                kind=visit.kind,
                client=visit.client,
                numbers={name: _numbers(at, visit) | {"text": text} for name, at in seen.items()},
                vectors={name: tells.mean_row(at).tolist() for name, at in seen.items() if tells.activations(at)},
                words=" ".join(map(str, asked)),
            )
        )
    return found


def _numbers(seen: Seen, visit: Visit) -> dict[str, list[float]]:
    rows = tells.activations(seen)
    return {
        "opening": tells.opening(seen),
        "shape": tells.shape(seen),
        "sampling": tells.sampling(seen),
        "timing": tells.timing(seen),
        "client": tells.client(seen, visit.arrival),
        **({"activations": rows} if rows else {}),
    }
