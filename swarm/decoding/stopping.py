"""When an answer ends, and which of its text may be shown before that is known."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from swarm.core.errors import ConfigError, MisuseError

FinishReason = Literal["stop", "length"]


class TextDecoder(Protocol):
    """Turns tokens into text as they come; holds back halves of characters."""

    def push(self, token_id: int) -> str:
        """The text that is complete with this token; may be empty."""
        ...

    def finish(self) -> str:
        """Whatever is left, once no token follows."""
        ...


@dataclass(frozen=True, slots=True)
class Release:
    """What one token brought: text that is certainly part of the answer, and why the answer ended, if it did."""

    text: str
    finish_reason: FinishReason | None


class StopWatch:
    """Follows one answer token by token.

    ``stop``: the model emitted one of ``eos_ids``, or the text contains a stop string; ``length``: ``max_tokens``
    tokens came first. A token that does both stops. The text never contains an end token, and ends before the stop
    string that is complete first, reading character by character (of two complete at once, the longer): so the text
    does not depend on how tokens divide it. Text that may be the beginning of a stop string is held back until it is
    not. Raises ``ConfigError`` for an empty stop string or a limit below 1.
    """

    def __init__(
        self,
        decoder: TextDecoder,
        *,
        max_tokens: int,
        eos_ids: Collection[int] = (),
        stop_strings: Sequence[str] = (),
    ) -> None:
        if max_tokens < 1:
            raise ConfigError(f"max_tokens is {max_tokens}", hint="ask for at least 1")
        if not all(stop_strings):
            raise ConfigError("a stop string is empty", hint="leave it out")
        self._decoder = decoder
        self._max_tokens = max_tokens
        self._eos_ids = frozenset(eos_ids)
        self._stops = tuple(stop_strings)
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self._tokens = 0
        self._finish_reason: FinishReason | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended; None while it goes on."""
        return self._finish_reason

    def push(self, token_id: int) -> Release:
        """Take the next token; ``MisuseError`` if the answer has ended."""
        if self._finish_reason is not None:
            raise MisuseError(f"the answer has ended ({self._finish_reason})")
        self._tokens += 1
        if token_id in self._eos_ids:
            return self._end(self._decoder.finish(), "stop")
        text = self._decoder.push(token_id)
        if self._tokens == self._max_tokens:
            return self._end(text + self._decoder.finish(), "length")
        return self._take(text)

    def cut(self) -> str:
        """The text still held back, for an answer that ends here for a reason of the caller's."""
        held = self._held + self._decoder.finish()
        self._held = ""
        start = self._first_stop(held)
        return held if start is None else held[:start]

    def _end(self, text: str, reason: FinishReason) -> Release:
        release = self._take(text)
        if release.finish_reason is None:
            self._finish_reason = reason
            release = Release(release.text + self._held, reason)
        self._held = ""
        return release

    def _take(self, text: str) -> Release:
        if not self._stops:
            return Release(text, None)
        text = self._held + text
        start = self._first_stop(text)
        if start is not None:
            self._held = ""
            self._finish_reason = "stop"
            return Release(text[:start], "stop")
        kept = len(text) - self._possible_beginning(text)
        self._held = text[kept:]
        return Release(text[:kept], None)

    def _first_stop(self, text: str) -> int | None:
        """Where the stop string begins that is complete first, the longest of those; None if there is none."""
        found = [(start + len(stop), start) for stop in self._stops if (start := text.find(stop)) >= 0]
        return min(found)[1] if found else None

    def _possible_beginning(self, text: str) -> int:
        """Length of the longest end of ``text`` that begins a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
