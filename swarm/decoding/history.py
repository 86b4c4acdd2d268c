"""What a sequence has said so far, counted as it grows, so that penalties cost no walk over the context."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from swarm.core.errors import MisuseError
from swarm.core.limits import MAX_VOCABULARY

_FIRST_SLOTS = 64


class History:
    """The token ids of a sequence with counts per distinct id; tokens at index >= ``answer_start`` are the answer.

    ``append`` is O(1). ``truncate`` is O(tokens dropped), for the rollback of rejected drafts. Memory is one slot per
    distinct id.
    """

    def __init__(self, ids: Iterable[int] = (), *, answer_start: int) -> None:
        if answer_start < 0:
            raise MisuseError(f"an answer cannot start at {answer_start}")
        self.answer_start = answer_start
        self._tokens: list[int] = []
        self._slot_of: dict[int, int] = {}
        self._ids = np.zeros(_FIRST_SLOTS, np.int64)
        self._seen = np.zeros(_FIRST_SLOTS, np.int64)
        self._answered = np.zeros(_FIRST_SLOTS, np.int64)
        self.extend(ids)

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def token_ids(self) -> tuple[int, ...]:
        """Every token, in order. O(n)."""
        return tuple(self._tokens)

    @property
    def distinct_ids(self) -> NDArray[np.int64]:
        """``[D]`` every id seen, each once, in no particular order. A view: valid until the next change."""
        return self._ids[: len(self._slot_of)]

    @property
    def answer_counts(self) -> NDArray[np.int64]:
        """``[D]`` how often each of ``distinct_ids`` stands in the answer; 0 for those of the prompt alone."""
        return self._answered[: len(self._slot_of)]

    def append(self, token_id: int) -> None:
        """Add one token; ``MisuseError`` if it is no token id."""
        if not 0 <= token_id < MAX_VOCABULARY:
            raise MisuseError(f"{token_id} is no token id")
        slot = self._slot_of.get(token_id)
        if slot is None:
            slot = self._new_slot(token_id)
        self._seen[slot] += 1
        if len(self._tokens) >= self.answer_start:
            self._answered[slot] += 1
        self._tokens.append(token_id)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append each in turn."""
        for token_id in token_ids:
            self.append(token_id)

    def truncate(self, length: int) -> None:
        """Keep the first ``length`` tokens, as if the others had never come; ``MisuseError`` if there are fewer."""
        if not 0 <= length <= len(self._tokens):
            raise MisuseError(f"cannot keep {length} of {len(self._tokens)} tokens")
        while len(self._tokens) > length:
            slot = self._slot_of[self._tokens.pop()]
            self._seen[slot] -= 1
            if len(self._tokens) >= self.answer_start:
                self._answered[slot] -= 1
            if self._seen[slot] == 0:
                self._drop_slot(slot)

    def _new_slot(self, token_id: int) -> int:
        slot = len(self._slot_of)
        if slot == len(self._ids):
            self._ids, self._seen, self._answered = (
                np.concatenate([column, np.zeros_like(column)]) for column in (self._ids, self._seen, self._answered)
            )
        self._slot_of[token_id] = slot
        self._ids[slot] = token_id
        self._seen[slot] = self._answered[slot] = 0
        return slot

    def _drop_slot(self, slot: int) -> None:
        """Free a slot by moving the last one into it, so that the columns stay dense."""
        last = len(self._slot_of) - 1
        del self._slot_of[int(self._ids[slot])]
        if slot != last:
            self._slot_of[int(self._ids[last])] = slot
            for column in (self._ids, self._seen, self._answered):
                column[slot] = column[last]
