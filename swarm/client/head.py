"""Two places for embeddings and LM head: at the servers (nothing but token ids here), or kept by this client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from swarm.core.errors import ProtocolViolation
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import Choice, choose
from swarm.wire.frames import Frame
from swarm.wire.messages import Codec, Result
from swarm.wire.payload import pack_ids
from swarm.wire.tensors import decode_tensor, encode_tensor

if TYPE_CHECKING:
    from swarm.engine.head import HeadEngine


class Head(Protocol):
    """Turns token ids into a step's payload, and a result into the next token."""

    remote: bool

    def payload(self, token_ids: Sequence[int]) -> list[bytes | memoryview]:
        """What a step with these rows carries."""
        ...

    async def choice(self, frame: Frame, history: History, params: SamplingParams) -> Choice:
        """The token after ``history``, from the result of the step that ended it."""
        ...


class RemoteHead:
    """The first server embeds, the last one samples; this client loads no weights."""

    remote = True

    def payload(self, token_ids: Sequence[int]) -> list[bytes | memoryview]:
        return [pack_ids(token_ids)]

    async def choice(self, frame: Frame, history: History, params: SamplingParams) -> Choice:
        result = frame.message
        if not isinstance(result, Result) or len(result.tokens) != 1:
            raise ProtocolViolation("the last server sent no token for the row that was asked for")
        if params.top_logprobs < 0:
            return Choice(result.tokens[0], None, ())
        if len(result.logprobs) != 1:
            raise ProtocolViolation("the last server sent no log probabilities")
        return Choice(result.tokens[0], result.logprobs[0].chosen, result.logprobs[0].top)


class LocalHead:
    """Embeddings, norm, LM head and sampling here; hidden rows travel both ways."""

    remote = False

    def __init__(self, engine: HeadEngine, *, dtype: str, codec: Codec) -> None:
        self._engine = engine
        self._dtype = dtype
        self._codec = codec

    def payload(self, token_ids: Sequence[int]) -> list[bytes | memoryview]:
        raw = self._engine.embed(token_ids)
        return [encode_tensor(raw, self._codec, self._dtype, self._engine.hidden_size)]

    async def choice(self, frame: Frame, history: History, params: SamplingParams) -> Choice:
        result = frame.message
        if not isinstance(result, Result) or result.rows != 1:
            raise ProtocolViolation("the last server sent no hidden row for the row that was asked for")
        raw = decode_tensor(frame.payload, self._codec, self._dtype, 1, self._engine.hidden_size)
        logits = await asyncio.to_thread(self._engine.logits, raw)
        return choose(logits[0], history, len(history), params)
