"""A text whose KV the servers hold, fed with token ids by whoever chooses them himself. What comes back are logits."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from swarm.client.conversation import Conversation
from swarm.client.finding.opener import check_room
from swarm.client.head import Logits
from swarm.client.model import AsyncSwarmModel
from swarm.client.results import ChainStage, Heal, Progress
from swarm.core.errors import MisuseError, SwarmError
from swarm.wire.fields import Priority

SPARE_TOKENS = 256
"""Room at least that a text gets beyond what it holds, unless it was said how long it grows."""
REST_AFTER_S = 2.0
"""Nobody fed the text for so long: its standbys need not be kept warm."""


class AsyncTokenSession:
    """One text, and the chain that holds KV for it from the first ``feed`` on. One feed at a time.

    A chain that breaks is healed; if that fails the feed raises, and the next one opens another chain and feeds it
    everything. Needs a client with a local head.
    """

    def __init__(self, model: AsyncSwarmModel, priority: Priority = "interactive") -> None:
        self._model = model
        self._priority = priority
        self._tokens: list[int] = []
        self._conversation: Conversation | None = None
        self._heals: list[Heal] = []
        self._resting: asyncio.TimerHandle | None = None
        self._busy = self._closed = self._awake = False

    @property
    def chain(self) -> tuple[ChainStage, ...]:
        """Who serves it now; empty while it has no chain."""
        return () if self._conversation is None else self._conversation.healer.served_by

    @property
    def heals(self) -> tuple[Heal, ...]:
        """What befell its chains so far."""
        now = self._conversation.healer.heals if self._conversation is not None and self._awake else ()
        return (*self._heals, *now)

    @property
    def exact(self) -> bool:
        """False where the chain mixes numerics or the wire is lossy; True while there is none."""
        return self._conversation is None or self._conversation.healer.exact

    async def feed(self, keep: int, token_ids: Sequence[int], *, want: int, room: int = 0) -> Logits:
        """Cut the text to its first ``keep`` tokens, append ``token_ids``, return the logits after its last ``want``.

        ``room`` is how many tokens it will hold in the end, 0 if nobody knows: a text that outgrows its chain gets
        another one, which takes a prefill. Returns float32 ``[want, vocab]``. Raises ``PromptTooLongError`` beyond the
        model's context, ``MisuseError`` for what cannot be, and what ``generate`` raises.
        """
        if self._busy or self._closed:
            raise MisuseError("the session is closed" if self._closed else "the session is being fed already")
        if not 0 <= keep <= len(self._tokens):
            raise MisuseError(f"cannot keep {keep} tokens of {len(self._tokens)}")
        self._check(token_ids)
        self._model.sessions.add(self)  # not when it is made, which may be in another thread
        context = self._model.parts.files.context_tokens
        check_room(keep, len(token_ids), context, whose="model's context")
        self._busy = True
        self._tokens[keep:] = token_ids
        try:
            conversation = await self._ready(min(room, context))
            conversation.truncate(min(keep, conversation.position))
            missing = self._tokens[conversation.position :]
            heard = await conversation.feed(missing, want=want)
        except SwarmError:
            self._drop()
            raise
        finally:
            self._busy = False
            self._rest_later()
        return np.concatenate(heard) if heard else np.empty((0, self._model.parts.files.vocab_size), np.float32)

    def release(self) -> None:
        """Free the KV at every server, in the background. Idempotent."""
        self._closed = True
        self._drop()

    async def close(self) -> None:
        """See ``release``."""
        self.release()

    def _check(self, token_ids: Sequence[int]) -> None:
        vocabulary = self._model.parts.files.vocab_size
        if not token_ids:
            raise MisuseError("a feed without tokens")
        if any(not 0 <= token < vocabulary for token in token_ids):
            raise MisuseError(f"a token id is outside the vocabulary of {vocabulary}")

    async def _ready(self, room: int) -> Conversation:
        """The conversation, on a chain with room for its tokens; a new one has ``room`` in all, or some to spare."""
        conversation, held = self._conversation, len(self._tokens)
        if conversation is not None and conversation.capacity < held:
            self._drop()
            conversation = None
        if conversation is None:
            context = self._model.parts.files.context_tokens
            kv_tokens = room if room >= held else min(context, 2 * held + SPARE_TOKENS)
            conversation = await self._model.open(kv_tokens, _silent, self._priority)
            if self._closed:
                self._model.endings.begin(conversation.close())
                raise MisuseError("the session was closed while it opened a chain")
            self._conversation = conversation
        if not self._awake:
            self._awake = True
            conversation.healer.begin(_silent)
        if self._resting is not None:
            self._resting.cancel()
        return conversation

    def _rest_later(self) -> None:
        if self._awake:
            self._resting = asyncio.get_running_loop().call_later(REST_AFTER_S, self._rest)

    def _rest(self) -> None:
        """Nobody waits for it now."""
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if self._awake and self._conversation is not None:
            self._heals += self._conversation.healer.heals
            self._conversation.healer.rest()
        self._awake = False

    def _drop(self) -> None:
        self._rest()
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            self._model.endings.begin(conversation.close())


def _silent(_: Progress) -> None:
    """Nobody listens."""
