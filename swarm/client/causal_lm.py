"""``SwarmForCausalLM``: a swarm for code that is written for transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from swarm.client.blocking import SwarmModel
from swarm.client.feeding import AsyncTokenSession
from swarm.client.head import LoadedHead, Logits
from swarm.client.loop_thread import LoopThread
from swarm.client.model import AsyncSwarmModel
from swarm.client.results import ChainStage, Heal
from swarm.client.together import together
from swarm.core.errors import ConfigError
from swarm.engine.causal_cache import Feed
from swarm.engine.causal_lm import SwarmCausalLM
from swarm.engine.weights import family_config
from swarm.runtime.tracing import span

LOCAL_ONLY = {
    "device_map": "the layers lie where the swarm has them",
    "quantization_config": "servers quantize as they were started",
    "load_in_8bit": "servers quantize as they were started",
    "load_in_4bit": "servers quantize as they were started",
    "dtype": "servers compute in the dtype they were started with; logits are float32",
    "torch_dtype": "servers compute in the dtype they were started with; logits are float32",
    "attn_implementation": "attention is computed at the servers",
    "trust_remote_code": "code from model repositories is never run",
}
"""Arguments of transformers' ``from_pretrained`` that say how to hold layers on this machine."""


class BlockingTokenSession:
    """An ``AsyncTokenSession`` for callers in other threads; freed when nobody has it any more."""

    def __init__(self, inner: AsyncTokenSession, loop: LoopThread) -> None:
        self.inner = inner
        self._loop = loop

    @property
    def chain(self) -> tuple[ChainStage, ...]:
        """Who serves it now; empty while it has no chain."""
        return self.inner.chain

    @property
    def heals(self) -> tuple[Heal, ...]:
        """What befell its chains so far."""
        return self.inner.heals

    def close(self) -> None:
        """Free the KV at every server, without waiting. Idempotent."""
        self._loop.call_soon(self.inner.release)

    def __del__(self) -> None:
        self.close()


class BlockingFeeder:
    """A client's sessions for ``SwarmCausalLM``; see ``swarm.engine.causal_cache.Feeder``."""

    def __init__(self, inner: AsyncSwarmModel, loop: LoopThread, model: SwarmModel) -> None:
        self._inner = inner
        self._loop = loop
        self._model = model

    def session(self) -> BlockingTokenSession:
        return BlockingTokenSession(AsyncTokenSession(self._inner), self._loop)

    @contextmanager
    def generation(self) -> Iterator[Callable[[int, int], None]]:
        with span("swarm.generate", self._inner.traced) as seen:
            yield lambda texts, tokens: seen.set({"swarm.texts": texts, "swarm.tokens": tokens})

    def feed(self, feeds: Sequence[Feed]) -> list[Logits]:
        """All at once, each over its own chain. If one fails the others are cancelled and its error is raised."""
        return self._loop.run(together(map(self._one, feeds))) if feeds else []

    def close(self) -> None:
        self._model.close()

    @staticmethod
    async def _one(feed: Feed) -> Logits:
        session = cast(BlockingTokenSession, feed.session).inner
        return await session.feed(feed.keep, feed.token_ids, want=feed.want, room=feed.room)


class SwarmForCausalLM(SwarmCausalLM):
    """A model that a swarm serves, for code that is written for transformers. Close it, or use it in a ``with`` block.

    ``generate`` is transformers' own, with its logits processors, stopping criteria and streamers; a forward gives
    logits. Embeddings, norm and LM head are on this machine, the layers in the swarm, and its servers hold the KV for
    which the cache stands. Calls block: inside an event loop use ``asyncio.to_thread``.
    """

    @classmethod
    def from_pretrained(
        cls,
        model: str,
        *,
        initial_peers: Sequence[str] = (),
        revision: str | None = None,
        identity: Path | None = None,
        **options: Any,
    ) -> SwarmForCausalLM:
        """Join the swarm that serves ``model``: ``demo``, a folder, or a Hugging Face id.

        Further options are those of ``SwarmModel.connect``; the head is always local. Raises what ``connect`` does, and
        ``ConfigError`` for arguments that say how to hold layers here.
        """
        for name, why in LOCAL_ONLY.items():
            if options.pop(name, None) not in (None, False, "auto"):
                raise ConfigError(f"{name} is not for a swarm", hint=f"leave it out: {why}")
        if options.pop("head", "local") != "local":
            raise ConfigError("SwarmForCausalLM keeps the head here", hint="SwarmModel can do without")
        door = SwarmModel.connect(
            model, initial_peers=initial_peers, head="local", revision=revision, identity=identity, **options
        )
        try:
            return cls.of(door)
        except BaseException:
            door.close()
            raise

    @classmethod
    def of(cls, door: SwarmModel) -> SwarmForCausalLM:
        """The same swarm through a model that is connected with ``head="local"``; closing either closes both."""
        inner, loop = door.inside()
        if inner.options.remote_head:
            raise ConfigError("the model has no head here", hint='connect it with head="local"')
        loaded = loop.run(_head(inner))
        files = inner.parts.files
        feeder = BlockingFeeder(inner, loop, door)
        folder = files.tokenizer_path.parent
        name = str(folder) if (folder / "config.json").exists() else files.name
        return cls(family_config(files), files.generation, feeder, loaded.engine, name=name)


async def _head(inner: AsyncSwarmModel) -> LoadedHead:
    """The head that most of the swarm's last servers go with."""
    return await inner.heads.expect(await inner.ground.view.look()) or await inner.heads.of_dtype("float32")
