"""A session goes on although a neighbour was replaced: what its client may ask for, and how it is done."""

from __future__ import annotations

from swarm.core.clock import Clock
from swarm.core.errors import PeerError, ProtocolViolation
from swarm.server.config import ServerConfig
from swarm.server.sessions.downlink import Downlink
from swarm.server.sessions.links import Rendezvous
from swarm.server.sessions.reception import Reception
from swarm.server.sessions.session import ServerSession
from swarm.wire.messages import Downstream, Relink, Relinked


class Relinker:
    """Does what a session's own client says on its control stream; nobody else has a way to say it."""

    def __init__(self, config: ServerConfig, reception: Reception, table: Rendezvous, clock: Clock) -> None:
        self._config = config
        self._reception = reception
        self._table = table
        self._clock = clock

    async def relink(self, session: ServerSession, relink: Relink) -> None:
        """Go on in a higher generation, with new neighbours where the client names some, and tell it what is left.

        Waits where they come faster than ``relink_gap_s``: each may make this server dial. Raises
        ``ProtocolViolation``, before anything is changed, for what no honest client asks.
        """
        config, now_s = self._config, self._clock.monotonic_s()
        await self._clock.sleep(max(0.0, session.relinked_s + config.relink_gap_s - now_s))
        session.relinked_s = self._clock.monotonic_s()
        session.relinks += 1
        if session.relinks > config.max_relinks:
            raise ProtocolViolation(f"more than {config.max_relinks} heals of one session")
        _check(session, relink)
        downlink = None if relink.downstream is None else self._way_to(session, relink.downstream, relink.generation)
        session.fence(relink.generation, relink.keep, relink.signed_rows)
        if relink.upstream is not None:
            session.be_fed_by(relink.upstream)
        if downlink is not None:
            session.lead_to(downlink)
        self._table.wake(session)
        logged = session.kept.sent.rows
        await session.report(Relinked(relink.generation, session.kv_length, logged))
        await session.neighbours.remind(before=relink.upstream is None, after=relink.downstream is None)
        if relink.replay_hops is not None and logged >= relink.keep > 0:
            session.replay(relink.keep, relink.replay_hops)

    def _way_to(self, session: ServerSession, place: Downstream, generation: int) -> Downlink:
        try:
            return self._reception.way_after_heal(place, session, generation)
        except PeerError as error:
            raise ProtocolViolation(f"the new next server: {error}") from error


def _check(session: ServerSession, relink: Relink) -> None:
    if relink.generation <= session.generation:
        raise ProtocolViolation(f"RELINK to generation {relink.generation}, session is in {session.generation}")
    if relink.keep > session.opened.kv_tokens:
        raise ProtocolViolation(f"RELINK keeps {relink.keep} rows, but {session.opened.kv_tokens} were reserved")
    if session.kept.settled:
        raise ProtocolViolation("RELINK after SETTLE")
    if session.is_tail and (relink.downstream is not None or relink.replay_hops is not None):
        raise ProtocolViolation("behind the last layer there is no next server")
    near, client = session.neighbours, session.key.client
    if near.from_client and relink.upstream is not None and relink.upstream.peer != client:
        raise ProtocolViolation("the client itself feeds this server, and nobody can take its place")
