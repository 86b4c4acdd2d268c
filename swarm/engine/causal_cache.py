"""What stands for a KV cache where the keys and values lie in a swarm: the tokens of each row, and who holds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from transformers import Cache

from swarm.core.errors import MisuseError


class TokenSession(Protocol):
    """One text whose KV is held elsewhere. Nothing is opened before it is fed."""

    def close(self) -> None:
        """Free it, without waiting. Idempotent; also called when it is dropped."""
        ...


@dataclass(frozen=True, slots=True)
class Feed:
    """Cut a session's text to ``keep`` tokens and append others; the logits after the last ``want`` are asked for.

    ``room`` is how many tokens the text will have in the end, 0 if nobody knows.
    """

    session: TokenSession
    keep: int
    token_ids: tuple[int, ...]
    want: int
    room: int = 0


class Feeder(Protocol):
    """The swarm, as a model class needs it. Calls block."""

    def session(self) -> TokenSession:
        """A new text."""
        ...

    def generation(self) -> AbstractContextManager[Callable[[int, int], None]]:
        """A generation is under way while the block lasts; at its end it is told of how many texts, and how long."""
        ...

    def feed(self, feeds: Sequence[Feed]) -> list[npt.NDArray[np.float32]]:
        """All side by side: ``[want, vocab]`` each."""
        ...

    def close(self) -> None:
        """Leave. Idempotent."""
        ...


@dataclass(slots=True)
class Row:
    """One text of a batch. The session holds the first ``held`` of its ``tokens``; the rest is fed when it must be."""

    session: TokenSession
    tokens: list[int] = field(default_factory=list)
    held: int = 0

    def truncate(self, length: int) -> None:
        del self.tokens[length:]
        self.held = min(self.held, length)


class SwarmCache(Cache):  # type: ignore[misc]  # transformers is not type-checked here
    """The KV of a batch, at the servers: a session for each row, opened when it is first fed.

    Lengths are those of the padded batch, as everywhere in transformers; what ``attention_mask`` leaves out is never
    sent. Cropping is a rollback at the servers. Rows that are reordered, repeated or copied share what they have in
    common with a session that is free, and feed the rest again. The servers forget it when it is closed or dropped.
    """

    def __init__(self, feeder: Feeder, *, room: int = 0) -> None:
        super().__init__(layers=[])
        self._feeder = feeder
        self.room = room
        """How many tokens a text will have in the end, 0 if nobody knows."""
        self.rows: list[Row] = []
        self.mask = torch.zeros(0, 0, dtype=torch.bool)
        """``[batch, length]``: which places of the batch hold a token."""
        self.ended: set[int] = set()
        """Rows whose logits nobody reads any more: they are not fed before somebody does."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(batch_size={len(self.rows)}, length={self.get_seq_length()})"

    # -- what a forward does --------------------------------------------------------------------------------

    def extend(self, ids: torch.Tensor, mask: torch.Tensor, keep: int) -> list[npt.NDArray[np.float32]]:
        """Append ``ids`` where ``mask`` holds (both ``[batch, n]``).

        Returns each row's logits ``[m, vocab]``, after those m of the last ``keep`` places that hold a token; none of
        rows that have ``ended``.
        """
        if not self.rows:
            self.rows = [Row(self._feeder.session()) for _ in range(len(ids))]
            self.mask = mask[:, :0]
        new = [ids[row][mask[row]].tolist() for row in range(len(ids))]
        wants = mask[:, mask.shape[1] - keep :].sum(dim=1).tolist()
        feeds = {
            index: Feed(row.session, row.held, (*row.tokens[row.held :], *tokens), want, self.room)
            for index, (row, tokens, want) in enumerate(zip(self.rows, new, wants, strict=True))
            if tokens and index not in self.ended
        }
        heard = dict(zip(feeds, self._feeder.feed(list(feeds.values())), strict=True))
        for index, (row, tokens) in enumerate(zip(self.rows, new, strict=True)):
            row.tokens += tokens
            row.held = len(row.tokens) if index in feeds else row.held
        self.mask = torch.cat([self.mask, mask], dim=1)
        return [heard.get(index, np.empty((0, 0), np.float32)) for index in range(len(self.rows))]

    def close(self) -> None:
        """Free what the servers hold. Idempotent; the cache is empty then."""
        self.reset()

    # -- what transformers asks of a cache ------------------------------------------------------------------

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return int(self.mask.shape[1])

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1

    def __len__(self) -> int:
        return 1

    @property
    def batch_size(self) -> int:
        return len(self.rows)

    @property
    def is_initialized(self) -> bool:
        return bool(self.rows)

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return True

    @property
    def is_sliding(self) -> list[bool]:
        return [False]

    @property
    def is_linear(self) -> list[bool]:
        return [False]

    @property
    def is_dummy(self) -> list[bool]:
        return [False]

    def crop(self, tokens_to_remove: int) -> None:
        """Take the last ``-tokens_to_remove`` places back; ``MisuseError`` if there are not so many."""
        length = self.get_seq_length() + tokens_to_remove
        if tokens_to_remove > 0 or length < 0:
            raise MisuseError(
                f"crop({tokens_to_remove}) of a cache of {self.get_seq_length()}",
                hint="give a negative number: how many of its places to take back",
            )
        self.mask = self.mask[:, :length]
        for row, count in zip(self.rows, self.mask.sum(dim=1).tolist(), strict=True):
            row.truncate(count)

    def reset(self) -> None:
        rows, self.rows = self.rows, []
        self.mask = self.mask[:0, :0]
        for row in rows:
            row.session.close()

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.batch_select_indices(torch.arange(len(self.rows)).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Make the rows those of ``indices``. A row that is wanted twice gets a session that has most of it already."""
        sources: list[int] = indices.tolist()
        self.mask = self.mask[torch.tensor(sources, dtype=torch.long)]
        spare = dict(enumerate(self.rows))
        heirs = {place: spare.pop(source) for place, source in enumerate(sources) if source in spare}
        rows = []
        for place, source in enumerate(sources):
            tokens = list(self.rows[source].tokens)
            if place in heirs:
                rows.append(heirs[place])
                continue
            best = max(spare, key=lambda index: _common(spare[index], tokens), default=None)
            if best is None:
                rows.append(Row(self._feeder.session(), tokens))
            else:
                other = spare.pop(best)
                rows.append(Row(other.session, tokens, _common(other, tokens)))
        for row in spare.values():
            row.session.close()
        self.rows = rows

    def __deepcopy__(self, memo: dict[int, Any]) -> SwarmCache:
        copied = SwarmCache(self._feeder, room=self.room)
        copied.rows = [Row(self._feeder.session(), list(row.tokens)) for row in self.rows]
        copied.mask = self.mask.clone()
        return copied


def _common(row: Row, tokens: Sequence[int]) -> int:
    """How many first tokens of ``tokens`` a row's session holds."""
    limit = min(row.held, len(tokens))
    return next((i for i in range(limit) if row.tokens[i] != tokens[i]), limit)
