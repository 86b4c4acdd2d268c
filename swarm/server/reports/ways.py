"""The ways to the servers that this one sends rows to, and how they are."""

from __future__ import annotations

from collections import OrderedDict

from swarm.core.ids import PeerId
from swarm.transport.pulse import PulseKeeper
from swarm.transport.uplink import UplinkMeter
from swarm.wire.fields import MAX_SECONDS
from swarm.wire.status import MAX_LINKS, LinkFigures

MAX_WAYS = 2 * MAX_LINKS
"""Next servers whose goodput is remembered, those of the latest links."""
MAX_MBPS = 1e9


class Ways:
    """Knows only next servers, each of which has announced itself; a client is none."""

    def __init__(self, pulse: PulseKeeper, uplink: UplinkMeter) -> None:
        self._pulse = pulse
        self._uplink = uplink
        self._meters: OrderedDict[PeerId, UplinkMeter] = OrderedDict()

    def meter(self, peer: PeerId) -> UplinkMeter:
        """What measures a new link to ``peer``, and with it what this node sends in all."""
        meter = self._meters.setdefault(peer, self._uplink.part())
        self._meters.move_to_end(peer)
        while len(self._meters) > MAX_WAYS:
            self._meters.popitem(last=False)
        return meter

    def figures(self) -> tuple[LinkFigures, ...]:
        """The ways that have a beat now, those of the latest links first. What was not measured is None."""
        beating = [peer for peer in reversed(self._meters) if self._pulse.beats(peer)]
        return tuple(self._way(peer) for peer in beating[:MAX_LINKS])

    def _way(self, peer: PeerId) -> LinkFigures:
        mbps = self._meters[peer].mbps
        return LinkFigures(
            peer=peer,
            rtt_s=_bounded(self._pulse.rtt_s(peer), MAX_SECONDS),
            noop_age_s=_bounded(self._pulse.answer_age_s(peer), MAX_SECONDS),
            goodput_mbps=_bounded(mbps, MAX_MBPS),
        )


def _bounded(value: float | None, most: float) -> float | None:
    return None if value is None else min(value, most)
