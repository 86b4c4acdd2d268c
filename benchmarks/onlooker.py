"""What one server sees of sessions: every frame that others send it, taken off the (in-memory) network."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from swarm.core.ids import PeerId
from swarm.wire.frames import Frame, decode_frame
from swarm.wire.messages import Close, Hello, Open, Step
from swarm.wire.payload import Ids, split_payload
from swarm.wire.session import Channel


@dataclass(slots=True)
class SeenStep:
    """A step as it came: ``rows`` float32 ``[rows, hidden]`` where it carries any, ``ids`` where those ride along."""

    at_s: float
    step: Step
    ids: Ids | None
    rows: npt.NDArray[np.float32] | None


@dataclass(slots=True)
class Seen:
    """One session at one server. ``number`` is this one's place among those of its client, ``fetches_before`` how
    often that client had asked for rows when it opened it."""

    client: PeerId
    opened: Open
    opened_s: float
    number: int
    fetches_before: int
    steps: list[SeenStep] = field(default_factory=list)
    others: list[tuple[float, str]] = field(default_factory=list)
    """The client's other frames on the control stream: when, and the name of the message."""

    @property
    def ids(self) -> npt.NDArray[np.int64]:
        """Of all rows in order; empty where none ride along."""
        known = [seen.ids for seen in self.steps if seen.ids is not None]
        return np.concatenate(known) if known else np.zeros(0, np.int64)

    @property
    def prompt_rows(self) -> int:
        """Of the first prompt: what came before the first step of one row that follows an answer."""
        return next((seen.step.keep + seen.step.rows for seen in self.steps if seen.step.want), 0)


class Onlooker:
    """Reads what goes to ``server``. Sessions must come one at a time: frames of a link do not name theirs."""

    def __init__(self, server: PeerId, hidden: int) -> None:
        self.closed = asyncio.Event()
        """Set by the CLOSE of a session."""
        self._server = server
        self._hidden = hidden
        self._last: dict[PeerId, Seen] = {}
        self._current: Seen | None = None
        self._counts: defaultdict[PeerId, int] = defaultdict(int)
        self._fetches: defaultdict[PeerId, int] = defaultdict(int)

    @property
    def latest(self) -> Seen:
        """The session that was opened last; ``LookupError`` before the first."""
        if self._current is None:
            raise LookupError("no session was opened yet")
        return self._current

    def hook(self, source: PeerId, target: PeerId, protocol: str, data: bytes) -> bytes:
        """A tap of the network; nothing is changed."""
        if target == self._server and protocol in (Channel.CONTROL.protocol, Channel.LINK.protocol):
            self._note(source, decode_frame(data)[0])
        elif target == self._server and protocol == Channel.FETCH.protocol:
            self._fetches[source] += 1
        return data

    def _note(self, source: PeerId, frame: Frame) -> None:
        message, now_s = frame.message, time.monotonic()
        if isinstance(message, Open):
            seen = Seen(source, message, now_s, self._counts[source], self._fetches[source])
            self._counts[source] += 1
            self._last[source] = self._current = seen
        elif isinstance(message, Step) and self._current is not None:
            ids, tensor = split_payload(message, frame.payload)
            rows = np.frombuffer(bytes(tensor), "<f4").reshape(-1, self._hidden) if len(tensor) else None
            self._current.steps.append(SeenStep(now_s, message, None if ids is None else ids.copy(), rows))
        elif not isinstance(message, Hello) and source in self._last:
            self._last[source].others.append((now_s, type(message).__name__))
            if isinstance(message, Close):
                self.closed.set()
