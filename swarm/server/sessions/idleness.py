"""Which sessions nobody uses: they are ended, so that their KV is free for others."""

from __future__ import annotations

from swarm.core.clock import Clock
from swarm.server.config import ServerConfig
from swarm.server.sessions.session import ServerSession
from swarm.wire.messages import Failed

SWEEP_S = 1.0


class Idleness:
    """Remembers when each session was last used."""

    def __init__(self, config: ServerConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        self._seen_s: dict[ServerSession, float] = {}

    def touch(self, session: ServerSession, now_s: float) -> None:
        """The session was used."""
        if not session.closed:
            self._seen_s[session] = now_s

    def forget(self, session: ServerSession) -> None:
        self._seen_s.pop(session, None)

    async def sweep(self) -> None:
        """End idle sessions until cancelled."""
        config = self._config
        while True:
            await self._clock.sleep(SWEEP_S)
            now_s = self._clock.monotonic_s()
            for session, seen_s in list(self._seen_s.items()):
                if session.working:
                    self.touch(session, now_s)
                    continue
                # Only the head server hears from the client itself; further down the first step may take its time.
                unused = session.steps_taken == 0 and session.neighbours.from_client
                limit_s = config.open_timeout_s if unused else config.idle_timeout_s
                if now_s - seen_s > limit_s:
                    session.end(Failed("idle", f"no step for {limit_s:g} s"))
