"""A hub on loopback that speaks the endpoints we use, and can misbehave on demand."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from tokenizers import Tokenizer, models

from swarm.models.safetensors_file import write_file

REPO = "someone/tiny"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "vocab_size": 300,
    "max_position_embeddings": 256,
    "eos_token_id": 2,
    "dtype": "float32",
}


def tiny_checkpoint(folder: Path, *, shards: int = 1, layers: int = 4, rows: int = 512) -> dict[str, bytes]:
    """A model folder with random tensors; returns each tensor's bytes. Not runnable, only readable."""
    folder.mkdir(parents=True, exist_ok=True)
    generator = np.random.default_rng(7)
    shapes = {"model.embed_tokens.weight": (300, 64), "model.norm.weight": (64,)}
    shapes |= {f"model.layers.{i}.{part}.weight": (rows, 64) for i in range(layers) for part in ("up", "down")}
    data = {name: generator.standard_normal(shape, np.float32).tobytes() for name, shape in shapes.items()}
    names = sorted(shapes)
    weight_map = {}
    for shard in range(shards):
        mine = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file = "model.safetensors" if shards == 1 else f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        layout = {name: ("F32", shapes[name]) for name in mine}
        write_file(folder / file, layout, [(name, data[name]) for name in mine], lambda _: None)
        weight_map |= dict.fromkeys(mine, file)
    if shards > 1:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 2]}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "{{ messages }}"}))
    Tokenizer(models.BPE()).save(str(folder / "tokenizer.json"))
    return data


@dataclass
class FakeHub:
    """Serves ``folder`` as ``REPO``; big files by redirect to another host name, as the real one does."""

    folder: Path
    endpoint: str = ""
    cdn: str = ""
    cut_after: list[int] = field(default_factory=list)
    """Bytes after which each next large answer is cut."""
    corrupt: bool = False
    ignore_ranges: bool = False
    status: list[int] = field(default_factory=list)
    """Answers to the next requests for large files, before any is served."""
    gated: bool = False
    cdn_requests: list[tuple[str, str | None]] = field(default_factory=list)
    """(Range, Authorization) of each request for a large file."""
    sent: int = 0
    hub_authorizations: set[str | None] = field(default_factory=set)

    def app(self) -> web.Application:
        app = web.Application()
        app.router.add_get("/api/models/{org}/{name}/revision/{revision}", self._info)
        app.router.add_get("/{org}/{name}/resolve/{revision}/{file}", self._resolve)
        app.router.add_get("/cdn/{file}", self._cdn)
        return app

    def _refusal(self, request: web.Request) -> web.Response | None:
        if f"{request.match_info['org']}/{request.match_info['name']}" != REPO:
            return web.Response(status=404, headers={"X-Error-Code": "RepoNotFound"})
        if request.match_info["revision"] not in ("main", "v1", COMMIT):
            return web.Response(status=404, headers={"X-Error-Code": "RevisionNotFound"})
        if self.gated:
            return web.Response(status=403, headers={"X-Error-Code": "GatedRepo"})
        return None

    async def _info(self, request: web.Request) -> web.Response:
        self.hub_authorizations.add(request.headers.get("Authorization"))
        if refusal := self._refusal(request):
            return refusal
        siblings = []
        for path in sorted(self.folder.iterdir()):
            content = path.read_bytes()
            entry: dict[str, Any] = {"rfilename": path.name, "size": len(content), "blobId": "0" * 40}
            if path.suffix == ".safetensors":
                digest = hashlib.sha256(content).hexdigest()
                entry["lfs"] = {"sha256": digest, "size": len(content), "pointerSize": 130}
            siblings.append(entry)
        return web.json_response({"id": REPO, "modelId": REPO, "sha": COMMIT, "siblings": siblings})

    async def _resolve(self, request: web.Request) -> web.Response:
        self.hub_authorizations.add(request.headers.get("Authorization"))
        if refusal := self._refusal(request):
            return refusal
        path = self.folder / request.match_info["file"]
        headers = {"X-Repo-Commit": COMMIT}
        if not path.is_file():
            return web.Response(status=404, headers=headers | {"X-Error-Code": "EntryNotFound"})
        content = path.read_bytes()
        headers["ETag"] = f'"{hashlib.sha1(content).hexdigest()}"'
        if path.suffix == ".safetensors":
            return web.Response(status=302, headers=headers | {"Location": f"{self.cdn}/cdn/{path.name}"})
        return web.Response(body=content, headers=headers)

    async def _cdn(self, request: web.Request) -> web.StreamResponse:
        wanted = request.headers.get("Range")
        self.cdn_requests.append((wanted or "", request.headers.get("Authorization")))
        if self.status:
            return web.Response(status=self.status.pop(0))
        content = bytearray((self.folder / request.match_info["file"]).read_bytes())
        if self.corrupt:
            content[-1] ^= 1
        status, headers, body = 200, {}, bytes(content)
        if wanted and not self.ignore_ranges:
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
            assert match is not None
            first, last = int(match[1]), int(match[2] or len(content) - 1)
            if first >= len(content):
                return web.Response(status=416)
            status, body = 206, body[first : last + 1]
            headers["Content-Range"] = f"bytes {first}-{first + len(body) - 1}/{len(content)}"
        response = web.StreamResponse(status=status, headers=headers | {"Content-Length": str(len(body))})
        await response.prepare(request)
        limit = self.cut_after.pop(0) if self.cut_after else len(body)
        self.sent += min(limit, len(body))  # before the client can have it all and look
        await response.write(body[:limit])
        if limit < len(body):
            assert request.transport is not None
            request.transport.close()
        return response


@pytest.fixture
def serve() -> Iterator[Callable[[FakeHub], FakeHub]]:
    """Start hubs in a thread of their own, each on a port of the system's choice."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    runners: list[web.AppRunner] = []

    async def start(hub: FakeHub) -> None:
        runner = web.AppRunner(hub.app())
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        runners.append(runner)
        port = runner.addresses[0][1]
        hub.endpoint, hub.cdn = f"http://127.0.0.1:{port}", f"http://localhost:{port}"

    def serve_one(hub: FakeHub) -> FakeHub:
        asyncio.run_coroutine_threadsafe(start(hub), loop).result()
        return hub

    async def stop() -> None:
        for runner in runners:
            await runner.cleanup()

    yield serve_one
    asyncio.run_coroutine_threadsafe(stop(), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@dataclass
class HubKit:
    """A running hub with a checkpoint, what is in it, and a cache folder to fetch into."""

    hub: FakeHub
    data: dict[str, bytes]
    cache: Path
    repo: str = REPO
    commit: str = COMMIT


@pytest.fixture
def hub_kit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, serve: Callable[[FakeHub], FakeHub]
) -> Callable[..., HubKit]:
    """Make a hub: ``hub_kit(shards=1)``; the process's hub settings point to it."""
    from huggingface_hub import constants

    def make(**options: Any) -> HubKit:
        data = tiny_checkpoint(tmp_path / "served", **options)
        hub = serve(FakeHub(tmp_path / "served"))
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf"))
        return HubKit(hub, data, tmp_path / "cache")

    return make


@pytest.fixture
def checkpoint(tmp_path: Path) -> tuple[Path, dict[str, bytes]]:
    folder = tmp_path / "tiny"
    return folder, tiny_checkpoint(folder)


@pytest.fixture
def make_checkpoint() -> Callable[..., dict[str, bytes]]:
    return tiny_checkpoint
