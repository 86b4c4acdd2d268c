"""One server's part in a session, as its client holds it: the control stream, and what was agreed over it."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from typing import Protocol

from swarm.client.chains.diagnosis import CRIME, WORD, Loss, LossKind, Seat
from swarm.client.evidence.receipts import SessionNames, Signer
from swarm.client.evidence.witness import Witness
from swarm.client.plan import ChainPlan, StagePlan
from swarm.core.errors import (
    BusyError,
    MisuseError,
    PeerError,
    PeerLostError,
    PeerUnreachableError,
    ProtocolViolation,
    RefusedError,
    SwarmError,
)
from swarm.core.ids import SECRET_BYTES, PeerId
from swarm.transport.framing import FrameStream
from swarm.transport.protocol import Transport
from swarm.transport.pulse import Hold, PulseKeeper
from swarm.wire.evidence import Countersign, Settle, Settled
from swarm.wire.frames import Frame
from swarm.wire.messages import Accept, Busy, Close, Failed, Noop, Open, Refused, Relink, Relinked
from swarm.wire.session import Channel, Phase, Role

MAX_RESULT_FRAME_BYTES = 16 * 1024 * 1024
"""Room for every row a step may want answered, in float32, of a model far wider than any."""
HANG_UP_S = 2.0
"""How long a peer that reads nothing may hold up the end of a session."""
CLIENT = -1
"""The client's number, as what comes before the first server."""
NOBODY = -2
"""The number of what comes after the last server."""
FAILED_KINDS: dict[str, LossKind] = {"draining": "draining", "idle": "idle"}
"""FAILED messages that are nobody's fault; any other is its sender's, who may blame others as he likes."""


