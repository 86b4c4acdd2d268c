"""The HTTP interface of the health page (docs/health.md): its routes and what they answer."""

from __future__ import annotations

import gzip
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources

import msgspec
from aiohttp import web

from swarm.core.clock import Clock
from swarm.health.options import HealthOptions
from swarm.health.source import Source
from swarm.health.state import SwarmState
from swarm.health.web.errors import ApiError, shaped
from swarm.health.web.feed import Feed
from swarm.health.web.parameters import read_digest, read_events, read_history, read_nothing
from swarm.health.web.prometheus import CONTENT_TYPE, EventCounts, ModelLabels, Scrape, text
from swarm.health.web.stream import HEADERS, EventStream, Places
from swarm.runtime.http import NOTE, PIECE_BYTES, Crossing, PacedResponse, crossed, guarded, header_setter, logged

API = "/api/v1"
TYPES = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
"""The content types of the page's files, by the end of their names."""
READABLE = "etag, retry-after"
"""Headers that scripts of other origins may read."""
WORTH_PACKING_BYTES = 1024
FOR_EVER = "public, max-age=31536000, immutable"
LOOK_AGAIN = "no-cache"
"""May be kept, but is asked about before it is used."""

access = logging.getLogger("swarm.health.access")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class File:
    """A file of the page."""

    body: bytes
    content_type: str
    mark: str


def page_files() -> dict[str, File]:
    """The page's files by name; empty where there is no page."""
    folder = resources.files("swarm.health") / "page"
    if not folder.is_dir():
        return {}
    found = {}
    for path in folder.iterdir():
        kind = TYPES.get("." + path.name.rpartition(".")[2])
        if kind is not None and path.is_file():
            body = path.read_bytes()
            found[path.name] = File(body, kind, hashlib.sha256(body).hexdigest()[:16])
    return found


