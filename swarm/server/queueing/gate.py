"""Whether a server takes one more session now, and if not, when to ask again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.core.errors import BusyError, ProtocolViolation
from swarm.core.ids import PeerId
from swarm.engine.kv import KVSlot
from swarm.scheduling.shedding import MARGIN, Allowance, Places, knee_of, most_sessions
from swarm.server.config import ServerConfig
from swarm.server.reports.vitals import Vitals
from swarm.server.sessions.session import ServerSession
from swarm.transport.addresses import household
from swarm.transport.framing import FrameStream
from swarm.wire.messages import Open

PRESENT_S = 60.0
"""A client that was turned away counts as present for so long: places are kept for it as for those inside."""


class Gate:
    """Judges by what is free, by what one client has of it, and by what the engine can carry.

    Everything here answers at once, and no wait it names is longer than a minute.
    """

    def __init__(self, config: ServerConfig, vitals: Vitals) -> None:
        self._config = config
        self._vitals = vitals
        self._places = Places()
        self._opens = Allowance(config.opens_per_s_per_client, config.open_burst_per_client)
        self._opens_from = Allowance(2 * config.opens_per_s_per_client, 2 * config.open_burst_per_client)
        self._knocking: Counter[PeerId] = Counter()
        self._turned_away_s: dict[PeerId, float] = {}
        self._entered_s: dict[ServerSession, float] = {}

    @contextmanager
    def knock(self, client: PeerId) -> Iterator[None]:
        """A control stream of ``client`` that has not sent OPEN yet; ``ProtocolViolation`` if it has too many."""
        if self._knocking[client] >= self._config.max_unopened_per_client:
            raise ProtocolViolation("too many control streams without OPEN", peer=client)
        self._knocking[client] += 1
        try:
            yield
        finally:
            self._knocking[client] -= 1
            if not self._knocking[client]:
                del self._knocking[client]

    def ask(self, control: FrameStream) -> None:
        """``BusyError`` if a client, or an address, sends OPENs faster than it may, whatever is in them."""
        place, now_s = household(control.address), self._now_s
        wait_s = self._opens.take(control.peer, now_s) or (self._opens_from.take(place, now_s) if place else 0.0)
        if wait_s > 0:
            raise BusyError("too many OPENs from one client", retry_after_s=wait_s)

    def reserve(self, control: FrameStream, opened: Open) -> KVSlot:
        """KV for one more session, or ``BusyError`` with the time to wait; ``RefusedError`` if it never fits."""
        vitals, config, client = self._vitals, self._config, control.peer
        own = [session for session in vitals.table.sessions if session.key.client == client]
        if len(own) >= config.max_sessions_per_client:
            raise self._own_limit(f"one client may hold {config.max_sessions_per_client} sessions", len(own))
        self._check_address(household(control.address))
        if len(vitals.table) >= config.max_sessions:
            raise self._full(client, f"all {config.max_sessions} sessions are taken")
        self._check_share(client, own, opened)
        self._check_queue()
        self._check_knee(client, opened)
        try:
            slot = vitals.engine.open(opened.kv_tokens)
        except BusyError as error:
            raise self._full(client, error.message) from error
        self._turned_away_s.pop(client, None)
        return slot

    def entered(self, session: ServerSession) -> None:
        """A session was accepted."""
        self._entered_s[session] = self._now_s
        self._vitals.batcher.turnaround.opened(session, self._now_s)

    def left(self, session: ServerSession) -> None:
        """It is over."""
        entered_s = self._entered_s.pop(session, None)
        if entered_s is not None and session.steps_taken:
            self._places.ended(self._now_s - entered_s)

    @property
    def knee(self) -> float | None:
        """How many sessions keep this server busy, as measured now; None if its speed is unknown."""
        batcher, meter = self._vitals.batcher, self._vitals.meter
        times_s = batcher.turnaround.times_s(meter.step_s, self._now_s)
        return knee_of(times_s, batcher.turnaround.rounds) if times_s else None

    @property
    def _now_s(self) -> float:
        return self._vitals.clock.monotonic_s()

    def _check_address(self, place: str) -> None:
        limit = self._config.max_sessions_per_address
        here = sum(household(session.control.address) == place for session in self._vitals.table.sessions)
        if place and here >= limit:
            raise self._own_limit(f"one address may hold {limit} sessions", here)

    def _check_share(self, client: PeerId, own: list[ServerSession], opened: Open) -> None:
        """A second session must leave room for others, while there are others."""
        budget = self._vitals.announcer.current.kv_tokens
        held = sum(session.opened.kv_tokens for session in own)
        share = self._config.max_kv_share_per_client
        if own and held + opened.kv_tokens > share * budget and len(self._present(client)) > 1:
            raise self._own_limit(f"beside others one client may hold {share:.0%} of {budget} KV tokens", len(own))

    def _check_queue(self) -> None:
        batcher, config = self._vitals.batcher, self._config
        per_s = self._vitals.meter.prefill_tokens_per_s
        backlog_s = batcher.queued_rows / per_s if per_s > 0 else 0.0
        if backlog_s > config.max_backlog_s:
            raise BusyError(f"{backlog_s:.0f} s of work wait already", retry_after_s=min(backlog_s, PRESENT_S))
        if batcher.queued_steps >= config.max_queued_steps:
            raise BusyError(f"{batcher.queued_steps} steps wait already", retry_after_s=1.0)

    def _check_knee(self, client: PeerId, opened: Open) -> None:
        """A session that goes on after a loss may join where a new one would be turned away: it was accepted once."""
        knee = self.knee
        if knee is None or self._config.beyond_knee:
            return
        active = self._vitals.batcher.turnaround.active(self._now_s)
        has = sum(isinstance(session, ServerSession) and session.key.client == client for session in active)
        most = most_sessions(knee, has=has, clients=len(self._present(client)))
        if len(active) + 1 > most * (MARGIN if opened.generation else 1.0):
            raise self._full(client, f"{len(active)} sessions keep this server busy")

    def _present(self, client: PeerId) -> set[PeerId]:
        """``client``, who has a session here, and who wanted one lately."""
        now_s = self._now_s
        self._turned_away_s = {peer: at_s for peer, at_s in self._turned_away_s.items() if now_s - at_s <= PRESENT_S}
        return {client, *self._turned_away_s, *(session.key.client for session in self._vitals.table.sessions)}

    def _full(self, client: PeerId, reason: str) -> BusyError:
        """No place for anybody."""
        now_s = self._now_s
        self._turned_away_s[client] = now_s
        return BusyError(reason, retry_after_s=self._places.wait_s(now_s, len(self._vitals.table)))

    def _own_limit(self, reason: str, sessions: int) -> BusyError:
        """No place for this client until a session of its own ends."""
        return BusyError(reason, retry_after_s=self._places.usual_s(sessions))
