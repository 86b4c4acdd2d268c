"""Which blocks a starting server takes: those it was told, or those it chooses beside the others."""

from __future__ import annotations

import argparse
import random
import secrets
from dataclasses import dataclass

from swarm.cli.options.checks import AUTO
from swarm.cli.output.console import Console
from swarm.core.clock import Clock
from swarm.core.ids import PeerId
from swarm.core.spans import Span
from swarm.engine.capacity import Room
from swarm.models.files import ModelFiles
from swarm.runtime.remembered import RememberedSpans
from swarm.scheduling.intents import Choice
from swarm.scheduling.intents_future import PlacingOptions
from swarm.scheduling.reasons import layers_text
from swarm.server.placing import Placement
from swarm.server.placing_config import PlacingConfig
from swarm.server.reports.announcer import Announcer
from swarm.server.seat import Seat


@dataclass(frozen=True, slots=True)
class Blocks:
    """How this server comes to its span."""

    options: argparse.Namespace
    files: ModelFiles
    console: Console
    remembered: RememberedSpans

    @property
    def chosen(self) -> bool:
        """True if the server chooses for itself, and so may move later."""
        return bool(self.options.blocks == AUTO)

    def seat(self, room: Room, peer: PeerId) -> Seat:
        """What can be said of this server before it has loaded anything, with ``room`` for layers."""
        wanted = self.options.num_blocks
        return Seat(
            model=self.files.model_id,
            layer_count=self.files.layer_count,
            span=Span(0, 1) if self.chosen else self.told,
            peer=peer,
            numerics=room.numerics,
            capacity_layers=self._capacity_layers(room, wanted),
            power_layers_per_s=room.power_layers_per_s if self.chosen else 0.0,
            region=self.options.region,
            public_name=self.options.public_name,
            instance=secrets.randbits(63),
        )

    def _capacity_layers(self, room: Room, wanted: int | None) -> int:
        if not self.chosen:
            return len(self.told)
        if not wanted:
            return room.capacity_layers
        # Without a share of the memory the owner's word counts more than an estimate.
        return min(wanted, self.files.layer_count if self.options.memory_share == 1 else room.capacity_layers)

    @property
    def told(self) -> Span:
        """The span on the command line. Raises ``ConfigError`` if it is none, or outside the model."""
        return Span.parse(self.options.blocks).within(self.files.layer_count)

    def placement(self, announcer: Announcer, clock: Clock) -> Placement:
        """This server's part in the protocol of intents."""
        config = PlacingConfig(
            look_s=self.options.claim_wait,
            rebalance_every_s=self.options.rebalance_every,
            options=PlacingOptions(move_threshold=self.options.move_gain),
        )
        return Placement(announcer, clock, config, random.random)

    async def take(self, placement: Placement, model: str) -> Span:
        """Choose, claim and announce a span, and say why this one."""
        with self.console.waiting("looking what others hold and mean to hold"):
            choice = await placement.join(self.remembered.get(model), alone=self.options.new_swarm)
        self.console.event("blocks", sentence("Taking", choice), **fields(choice))
        return choice.span


def sentence(doing: str, choice: Choice) -> str:
    """The choice for people."""
    was, becomes = (f"{figure:.3g}" for figure in (choice.tokens_per_s_before, choice.tokens_per_s_after))
    if choice.tokens_per_s_after == 0:
        speed = "Other layers are still missing, so there are no answers yet"
    else:
        rest = f"without this server {was}" if was != becomes else "with or without this server"
        speed = f"All sessions together can then get {becomes} tokens/s, {rest}"
    return f"{doing} {layers_text([choice.span])}: {choice.why}. {speed}."


def fields(choice: Choice) -> dict[str, object]:
    """The choice for programs."""
    return {
        "span": [choice.span.start, choice.span.end],
        "why": choice.why,
        "tokens_per_s_before": choice.tokens_per_s_before,
        "tokens_per_s_after": choice.tokens_per_s_after,
    }
