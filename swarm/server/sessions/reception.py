"""Who is let in: what an OPEN must satisfy, what is reserved for it, and the way to the server it names next."""

from __future__ import annotations

import msgspec

from swarm.core.announcement import Announcement
from swarm.core.errors import BusyError, RefusedError
from swarm.core.ids import PeerId, SessionKey
from swarm.core.numerics import DTYPE_BYTES
from swarm.core.records import read_announcement
from swarm.server.config import ServerConfig
from swarm.server.queueing.admission import check_following, check_open
from swarm.server.queueing.gate import Gate
from swarm.server.record.kept import Kept
from swarm.server.record.notary import LEAF_BYTES_HELD, Notary
from swarm.server.record.replay_log import Encoding, ReplayBudget
from swarm.server.record.shelf import Shelf
from swarm.server.record.signing import Desk
from swarm.server.reports.vitals import Vitals
from swarm.server.sessions.downlink import Dialer, Downlink
from swarm.server.sessions.passage import Stage
from swarm.server.sessions.session import ServerSession
from swarm.server.sessions.tail import TailSampler
from swarm.transport.framing import FrameStream
from swarm.wire.fields import DECODE_LANE
from swarm.wire.messages import Accept, Downstream, Hello, Open
from swarm.wire.payload import ID_BYTES

LEAVING_RETRY_S = 5.0
"""So long may a client wait for whoever takes a leaving server's place, if nobody else holds its layers."""


class Reception:
    """Admits sessions while ``draining`` is unset. Receipts are signed at ``desk``, or not at all."""

    def __init__(self, config: ServerConfig, vitals: Vitals, dialer: Dialer, desk: Desk | None) -> None:
        self.draining = False
        self.gate = Gate(config, vitals)
        self._config = config
        self._vitals = vitals
        self._dialer = dialer
        self._desk = desk
        self.replay_budget = ReplayBudget(0)
        self.shelf = Shelf(vitals.clock, config.audit_hold_s, self.replay_budget)
        self.furnish()

    def furnish(self) -> None:
        """Size what is kept of rows for the engine as it is now; with no session open."""
        engine, config = self._vitals.engine, self._config
        row_bytes = ID_BYTES + engine.info.hidden_size * DTYPE_BYTES[engine.info.dtype] + LEAF_BYTES_HELD
        limit = engine.free_tokens * row_bytes if config.replay_mb is None else int(1e6 * config.replay_mb)
        self.replay_budget.limit_bytes = limit
        self.replay_budget.charge(0)

    def admit(self, control: FrameStream, opened: Open) -> tuple[ServerSession, Downlink | None]:
        """Reserve everything the session needs, or raise and reserve nothing.

        Raises ``BusyError`` if there is no room now, ``RefusedError`` or ``PeerError`` if there never will be.
        """
        vitals, client = self._vitals, control.peer
        if self.draining:
            raise BusyError("this server is leaving", retry_after_s=LEAVING_RETRY_S)
        self.gate.ask(control)
        check_open(opened, vitals.engine.info, vitals.announcer.current)
        key = SessionKey(client, opened.session, opened.stage)
        if key in vitals.table:
            raise RefusedError("this stage of this session is open already")
        downlink = None
        if opened.downstream is not None:
            downlink = self.way_to(opened.downstream, key, opened, opened.generation)
        kept = self._kept(client, opened)
        slot = self.gate.reserve(control, opened)
        sampler = TailSampler() if opened.head else None
        stage = Stage(opened, slot, vitals.engine.info, recorded=kept.notary is not None, sampler=sampler)
        return ServerSession(key, stage, control, kept), downlink

    def accept(self) -> Accept:
        """The answer to an OPEN that was admitted: the present load, and whether receipts will come."""
        load, desk = self._vitals.accept(), self._desk
        if desk is None:
            return load
        return msgspec.structs.replace(load, receipts=True, calibration=desk.calibration_digest)

    def _kept(self, client: PeerId, opened: Open) -> Kept:
        info, notary = self._vitals.engine.info, None
        raw = Encoding("raw", info.dtype, info.hidden_size)
        if self._desk is not None:
            opening = self._desk.opening(client, opened, self._vitals.announcer.current)
            notary = Notary(self._desk, opening, raw, self.replay_budget)
            if opened.generation:
                notary.resume(opened.generation, opened.signed_rows)
        return Kept(self.replay_budget, raw, notary, is_tail=opened.downstream is None)

    def way_after_heal(self, place: Downstream, session: ServerSession, generation: int) -> Downlink:
        """Like ``way_to``, but a server that must not be dialled from here is one more lost link, not an error.

        Its client has chosen it for others, and goes on to choose another: what is kept here is too good to drop.
        """
        try:
            return self.way_to(place, session.key, session.opened, generation)
        except RefusedError as error:
            following = read_announcement(place.record, now_s=self._vitals.clock.wall_s())
            downlink = self._downlink(following, place, session.key, session.opened, generation)
            downlink.lose(str(error))
            return downlink

    def way_to(self, place: Downstream, key: SessionKey, opened: Open, generation: int) -> Downlink:
        """The way from a session to a next server, not dialled yet. Raises as ``check_following`` does."""
        vitals = self._vitals
        following = check_following(place.record, opened, vitals.announcer.current, vitals.clock.wall_s())
        return self._downlink(following, place, key, opened, generation)

    def _downlink(
        self, following: Announcement, place: Downstream, key: SessionKey, opened: Open, generation: int
    ) -> Downlink:
        hello = Hello(key.client, opened.session, place.stage, place.secret, DECODE_LANE, generation)
        encoding = Encoding(opened.codec, following.numerics.dtype, self._vitals.engine.info.hidden_size)
        return Downlink(following, hello, encoding, self._dialer)
