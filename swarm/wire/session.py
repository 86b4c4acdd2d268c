"""The session protocol as a table, without a socket: which message may follow which, and which step runs next.

Both ends of a stream, and the tests, drive the same machine: one feeds what it sends as its own role and what it
reads as the other's, so both always agree on the phase.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Generic, TypeVar

from swarm.core.errors import MisuseError, ProtocolViolation
from swarm.core.limits import MAX_PENDING_STEP_BYTES, MAX_PENDING_STEPS, PROTOCOL_MAJOR
from swarm.wire.evidence import (
    Countersign,
    FetchedRows,
    FetchProof,
    FetchRows,
    ProofPart,
    Settle,
    Settled,
    Signed,
)
from swarm.wire.messages import (
    Accept,
    Busy,
    Close,
    Failed,
    Hello,
    LinkLost,
    Message,
    Noop,
    Open,
    Pace,
    Refused,
    Relink,
    Relinked,
    Replay,
    Replayed,
    Result,
    Step,
)
from swarm.wire.status import AskStatus, StatusReport


class Channel(enum.Enum):
    """Kinds of stream.

    CONTROL runs from the client to every server, LINK carries steps to the next server, FETCH gives a closed session's
    rows back to its client, PROOF hands out a file of evidence, STATUS tells anybody how a server is.
    """

    CONTROL = "control"
    LINK = "link"
    FETCH = "fetch"
    PROOF = "proof"
    STATUS = "status"

    @property
    def protocol(self) -> str:
        """The name this kind of stream is dialled by."""
        return f"swarm.{self.value}.{PROTOCOL_MAJOR}"


class Role(enum.Enum):
    """The two ends of a stream: who opened it, and who was called."""

    DIALER = "dialer"
    LISTENER = "listener"

    @property
    def other(self) -> Role:
        return Role.LISTENER if self is Role.DIALER else Role.DIALER


class Phase(enum.Enum):
    START = "start"
    OPENING = "opening"
    ACTIVE = "active"
    CLOSED = "closed"


_C, _L, _F, _P, _T = Channel.CONTROL, Channel.LINK, Channel.FETCH, Channel.PROOF, Channel.STATUS
_D, _S = Role.DIALER, Role.LISTENER

TRANSITIONS: Mapping[tuple[Channel, Phase, Role, type[Message]], Phase] = {
    (_C, Phase.START, _D, Open): Phase.OPENING,
    (_C, Phase.OPENING, _S, Accept): Phase.ACTIVE,
    (_C, Phase.OPENING, _S, Busy): Phase.CLOSED,
    (_C, Phase.OPENING, _S, Refused): Phase.CLOSED,
    (_C, Phase.OPENING, _D, Close): Phase.CLOSED,
    (_C, Phase.ACTIVE, _D, Noop): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _D, Close): Phase.CLOSED,
    (_C, Phase.ACTIVE, _S, Noop): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _S, Result): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _S, LinkLost): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _D, Relink): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _S, Relinked): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _S, Replayed): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _S, Pace): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _S, Signed): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _D, Settle): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _S, Settled): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _D, Countersign): Phase.ACTIVE,
    (_C, Phase.ACTIVE, _S, Failed): Phase.CLOSED,
    (_L, Phase.START, _D, Hello): Phase.ACTIVE,
    (_L, Phase.ACTIVE, _D, Step): Phase.ACTIVE,
    (_L, Phase.ACTIVE, _D, Replay): Phase.ACTIVE,
    (_L, Phase.ACTIVE, _D, Noop): Phase.ACTIVE,
    (_L, Phase.ACTIVE, _S, Noop): Phase.ACTIVE,
    (_F, Phase.START, _D, FetchRows): Phase.ACTIVE,
    (_F, Phase.ACTIVE, _D, FetchRows): Phase.ACTIVE,
    (_F, Phase.ACTIVE, _S, FetchedRows): Phase.ACTIVE,
    (_F, Phase.ACTIVE, _S, Busy): Phase.CLOSED,
    (_F, Phase.ACTIVE, _S, Refused): Phase.CLOSED,
    (_P, Phase.START, _D, FetchProof): Phase.ACTIVE,
    (_P, Phase.ACTIVE, _S, ProofPart): Phase.ACTIVE,
    (_P, Phase.ACTIVE, _S, Busy): Phase.CLOSED,
    (_P, Phase.ACTIVE, _S, Refused): Phase.CLOSED,
    (_T, Phase.START, _D, AskStatus): Phase.ACTIVE,
    (_T, Phase.ACTIVE, _D, AskStatus): Phase.ACTIVE,
    (_T, Phase.ACTIVE, _S, StatusReport): Phase.ACTIVE,
    (_T, Phase.ACTIVE, _S, Busy): Phase.ACTIVE,
    (_T, Phase.ACTIVE, _S, Refused): Phase.CLOSED,
}
"""``(channel, phase, sender, message type) -> next phase``; what is absent is forbidden."""


class StreamMachine:
    """Phase of one stream, as seen from ``role``. ``closed_by_peer`` tells whose message closed it."""

    def __init__(self, channel: Channel, role: Role) -> None:
        self.channel = channel
        self.role = role
        self.phase = Phase.START
        self.closed_by_peer = False

    def sent(self, message: Message) -> None:
        """Note an own message before it is written; ``MisuseError`` if the protocol forbids it now."""
        following = TRANSITIONS.get((self.channel, self.phase, self.role, type(message)))
        if following is None:
            raise MisuseError(f"cannot send {type(message).__name__} while {self.channel.value} is {self.phase.value}")
        self.phase = following

    def received(self, message: Message) -> bool:
        """Note the peer's message; False if it crossed with the closing and must be dropped.

        Raises ``ProtocolViolation`` if the protocol forbids it now.
        """
        if self.phase is Phase.CLOSED:
            return False
        following = TRANSITIONS.get((self.channel, self.phase, self.role.other, type(message)))
        if following is None:
            raise ProtocolViolation(
                f"{type(message).__name__} is not allowed while {self.channel.value} is {self.phase.value}"
            )
        self.phase = following
        self.closed_by_peer = following is Phase.CLOSED
        return True


T = TypeVar("T")


class StepSequencer(Generic[T]):
    """Puts one session's steps, which may come on two lanes, back in order, and fences off stale ones.

    Order is ``(generation, epoch, seq)``. A step of a lower generation or epoch is dropped; a higher epoch voids
    everything of the lower one that has not run; inside an epoch steps run as 0, 1, 2, … and a repeat is harmless.
    The generation rises only through ``fence`` (the session's own client says so), never because a step claims it.
    """

    def __init__(self, *, capacity_tokens: int, generation: int = 0) -> None:
        self.capacity_tokens = capacity_tokens
        self.generation = generation
        self.epoch = 0
        self.next_seq = 0
        self._held: dict[int, tuple[T, int]] = {}
        self._held_bytes = 0

    def fence(self, generation: int) -> None:
        """Enter a higher generation: every step of a lower one is void, the sequence starts again at 0."""
        if generation > self.generation:
            self.generation = generation
            self._restart(0)

    def is_current(self, step: Step) -> bool:
        """False if a heal or a rollback has voided a step since it was released."""
        return (step.generation, step.epoch) == (self.generation, self.epoch)

    def offer(self, step: Step, item: T, size_bytes: int = 0) -> list[T]:
        """Take a step as it came; return the items that are next to run, in order (often just this one).

        ``ProtocolViolation`` for a generation the client never announced, rows beyond the reserved KV, more than
        ``MAX_PENDING_STEPS`` steps ahead, or more than ``MAX_PENDING_STEP_BYTES`` waiting for an earlier one.
        """
        if step.keep + step.rows > self.capacity_tokens:
            raise ProtocolViolation(
                f"step ends at row {step.keep + step.rows}, but {self.capacity_tokens} were reserved"
            )
        if step.want > step.rows:
            raise ProtocolViolation(f"step wants {step.want} of {step.rows} rows")
        if step.generation > self.generation:
            raise ProtocolViolation(f"step of generation {step.generation}, session is in {self.generation}")
        if (step.generation, step.epoch) < (self.generation, self.epoch):
            return []
        if step.epoch > self.epoch:
            self._restart(step.epoch)
        if step.seq < self.next_seq or step.seq in self._held:
            return []
        if step.seq - self.next_seq >= MAX_PENDING_STEPS:
            raise ProtocolViolation(f"step {step.seq} is too far ahead of {self.next_seq}")
        if step.seq > self.next_seq and self._held_bytes + size_bytes > MAX_PENDING_STEP_BYTES:
            raise ProtocolViolation("too many bytes wait for an earlier step")
        self._held[step.seq] = (item, size_bytes)
        self._held_bytes += size_bytes
        return self._release()

    def admits(self, replay: Replay) -> bool:
        """True if replayed rows are of this generation; they come on one lane, in order, and need no numbers.

        ``ProtocolViolation`` for a generation the client never announced, and for rows beyond the reserved KV.
        """
        end = replay.keep + replay.rows
        if end > self.capacity_tokens:
            raise ProtocolViolation(f"replay ends at row {end}, but {self.capacity_tokens} were reserved")
        if replay.generation > self.generation:
            raise ProtocolViolation(f"replay of generation {replay.generation}, session is in {self.generation}")
        return replay.generation == self.generation

    def _restart(self, epoch: int) -> None:
        self.epoch = epoch
        self.next_seq = 0
        self._held.clear()
        self._held_bytes = 0

    def _release(self) -> list[T]:
        ready: list[T] = []
        while self.next_seq in self._held:
            item, size_bytes = self._held.pop(self.next_seq)
            self._held_bytes -= size_bytes
            self.next_seq += 1
            ready.append(item)
        return ready
