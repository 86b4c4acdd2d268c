"""Which blocks a starting server takes: those it was told, or those it chooses beside the others."""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
from dataclasses import dataclass

from swarm.cli.checks import AUTO
from swarm.cli.console import Console
from swarm.cli.loading import Loader
from swarm.core.clock import Clock
from swarm.core.ids import PeerId
from swarm.core.spans import Span
from swarm.engine.capacity import Room, declared_numerics, room_for
from swarm.models.files import ModelFiles
from swarm.runtime.remembered import RememberedSpans
from swarm.scheduling.intents import Choice
from swarm.scheduling.intents_future import PlacingOptions
from swarm.scheduling.reasons import layers_text
from swarm.server.announcer import Announcer
from swarm.server.placing import Placement
from swarm.server.placing_config import PlacingConfig
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

    async def seat(self, loader: Loader, peer: PeerId) -> Seat:
        """What can be said of this server before it has loaded anything. Raises as ``room_for`` does."""
        room = await asyncio.to_thread(self._room, loader)
        wanted = self.options.num_blocks
        return Seat(
            model=self.files.model_id,
            layer_count=self.files.layer_count,
            span=Span(0, 1) if self.chosen else self.told,
            peer=peer,
            numerics=room.numerics,
            capacity_layers=min(wanted, self.files.layer_count) if wanted else room.capacity_layers,
            power_layers_per_s=room.power_layers_per_s,
            region=self.options.region,
            public_name=self.options.public_name,
            instance=secrets.randbits(63),
        )

    def _room(self, loader: Loader) -> Room:
        if self.chosen:
            return room_for(self.files, loader.weights, kv_tokens=self.options.kv_tokens)
        return Room(len(self.told), 0, declared_numerics(self.files.config, loader.weights), 0.0)

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
        choice = await placement.join(self.remembered.get(model), alone=self.options.new_swarm)
        self.console.event("blocks", sentence("Taking", choice), **fields(choice))
        return choice.span


def sentence(doing: str, choice: Choice) -> str:
    """The choice for people."""
    was, becomes = (f"{figure:.3g}" for figure in (choice.tokens_per_s_before, choice.tokens_per_s_after))
    speed = f"The swarm's predicted {was} tokens/s become {becomes}" if was != becomes else (
        f"The swarm's predicted {was} tokens/s stay"
    )  # fmt: skip
    return f"{doing} {layers_text([choice.span])}: {choice.why}. {speed}."


def fields(choice: Choice) -> dict[str, object]:
    """The choice for programs."""
    return {
        "span": [choice.span.start, choice.span.end],
        "why": choice.why,
        "tokens_per_s_before": choice.tokens_per_s_before,
        "tokens_per_s_after": choice.tokens_per_s_after,
    }
