"""That a server serves, told while nothing happens: a line at the bottom of a terminal, or an event now and then."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NoReturn

from swarm.cli.output.console import Console
from swarm.server.service import Server

SAMPLE_S = 2.0
SPEED_S = 10.0
"""Tokens per second are those of so long before."""


class ServingLine:
    """Looks at ``server`` every ``SAMPLE_S``. ``resting`` says why it serves nobody, or nothing; ``limits`` are the
    owner's."""

    def __init__(self, server: Server, console: Console, resting: Callable[[], str], limits: str = "") -> None:
        self._server = server
        self._console = console
        self._resting = resting
        self._limits = limits
        self._rows: deque[tuple[float, int, int]] = deque()
        self._text = ""

    async def run(self) -> NoReturn:
        """Until cancelled; then the line is gone."""
        clock, every_s = self._server.parts.clock, self._console.status_every_s
        told_s = clock.monotonic_s()
        self._look()
        if every_s is None:
            self._console.status(lambda _: self._text)
        try:
            while True:
                await clock.sleep(SAMPLE_S)
                fields = self._look()
                if every_s is not None and clock.monotonic_s() - told_s >= every_s:
                    told_s = clock.monotonic_s()
                    self._console.event("status", self._text, **fields)
        finally:
            self._console.status(None)

    def _look(self) -> dict[str, object]:
        server = self._server
        report, vitals = server.status(), server.vitals
        totals, info = report.totals, server.parts.engine.info
        decode_per_s, prefill_per_s = self._rates(totals.decode_rows, totals.prefill_rows)
        kv_tokens, step_s = server.parts.announcer.current.kv_tokens, report.step_s.quantile_s(0.5)
        fields: dict[str, object] = {
            "span": [info.span.start, info.span.end],
            "resting": self._resting(),
            "sessions": len(server.table),
            "decode_tokens_per_s": round(decode_per_s, 2),
            "prefill_tokens_per_s": round(prefill_per_s, 2),
            "queued_steps": vitals.batcher.queued_steps,
            "kv_used_share": round(1 - vitals.engine.free_tokens / kv_tokens, 4) if kv_tokens else 0.0,
            "step_p50_s": None if step_s is None else round(step_s, 5),
            "busy_share": round(report.busy_share, 4),
            "servers": server.parts.announcer.servers,
            "sessions_total": totals.sessions,
            "limits": self._limits,
        }
        self._text = line_text(str(info.span), fields)
        return fields

    def _rates(self, decode_rows: int, prefill_rows: int) -> tuple[float, float]:
        now_s = self._server.parts.clock.monotonic_s()
        self._rows.append((now_s, decode_rows, prefill_rows))
        while len(self._rows) > 2 and now_s - self._rows[1][0] >= SPEED_S:
            self._rows.popleft()
        since_s, decode, prefill = self._rows[0]
        took_s = now_s - since_s
        return ((decode_rows - decode) / took_s, (prefill_rows - prefill) / took_s) if took_s > 0 else (0.0, 0.0)


def line_text(span: str, fields: dict[str, object]) -> str:
    """``serving 0:10: 2 sessions, 31.4 tok/s, 1 queued, KV 12 % used, step 42 ms; 5 servers``."""
    resting, step_s, prefill = fields["resting"], fields["step_p50_s"], float(str(fields["prefill_tokens_per_s"]))
    sessions, servers = fields["sessions"], fields["servers"]
    parts = [f"{sessions} session{'' if sessions == 1 else 's'}"]
    parts.append(f"{float(str(fields['decode_tokens_per_s'])):.1f} tok/s")
    if prefill >= 1:
        parts.append(f"reading {prefill:.0f} tok/s")
    if fields["queued_steps"]:
        parts.append(f"{fields['queued_steps']} queued")
    parts.append(f"KV {100 * float(str(fields['kv_used_share'])):.0f} % used")
    if isinstance(step_s, float):
        parts.append(f"step {1000 * step_s:.0f} ms")
    doing = f"resting ({resting}), {span} in memory" if resting else f"serving {span}"
    limits = f"; at most {fields['limits']}" if fields["limits"] else ""
    return f"{doing}: {', '.join(parts)}; {servers} server{'' if servers == 1 else 's'} in the swarm{limits}"
