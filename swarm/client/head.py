"""Two places for embeddings and LM head: at the servers (nothing but token ids here), or kept by this client."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from swarm.core.errors import BadLogitsError, ProtocolViolation
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import Choice, choose
from swarm.wire.fields import Codec
from swarm.wire.frames import Frame
from swarm.wire.messages import Result
from swarm.wire.payload import pack_ids
from swarm.wire.tensors import cast_rows, decode_tensor, encode_tensor

if TYPE_CHECKING:
    from swarm.engine.head import HeadEngine


Logits = npt.NDArray[np.float32]
"""``[rows, vocab_size]``."""


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

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def payload(self, token_ids: Sequence[int]) -> list[bytes | memoryview]:
        return [pack_ids(token_ids)]

    async def choice(self, frame: Frame, history: History, params: SamplingParams) -> Choice:
        result = frame.message
        if not isinstance(result, Result) or len(result.tokens) != 1:
            raise ProtocolViolation("the last server sent no token for the row that was asked for")
        token = result.tokens[0]
        if token >= self._vocab_size:
            raise ProtocolViolation(f"the last server sent token {token} of a vocabulary of {self._vocab_size}")
        if params.top_logprobs < 0:
            return Choice(token, None, ())
        if len(result.logprobs) != 1 or len(result.logprobs[0].top) != min(params.top_logprobs, self._vocab_size):
            raise ProtocolViolation("the last server sent other log probabilities than were asked for")
        if any(other >= self._vocab_size for other, _ in result.logprobs[0].top):
            raise ProtocolViolation("the last server sent log probabilities of tokens outside the vocabulary")
        return Choice(token, result.logprobs[0].chosen, result.logprobs[0].top)


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """Embeddings, norm and LM head in ``dtype``; ``turn`` lets one session at a time compute."""

    engine: HeadEngine
    dtype: str
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


class LocalHead:
    """Embeddings, norm, LM head and sampling here; hidden rows travel both ways.

    ``first_dtype`` is what the first server takes; the last one answers in the dtype of the loaded head.
    """

    remote = False

    def __init__(self, loaded: LoadedHead, *, first_dtype: str, codec: Codec) -> None:
        self._loaded = loaded
        self._first_dtype = first_dtype
        self._codec = codec

    def payload(self, token_ids: Sequence[int]) -> list[bytes | memoryview]:
        engine = self._loaded.engine
        raw = cast_rows(engine.embed(token_ids), self._loaded.dtype, self._first_dtype)
        return [encode_tensor(raw, self._codec, self._first_dtype, engine.hidden_size)]

    async def choice(self, frame: Frame, history: History, params: SamplingParams) -> Choice:
        return choose((await self._rows(frame, 1))[0], history, len(history), params)

    async def logits(self, frame: Frame, rows: int) -> Logits:
        """After each of a result's ``rows`` hidden rows; ``BadLogitsError`` if some are NaN or infinite."""
        logits = await self._rows(frame, rows)
        if not (logits < np.inf).all():  # -inf means never, as some families have it; NaN fails this too
            raise BadLogitsError("the logits hold NaN or infinity", hint="ask again: another chain may answer")
        return logits

    async def _rows(self, frame: Frame, rows: int) -> Logits:
        result, engine = frame.message, self._loaded.engine
        if not isinstance(result, Result) or result.rows != rows:
            raise ProtocolViolation("the last server sent other hidden rows than were asked for")
        raw = decode_tensor(frame.payload, self._codec, self._loaded.dtype, rows, engine.hidden_size)
        async with self._loaded.turn:
            return await asyncio.to_thread(engine.logits, raw)
