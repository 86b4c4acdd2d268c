"""Server-sent events of one answer, to a client that may be slow or gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

import msgspec
from aiohttp import web

from swarm.client.results import GenerationResult
from swarm.gateway.answers import Answers, Began, Ended, Event, Piece
from swarm.gateway.errors import BUG, told
from swarm.gateway.options import GatewayOptions
from swarm.gateway.replies import Json, Reply
from swarm.gateway.requests import Asked

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}
DONE = b"data: [DONE]\n\n"
BEAT = b": alive\n\n"

log = logging.getLogger(__name__)


class EventStream:
    """One response that is written piece by piece."""

    def __init__(self, request: web.Request, headers: Mapping[str, str], options: GatewayOptions) -> None:
        self._request = request
        self._options = options
        self.response = web.StreamResponse(headers={**HEADERS, **headers})

    async def send(self, body: Json) -> None:
        """One event. Raises as ``write`` does."""
        await self.write(b"data: " + msgspec.json.encode(body) + b"\n\n")

    async def write(self, data: bytes) -> None:
        """Some bytes. Raises ``ConnectionResetError`` if the client is gone, or reads too slowly and is cut off."""
        try:
            async with asyncio.timeout(self._options.write_timeout_s):
                if not self.response.prepared:
                    await self.response.prepare(self._request)
                await self.response.write(data)
        except TimeoutError:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read") from None

    async def run(self, first: Event | None, answers: Answers, reply: Reply, asked: Asked, prompt_tokens: int) -> str:
        """Everything from the first event to ``[DONE]``; returns how it ended, in words for the log.

        An answer that is cut ends with an error event instead: without a finish reason, and without ``[DONE]``.
        """
        try:
            try:
                results = await self._tell(first, answers, reply, asked)
            except ConnectionResetError:
                raise
            except Exception as error:
                shown = told(error, asked.prompt_field)
                if shown.status == BUG:
                    log.error("a bug while streaming an answer", exc_info=error)
                await self.send(shown.body)
                return f"cut: {shown.code}"
            if asked.include_usage:
                await self.send(reply.usage(results, prompt_tokens))
            await self.write(DONE)
        except ConnectionResetError:
            return "client left"
        return f"{sum(len(result.token_ids) for result in results)} tokens"

    async def _tell(self, first: Event | None, answers: Answers, reply: Reply, asked: Asked) -> list[GenerationResult]:
        results: list[GenerationResult] = []
        event = first
        while event is not None:
            if (body := _body(event, reply)) is not None:
                await self.send({**body, "usage": None} if asked.include_usage else body)
            if isinstance(event, Ended):
                results.append(event.result)
            event = await self._next(answers)
        return results

    async def _next(self, answers: Answers) -> Event | None:
        """The next event; a silent stream says now and then that it is alive."""
        while True:
            try:
                return await answers.next(self._options.beat_s)
            except TimeoutError:
                await self.write(BEAT)


def _body(event: Event, reply: Reply) -> Json | None:
    match event:
        case Began():
            return reply.opening(event.index)
        case Piece():
            return reply.chunk(event.index, event.text, event.logprobs)
        case Ended():
            return reply.closing(event.index, event.result, event.logprobs)
