"""The HTTP interface: OpenAI's routes over one model of a swarm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from importlib import resources

import msgspec
from aiohttp import web

from swarm.client.model import AsyncSwarmModel
from swarm.client.request import Options
from swarm.client.results import GenerationResult, TokenLogprob
from swarm.core.errors import MisuseError, NetworkError, NoRouteError
from swarm.gateway.answers import Answers, Began, Ended, Piece, Question, answering
from swarm.gateway.coverage import CoverageWatch
from swarm.gateway.errors import SERVER, HttpError, bad_request, told, too_long
from swarm.gateway.gate import Gate
from swarm.gateway.keys import KeyRing
from swarm.gateway.middleware import shaped, traced
from swarm.gateway.options import GatewayOptions
from swarm.gateway.replies import ChatReply, Heading, Json, Reply, TextReply, routes, verified
from swarm.gateway.requests import Asked, read_chat, read_text
from swarm.gateway.streaming import EventStream
from swarm.gateway.tokens import TokenTexts
from swarm.runtime.http import NOTE, Crossing, crossed, guarded, header_setter, logged
from swarm.scheduling.reasons import layers_text

PAGE = {
    "index.html": "text/html",
    "chat.css": "text/css",
    "chat.js": "text/javascript",
    "dom.js": "text/javascript",
    "message.js": "text/javascript",
    "wire.js": "text/javascript",
    "words.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""The chat page's files, by content type."""

PROVENANCE = "x-swarm-route, x-swarm-exact, x-swarm-verification, retry-after"
"""Headers that scripts of other origins may read."""

access = logging.getLogger("swarm.gateway.access")

Read = Callable[[bytes], Asked]
ReplyKind = type[ChatReply] | type[TextReply]