class HealthApp:
    """Routes and handlers over ``watch``; whoever runs it also runs ``feed``, and closes it before the end."""

    def __init__(self, watch: Source, clock: Clock, options: HealthOptions) -> None:
        self._watch = watch
        self._clock = clock
        self._options = options
        self._places = Places(limit=options.streams, per_address=options.streams_per_address)
        self._began_s = clock.monotonic_s()
        self._events = EventCounts()
        self._labels = ModelLabels()
        self.feed = Feed(watch, clock, pace_s=options.pace_s, heard=self._take)

    def build(self) -> web.Application:
        """The application."""
        crossing = Crossing(origins=self._options.origins, prefix="/api/", readable=READABLE)
        app = web.Application(
            middlewares=[logged(access), crossed(crossing), shaped, guarded(self._options.hosts)], client_max_size=1024
        )
        app.on_response_prepare.append(header_setter(crossing))
        routes: dict[str, Handler] = {
            f"{API}/state": self._state,
            f"{API}/history": self._history,
            f"{API}/events": self._event_list,
            f"{API}/proofs/{{digest}}": self._proof,
            f"{API}/stream": self._stream,
            "/metrics": self._metrics,
            "/healthz": self._health,
        }
        for path, handler in routes.items():
            app.router.add_get(path, handler)
        if self._options.page:
            for name, file in page_files().items():
                app.router.add_get("/" if name == "index.html" else f"/page/{name}", _serving(file))
        return app

    # -- handlers -------------------------------------------------------------------------------------------

    async def _state(self, request: web.Request) -> web.StreamResponse:
        read_nothing(list(request.query.items()))
        whole = self.feed.whole()
        mark = self.feed.mark(self.feed.newest.revision)
        body = Body(whole.plain, "application/json", mark)
        return reply(request, body, packed=lambda: whole.gzipped)

    async def _history(self, request: web.Request) -> web.StreamResponse:
        asked = read_history(list(request.query.items()))
        history = await self._watch.history(asked.model, asked.hours)
        return reply(request, Body(msgspec.json.encode(history), "application/json"))

    async def _event_list(self, request: web.Request) -> web.StreamResponse:
        asked = read_events(list(request.query.items()))
        events = self._watch.events(asked.after, asked.limit)
        return reply(request, Body(msgspec.json.encode({"events": events}), "application/json"))

    async def _proof(self, request: web.Request) -> web.StreamResponse:
        read_nothing(list(request.query.items()))
        digest = read_digest(request.match_info["digest"])
        proof = await self._watch.proof(digest)
        if proof is None:
            raise ApiError(404, "no such proof was checked here, or it is not kept any more", code="unknown_proof")
        response = reply(request, Body(proof, "application/octet-stream", digest, FOR_EVER))
        response.headers["Content-Disposition"] = f'attachment; filename="{digest}.proof"'
        return response

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        read_nothing(list(request.query.items()))
        if request.method == "HEAD":
            return web.Response(headers=HEADERS)
        if self.feed.closed.is_set():
            raise ApiError(503, "the health page is shutting down", code="shutting_down", retry_after_s=5.0)
        with self._places.one(request.remote or ""):
            stream = EventStream(request, self.feed, self._clock, self._options, packed=takes_gzip(request))
            request[NOTE] = await stream.run(request.headers.get("Last-Event-ID", ""))
        return stream.response

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        scrape = Scrape(
            state=self.feed.newest,
            labels=self._labels,
            events=self._events.counts,
            now_s=self._clock.wall_s(),
            uptime_s=self._clock.monotonic_s() - self._began_s,
            streams=self._places.taken,
        )
        response = reply(request, Body(text(scrape), "text/plain", keep="no-store"))
        response.headers["Content-Type"] = CONTENT_TYPE
        return response

    def _take(self, state: SwarmState) -> None:
        self._events.take(state)
        self._labels.take(state)

    async def _health(self, request: web.Request) -> web.StreamResponse:
        """Healthy until the directory has not answered for ``fresh_s``, from the start on."""
        now_s, observer = self._clock.wall_s(), self.feed.newest.observer
        age_s = now_s - (observer.since_at if observer.directory_at is None else observer.directory_at)
        healthy = age_s <= self._options.fresh_s
        body = {
            "status": "ok" if healthy else "the directory does not answer",
            "problem": observer.problem,
            "directory_age_s": None if observer.directory_at is None else round(max(age_s, 0.0), 3),
            "models": len(self.feed.newest.models),
        }
        return web.json_response(body, status=200 if healthy else 503, headers={"Cache-Control": "no-store"})


@dataclass(frozen=True, slots=True)
class Body:
    """What a response holds. ``mark`` names this version of it, ``keep`` is its ``Cache-Control``."""

    data: bytes
    content_type: str
    mark: str = ""
    keep: str = LOOK_AGAIN


def reply(request: web.Request, body: Body, *, packed: Callable[[], bytes] | None = None) -> web.StreamResponse:
    """The body, or that the asker has it already; packed where that is worth it and taken.

    ``packed`` gives its gzip form where that is at hand.
    """
    headers = {"Cache-Control": body.keep, "Vary": "Accept-Encoding"}
    if body.mark:
        headers["ETag"] = f'W/"{body.mark}"'
        if any(tag.value in (body.mark, "*") for tag in request.if_none_match or ()):
            return web.Response(status=304, headers=headers)
    data = body.data
    if len(data) >= WORTH_PACKING_BYTES and takes_gzip(request):
        headers["Content-Encoding"] = "gzip"
        data = packed() if packed is not None else gzip.compress(data, mtime=0)
    charset = "" if body.content_type == "application/octet-stream" else "; charset=utf-8"
    headers["Content-Type"] = body.content_type + charset
    return PacedResponse(data, headers=headers) if len(data) > PIECE_BYTES else web.Response(body=data, headers=headers)


def takes_gzip(request: web.Request) -> bool:
    """Whether the asker names gzip among what it reads, and does not refuse it."""
    for item in ",".join(request.headers.getall("Accept-Encoding", ())).split(","):
        name, _, quality = item.replace(" ", "").partition(";")
        if name.lower() == "gzip":
            return quality.lower() not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _serving(file: File) -> Handler:
    async def serve(request: web.Request) -> web.StreamResponse:
        return reply(request, Body(file.body, file.content_type, file.mark))

    return serve