@dataclass(frozen=True, slots=True)
class SessionParts:
    """What all servers of a session are told alike, and the client's own means."""

    plan: ChainPlan
    transport: Transport
    pulse: PulseKeeper | None
    names: SessionNames
    witness: Witness


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a server may take, in seconds: to be dialled, to answer OPEN, to answer RELINK."""

    dial_s: float
    open_s: float
    relink_s: float


class Ears(Protocol):
    """Who hears what a member says."""

    def on_frame(self, member: Member, frame: Frame) -> None:
        """Called for each frame that is not about the member alone; ``ProtocolViolation`` if it cannot be."""
        ...

    def on_loss(self, member: Member, weight: int, loss: Loss) -> None:
        """Called when the member, or a link to it, ends or breaks the protocol."""
        ...


class Member:
    """A server of the session, from OPEN to CLOSE.

    ``number`` is its name on the wire. ``secret`` admits whoever pushes to it; ``upstream`` and ``downstream`` are the
    numbers of its neighbours as it was last told. ``whole`` says that it holds every committed row.
    """

    def __init__(self, stage: StagePlan, number: int, ears: Ears) -> None:
        self.stage = stage
        self.number = number
        self.secret = b""
        self.upstream = self.downstream = NOBODY
        self.whole = False
        self.load: Accept | None = None
        self.parted = False
        self._ears = ears
        self._control: FrameStream | None = None
        self._reader: asyncio.Task[None] | None = None
        self._pulse: tuple[PulseKeeper, Hold] | None = None
        self._asked = -1
        self._relinked: asyncio.Future[Relinked] | None = None
        self._settled: asyncio.Future[Settled] | None = None

    @property
    def peer(self) -> PeerId:
        return self.stage.peer

    @property
    def accepted(self) -> bool:
        """True once it has answered OPEN with ACCEPT."""
        return self.load is not None

    @property
    def seat(self) -> Seat:
        return Seat(self.number, self.peer, f"{self.stage.short} for layers {self.stage.span}")

    @property
    def signer(self) -> Signer:
        """The stage for whoever collects its receipts; ``MisuseError`` before it has accepted."""
        if self.load is None:
            raise MisuseError("a server that has not accepted")
        return Signer(self.number, self.stage, self.load)

    def renew_secret(self) -> None:
        """A fresh secret for the link into this server."""
        self.secret = secrets.token_bytes(SECRET_BYTES)

    def watch(self, pulse: PulseKeeper | None) -> None:
        """Beat to it: one that falls silent is lost, even if its connection looks alive."""
        if pulse is None or self._pulse is not None:
            return

        def silent(reason: str) -> None:
            self._lose(WORD, "silent", f"server {self.seat.name} went away: {reason}")

        self._pulse = pulse, pulse.hold(self.peer, self.stage.announcement.addresses, silent)

    async def open(self, transport: Transport, message: Open, patience: Patience) -> None:
        """Reserve its place. ``BusyError``, ``RefusedError``, or why it does not answer."""
        control = await dial(transport, self.stage, Channel.CONTROL, patience.dial_s)
        self._control = control
        await control.send(message)
        reply = (await control.receive_within(patience.open_s, "answer to OPEN")).message
        if isinstance(reply, Busy):
            raise BusyError(f"server {self.stage.short} is busy: {reply.reason}", retry_after_s=reply.retry_after_s)
        if isinstance(reply, Refused):
            raise RefusedError(f"server {self.stage.short} refused: {reply.reason}")
        if isinstance(reply, Accept):
            self.load = reply
            self._reader = asyncio.create_task(self._read(control), name=f"control of {self.peer[-8:]}")

    async def relink(self, message: Relink, patience: Patience) -> Relinked:
        """Move it to another generation; its answer. Raises why there is none, in time or at all."""
        if self._control is None or self.parted:
            raise PeerLostError(f"server {self.stage.short} is lost", peer=self.peer)
        future: asyncio.Future[Relinked] = asyncio.get_running_loop().create_future()
        self._asked, self._relinked = message.generation, future
        try:
            async with asyncio.timeout(patience.relink_s):
                await self._control.send(message)
                return await future
        except TimeoutError as error:
            raise PeerUnreachableError(
                f"server {self.stage.short} did not answer RELINK within {patience.relink_s:g} s"
            ) from error

    async def settle(self, keep: int) -> None:
        """Have it sign what is left of the ``keep`` accepted rows; return once it has. Raises why it has not."""
        if self._control is None or self.parted:
            raise PeerLostError(f"server {self.stage.short} is lost", peer=self.peer)
        self._settled = asyncio.get_running_loop().create_future()
        await self._control.send(Settle(keep))
        await self._settled

    async def countersign(self, signature: bytes) -> None:
        """Give it the client's signature on its last receipt. Raises if it is gone."""
        if self._control is not None and not self.parted:
            await self._control.send(Countersign(signature))

    def part(self) -> None:
        """From now on nothing of it is heard."""
        self.parted = True
        if self._reader is not None:
            self._reader.cancel()
        if self._pulse is not None:
            keeper, hold = self._pulse
            keeper.release(hold)
            self._pulse = None

    async def hang_up(self) -> None:
        """Tell it that the session is over, and close the stream. Idempotent; one that is lost costs ``HANG_UP_S``."""
        self.part()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)
        control, self._control = self._control, None
        if control is None:
            return
        try:
            async with asyncio.timeout(HANG_UP_S):
                if control.phase in (Phase.OPENING, Phase.ACTIVE):
                    await control.send(Close())
        except (SwarmError, TimeoutError):
            pass  # it is gone already, which is what was wanted
        await control.close()

    async def _read(self, control: FrameStream) -> None:
        try:
            while not self.parted:
                frame = await control.receive()
                message = frame.message
                if isinstance(message, Failed):
                    kind = FAILED_KINDS.get(message.fault, "failed")
                    reason = f"server {self.stage.short} ended the session ({message.fault}): {message.reason}"
                    self._lose(WORD, kind, reason)
                    return
                if isinstance(message, Relinked):
                    self._hear_relinked(message)
                elif isinstance(message, Settled):
                    self._hear_settled(message)
                elif not isinstance(message, Noop):
                    self._ears.on_frame(self, frame)
        except PeerLostError as error:
            self._lose(WORD, "gone", f"server {self.seat.name} went away: {error.message}")
        except PeerError as error:
            crime = error if error.peer else ProtocolViolation(error.message, peer=self.peer)
            self._lose(CRIME, "failed", str(crime))

    def _hear_relinked(self, message: Relinked) -> None:
        if message.generation > self._asked:
            raise ProtocolViolation(f"RELINKED of generation {message.generation}, which nobody asked for")
        future = self._relinked
        if message.generation == self._asked and future is not None and not future.done():
            future.set_result(message)

    def _hear_settled(self, message: Settled) -> None:
        if self._settled is None or self._settled.done():
            raise ProtocolViolation("SETTLED, which nobody asked for")
        self._settled.set_result(message)

    def _lose(self, weight: int, kind: LossKind, reason: str) -> None:
        if self.parted:
            return
        error = PeerLostError(reason, peer=self.peer)
        for asked in (self._relinked, self._settled):
            if asked is not None and not asked.done():
                asked.set_exception(error)
                asked.exception()  # marks it as seen: who asked may have given up
        self._ears.on_loss(self, weight, Loss(kind, error))


async def dial(transport: Transport, stage: StagePlan, channel: Channel, timeout_s: float) -> FrameStream:
    """A stream of ``channel`` to the server of ``stage``."""
    stream = await transport.dial(
        stage.peer, channel.protocol, addresses=stage.announcement.addresses, timeout_s=timeout_s
    )
    return FrameStream(stream, channel, Role.DIALER, max_frame_bytes=MAX_RESULT_FRAME_BYTES)