class GatewayApp:
    """Routes and handlers. ``gate`` and ``running`` are for whoever shuts it down."""

    def __init__(self, model: AsyncSwarmModel, options: GatewayOptions) -> None:
        self._model = model
        self._options = options
        self._keys = KeyRing(options.keys)
        self._texts = TokenTexts(model.parts.tokenizer)
        self._coverage = CoverageWatch(model.parts)
        self._created_s = model.parts.clock.wall_s()
        self.gate = Gate(
            model.parts.clock,
            limit=options.concurrent,
            queue=options.queue,
            queue_timeout_s=options.queue_timeout_s,
        )
        self.running: set[Answers] = set()

    def build(self) -> web.Application:
        """The application."""
        crossing = Crossing(origins=self._options.origins, methods="GET, POST", readable=PROVENANCE)
        middlewares = [logged(access), traced, crossed(crossing), shaped, guarded(self._options.hosts)]
        app = web.Application(middlewares=middlewares, client_max_size=self._options.max_body_bytes)
        app.on_response_prepare.append(header_setter(crossing))
        app.router.add_get("/health", self._health)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{name:.+}", self._one_model)
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/v1/completions", self._text)
        if self._options.page:
            app.router.add_get("/", _file("index.html"))
            for name in PAGE:
                app.router.add_get(f"/page/{name}", _file(name))
        return app

    # -- what is here ---------------------------------------------------------------------------------------

    async def _health(self, request: web.Request) -> web.Response:
        files = self._model.parts.files
        body: Json = {
            "status": "ok",
            "model": files.name,
            "layers": files.layer_count,
            "running": self.gate.running,
            "waiting": self.gate.waiting,
        }
        try:
            coverage = await self._coverage.look()
            body["servers"] = coverage.servers
            body["missing_layers"] = [[span.start, span.end] for span in coverage.missing]
            if coverage.missing:
                body["status"] = "layers missing"
        except NetworkError as error:
            body["status"] = f"the directory cannot be asked: {error.message}"
        if self.gate.closed:
            body["status"] = "shutting down"
        return web.json_response(body, status=200 if body["status"] == "ok" else 503)

    async def _models(self, request: web.Request) -> web.Response:
        self._keys.check(request.headers.get("Authorization"))
        return web.json_response({"object": "list", "data": [self._card(self._options.model_names[0])]})

    async def _one_model(self, request: web.Request) -> web.Response:
        self._keys.check(request.headers.get("Authorization"))
        return web.json_response(self._card(self._known(request.match_info["name"])))

    def _card(self, name: str) -> Json:
        files = self._model.parts.files
        return {
            "id": name,
            "object": "model",
            "created": int(self._created_s),
            "owned_by": "swarm",
            "context_tokens": files.context_tokens,
            "swarm": {"model_id": str(files.model_id), "layers": files.layer_count},
        }

    def _known(self, name: str) -> str:
        if name not in self._options.model_names:
            here = self._options.model_names[0]
            message = f"the model {name[:100]!r} is not served here; {here!r} is"
            raise HttpError(404, message, code="model_not_found", param="model")
        return name

    # -- answers --------------------------------------------------------------------------------------------

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, read_chat, ChatReply)

    async def _text(self, request: web.Request) -> web.StreamResponse:
        return await self._complete(request, read_text, TextReply)

    async def _complete(self, request: web.Request, read: Read, kind: ReplyKind) -> web.StreamResponse:
        self._keys.check(request.headers.get("Authorization"))
        with self.gate.entered():
            asked = read(await self._body(request))
            self._known(asked.model)
            try:
                questions, prompt_tokens = await self._questions(asked)
                reply = kind(self._heading(asked), self._texts)
                async with self.gate.slots(len(questions)), self._answering(questions) as answers:
                    if asked.stream:
                        return await self._stream(request, answers, reply, asked, prompt_tokens)
                    return await self._whole(answers, reply, len(questions), prompt_tokens)
            except NoRouteError as error:
                raise await self._missing(error) from error
            except MisuseError as error:
                raise told(error, asked.prompt_field) from error

    async def _body(self, request: web.Request) -> bytes:
        """The request's body, bounded in size and time."""
        if request.content_type != "application/json":  # a browser sends other types without asking us first
            raise HttpError(415, "send JSON, with Content-Type: application/json", code="unsupported_media_type")
        limit = self._options.max_body_bytes
        large = HttpError(413, f"the body is larger than the {limit} bytes allowed here", code="request_too_large")
        if (request.content_length or 0) > limit:
            raise large
        try:
            async with asyncio.timeout(self._options.body_timeout_s):
                return await request.read()
        except web.HTTPRequestEntityTooLarge:
            raise large from None
        except TimeoutError:
            raise HttpError(408, "the body did not come in time", code="request_timeout") from None
        except web.RequestPayloadError as error:
            raise HttpError(400, f"the body cannot be read: {error}", code="invalid_body") from error

    async def _questions(self, asked: Asked) -> tuple[list[Question], int]:
        """One question per answer, with its prompt as ids, and how many prompt tokens there are in all.

        Raises ``HttpError`` for prompts that do not fit the context.
        """
        questions: list[Question] = []
        prompt_tokens = 0
        for prompt in asked.prompts or (None,):
            options = asked.options.copy()
            if prompt is None:
                options["messages"] = [message.plain for message in asked.messages]
            elif not isinstance(prompt, str):
                options["input_ids"] = prompt
            text = prompt if isinstance(prompt, str) else None
            ids = await asyncio.to_thread(self._model.encode, text, options)
            prompt_tokens += len(ids)
            for sample in range(asked.n):
                questions.append(self._question(ids, asked, sample))
        return questions, prompt_tokens

    def _question(self, ids: Sequence[int], asked: Asked, sample: int) -> Question:
        context = self._model.parts.files.context_tokens
        room = context - len(ids)
        wanted = asked.new_tokens or min(self._options.new_tokens, max(room, 1))
        if wanted > room:
            raise too_long(
                f"the model's context holds {context} tokens; the prompt takes {len(ids)} and the answer {wanted}: "
                "shorten the prompt or lower max_tokens",
                asked.prompt_field,
            )
        options: Options = {**asked.options, "input_ids": ids, "max_new_tokens": wanted, "sample": sample}
        try:
            self._model.read(options)
        except MisuseError as error:
            field = next((name for name in options if error.message.startswith(name)), None)
            raise bad_request(str(error), field) from error
        return Question(options, len(ids) + wanted)

    def _heading(self, asked: Asked) -> Heading:
        parts = self._model.parts
        fingerprint = f"fp_{parts.files.fingerprint}"
        return Heading(parts.clock.wall_s(), asked.model, fingerprint, "logprobs" in asked.options)

    @asynccontextmanager
    async def _answering(self, questions: Sequence[Question]) -> AsyncIterator[Answers]:
        async with answering(self._model, questions) as answers:
            self.running.add(answers)
            try:
                yield answers
            finally:
                self.running.discard(answers)

    async def _stream(
        self, request: web.Request, answers: Answers, reply: Reply, asked: Asked, prompt_tokens: int
    ) -> web.StreamResponse:
        """The status is told when the first token is there: until then an error has a status of its own."""
        first = await answers.next()
        headers = {"x-swarm-route": routes([first.chain])} if isinstance(first, Began) else {}
        stream = EventStream(request, headers, self._options)
        request[NOTE] = await stream.run(first, answers, reply, asked, prompt_tokens)
        return stream.response

    async def _whole(self, answers: Answers, reply: Reply, count: int, prompt_tokens: int) -> web.Response:
        results: dict[int, GenerationResult] = {}
        tokens: list[list[TokenLogprob]] = [[] for _ in range(count)]
        while (event := await answers.next()) is not None:
            if isinstance(event, Piece | Ended):
                tokens[event.index] += event.logprobs
            if isinstance(event, Ended):
                results[event.index] = event.result
        ordered = [results[index] for index in range(count)]
        headers = {
            "x-swarm-route": routes(result.chain for result in ordered),
            "x-swarm-exact": "true" if all(result.exact for result in ordered) else "false",
            "x-swarm-verification": ", ".join(verified(result.verification) for result in ordered),
        }
        body = msgspec.json.encode(reply.whole(ordered, tokens, prompt_tokens))
        return web.Response(body=body, content_type="application/json", charset="utf-8", headers=headers)

    async def _missing(self, error: NoRouteError) -> HttpError:
        """Says which layers nobody serves."""
        try:
            missing = (await self._coverage.look()).missing
        except NetworkError:
            missing = ()
        if not missing:
            return told(error, "")
        name = self._model.parts.files.name
        message = f"nobody serves {layers_text(missing)} of {name}"
        return HttpError(503, message, code="layers_missing", kind=SERVER, retry_after_s=10.0)


def _file(name: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    body = (resources.files("swarm.gateway") / "page" / name).read_bytes()

    async def serve(request: web.Request) -> web.Response:
        headers = {"Cache-Control": "no-cache"}
        return web.Response(body=body, content_type=PAGE[name], charset="utf-8", headers=headers)

    return serve
