"""A swarm in a loop thread with ``SwarmForCausalLM`` over it, beside the same model by transformers alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from harness import Engines, Swarm
from tiny_model import Reference
from transformers import AutoTokenizer
from transformers.utils import logging as transformers_logging

from swarm import SwarmForCausalLM, SwarmModel
from swarm.client.loop_thread import LoopThread
from swarm.engine.causal_cache import SwarmCache

PROMPTS = ["hello", "what the swarm says to this"]
Maker = Callable[..., "Place"]


@dataclass
class Place:
    """A swarm in a loop thread, the model over it, and transformers' own beside it."""

    loop: LoopThread
    swarm: Swarm
    model: SwarmForCausalLM
    local: Any
    tokenizer: Any

    def inputs(self, *prompts: str) -> dict[str, torch.Tensor]:
        """Token ids and mask, padded on the left."""
        found: dict[str, torch.Tensor] = dict(
            self.tokenizer(list(prompts or PROMPTS), return_tensors="pt", padding=True)
        )
        return found

    def both(self, inputs: dict[str, torch.Tensor], *, seed: int = 7, **options: Any) -> tuple[Any, Any]:
        """What the swarm and what transformers generates."""
        found = []
        for model in (self.model, self.local):
            torch.manual_seed(seed)
            found.append(model.generate(**inputs, **options))
        return found[0], found[1]

    def idle(self) -> bool:
        """True once no server holds anything, waiting at most half a minute."""
        deadline_s = time.monotonic() + 30.0
        while time.monotonic() < deadline_s:
            if all(node.idle for node in self.swarm.nodes if not self.swarm.network._gate(node.peer).shut):
                return True
            threading.Event().wait(0.01)
        return False

    def down(self) -> None:
        """The swarm is no more; its loop still runs."""
        self.loop.run(self.swarm.close())
        self.swarm.give_back_engines()

    def end(self) -> None:
        self.down()
        self.model.close()


@contextmanager
def places(engines: Engines, reference: Reference) -> Iterator[Maker]:
    """Makes such places; transformers shows no progress meanwhile."""
    transformers_logging.disable_progress_bar()

    def build(*spans: str, **options: Any) -> Place:
        loop = LoopThread()

        async def serve() -> tuple[Swarm, SwarmModel]:
            swarm = Swarm(engines, reference)
            await swarm.serve(*spans)
            return swarm, SwarmModel(swarm.client("local", **options), loop)

        swarm, door = loop.run(serve())
        model = SwarmForCausalLM.of(door)
        tokenizer = AutoTokenizer.from_pretrained(model.name_or_path, padding_side="left", pad_token="</s>")
        return Place(loop, swarm, model, reference.model, tokenizer)

    try:
        yield build
    finally:
        transformers_logging.enable_progress_bar()


def step(place: Place, cache: SwarmCache, *rows: list[int]) -> torch.Tensor:
    """The last logits of each row once these tokens are appended."""
    found: torch.Tensor = place.model(torch.tensor(rows), cache=cache, logits_to_keep=1).logits[:, -1]
    return found
