"""READY: what the server is worth to the swarm it has joined, as far as can be known now."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from swarm.cli.hosting.probe import ProbeReport
from swarm.cli.hosting.prospects import Prospects, prospects, prospects_json, prospects_text
from swarm.client.finding.snapshot import Snapshot
from swarm.core.announcement import Announcement
from swarm.core.ids import ModelId, PeerId
from swarm.core.listing import Listing
from swarm.core.spans import missing_layers
from swarm.engine.capacity import Room
from swarm.engine.speed import SpanSpeed
from swarm.engine.work import SpanInfo
from swarm.scheduling.coverage import usable
from swarm.scheduling.reasons import layers_text
from swarm.server.service import Server
from swarm.transport.pinger import Pinger

PING_S = 1.0
"""For all round trips together; READY waits for no more."""
MOST_PINGED = 16


async def worth(server: Server, room: Room | None, *, busy: bool = False) -> tuple[list[Listing], Prospects]:
    """The servers there are now, and what this one adds. ``room`` None: nobody looked what fits into this machine;
    ``busy``: others took it while it was measured.

    Raises ``NetworkError`` if the directory fails.
    """
    announcer, info = server.parts.announcer, server.parts.engine.info
    found = await announcer.directory.servers(ModelId.parse(announcer.current.model))
    own = Listing(announcer.current, b"", server.vitals.metrics())
    swarm = Snapshot(
        model=announcer.current.model, layers=info.layer_count, listings=found, hidden_size=info.hidden_size
    )
    rtt_s = await _round_trips(server, worth_pinging(own.announcement, found)[:MOST_PINGED])
    fits = room is not None and room.capacity_layers >= info.layer_count
    step_s = None if room is None else alone_step_s(server.parts.speed, info, room)
    return found, prospects(swarm, own, rtt_s, fits=fits, alone_step_s=step_s, busy=busy)


def alone_step_s(speed: SpanSpeed, info: SpanInfo, room: Room) -> float | None:
    """A decode step over the whole model on this machine, from what the probe measured; None if it measured nothing.

    ``fixed + n·τ``, and for a span without it the LM head as so many layers as it weighs: both read every weight once.
    Wrong where a layer is not bound by memory, and by as much as the span's layers differ from the others.
    """
    if not speed.step_s:
        return None
    head = 0.0 if info.head else room.head_layers
    return speed.fixed_s + (info.layer_count + head) * speed.tau_s


def worth_pinging(own: Announcement, found: Sequence[Listing]) -> list[Listing]:
    """Who can be asked, those first whose links count: who could stand beside ``own``, or begin or end a chain."""

    def counts(other: Announcement) -> bool:
        beside = other.start <= own.end < other.end or own.start <= other.end < own.end
        return beside or other.start == 0 or other.end == other.layer_count

    there = [one for one in found if one.peer != own.peer and usable(one)]
    return sorted(there, key=lambda one: not counts(one.announcement))


async def _round_trips(server: Server, others: Sequence[Listing]) -> dict[PeerId, float]:
    """Measured now, from as many as answer in time."""
    pinger = Pinger(server.parts.transport, server.parts.clock, dial_s=PING_S, answer_s=PING_S)
    found: dict[PeerId, float] = {}

    async def measure(one: Listing) -> None:
        rtt_s = await pinger.rtt_s(one.peer, one.announcement.addresses)
        if rtt_s is not None:
            found[one.peer] = rtt_s

    with suppress(TimeoutError):
        async with asyncio.timeout(PING_S):
            await asyncio.gather(*(measure(one) for one in others))
    return found


def ready_event(
    info: SpanInfo, name: str, report: ProbeReport, found: Sequence[Listing], adds: Prospects
) -> tuple[str, dict[str, object]]:
    """The text and the fields of READY."""
    missing = missing_layers((listing.announcement.span for listing in found), info.layer_count)
    covered = f"{layers_text(missing)} still missing" if missing else "every layer is held"
    servers = "1 server" if len(found) == 1 else f"{len(found)} servers"
    text = (
        f"READY  serving layers {info.span} of {name}; "
        f"prefill {report.prefill_s * 1e3:.0f} ms, decode step {report.decode_s * 1e3:.0f} ms; "
        f"{servers} in the swarm, {covered}. Ctrl-C to leave.\n{prospects_text(adds)}"
    )
    return text, {
        "prefill_s": report.prefill_s,
        "decode_s": report.decode_s,
        "servers": len(found),
        "missing": [[span.start, span.end] for span in missing],
        **prospects_json(adds),
    }
