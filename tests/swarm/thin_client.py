"""Run by ``test_swarm_thin_client``: a whole remote-head client in a process of its own, and who imports what in it.

Usage: ``thin_client.py MODEL_FOLDER [modules that are made to import torch]``. The server is a script on the real wire,
since a real one computes with torch. Writes one JSON object.
"""

from __future__ import annotations

import asyncio
import builtins
import importlib
import json
import pkgutil
import sys
from pathlib import Path
from typing import Any

HEAVY = ("torch", "transformers", "accelerate", "bitsandbytes", "hivemind")
DOOR = "swarm.client.causal_lm"
"""What programs of transformers import, which have torch anyway; nobody else does."""
imports: set[tuple[str, str]] = set()
_import = builtins.__import__


def _recording(name: str, globals: Any = None, locals: Any = None, fromlist: Any = (), level: int = 0) -> Any:
    importer = (globals or {}).get("__name__", "")
    if level == 0:
        imports.add((importer, name))
    return _import(name, globals, locals, fromlist, level)


builtins.__import__ = _recording


async def _serve(stream: Any) -> None:
    """A tail and head in one that knows nothing but the wire: token 7 after every step."""
    from swarm.transport.framing import FrameStream
    from swarm.wire.messages import Accept
    from swarm.wire.session import Channel, Role

    control = FrameStream(stream, Channel.CONTROL, Role.LISTENER)
    await control.receive()
    await control.send(Accept(0, 0, 4096))
    _controls.append(control)
    await control.receive()


async def _take_steps(stream: Any) -> None:
    from swarm.transport.framing import FrameStream
    from swarm.wire.messages import Result, Step, TokenLogprobs
    from swarm.wire.session import Channel, Role

    link = FrameStream(stream, Channel.LINK, Role.LISTENER)
    await link.receive()
    while True:
        step = (await link.receive()).message
        assert isinstance(step, Step)
        where = (step.generation, step.epoch, step.seq, step.keep + step.rows)
        await _controls[-1].send(Result(*where, (7,) * step.want, (TokenLogprobs(-1.0, ()),) * step.want))


_controls: list[Any] = []


async def _session(folder: Path) -> int:
    from swarm.client.model import AsyncSwarmModel
    from swarm.client.parts import ClientOptions, ClientParts
    from swarm.client.tokenizer import Tokenizer
    from swarm.core.announcement import Announcement
    from swarm.core.keys import Identity
    from swarm.core.metrics import Metrics
    from swarm.core.numerics import Numerics
    from swarm.core.records import sign_record
    from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
    from swarm.models.folder import open_folder
    from swarm.runtime.clock import SystemClock
    from swarm.transport.memory import MemoryNetwork
    from swarm.wire.session import Channel

    clock, files = SystemClock(), open_folder(folder)
    network, directory = MemoryNetwork(clock), MemoryDirectory(MemoryDirectoryStore(clock))
    identity = Identity(bytes([1] * 32))
    server = network.transport(identity)
    await server.listen(Channel.CONTROL.protocol, _serve)
    await server.listen(Channel.LINK.protocol, _take_steps)
    announcement = Announcement(
        model=str(files.model_id),
        layer_count=files.layer_count,
        peer=identity.peer_id,
        start=0,
        end=files.layer_count,
        head=True,
        embeddings=True,
        numerics=Numerics("float32"),
        kv_tokens=4096,
        instance=1,
        sequence=0,
        started_s=clock.wall_s(),
        expires_s=clock.wall_s() + 60.0,
    )
    metrics = Metrics(
        model=announcement.model,
        peer=announcement.peer,
        instance=1,
        sequence=0,
        expires_s=clock.wall_s() + 60.0,
        tau_s=0.01,
        fixed_s=0.0,
        kv_free_tokens=4096,
    )
    for record in (announcement, metrics):
        await directory.publish(sign_record(identity, record), record)
    transport = network.transport(Identity(bytes([2] * 32)))
    model = AsyncSwarmModel(ClientParts(transport, directory, clock, files, Tokenizer.of(files)), ClientOptions())
    sampled = {"temperature": 1.0, "top_p": 0.9, "repetition_penalty": 1.1, "logprobs": True, "max_new_tokens": 5}
    session = model.session()
    results = [
        await session.generate(messages=[{"role": "user", "content": "hi"}], stop=["never"], **sampled),
        await session.generate("more", **sampled),
    ]
    await session.close()
    stream = await model.stream("one", max_new_tokens=5)
    pieces = [piece async for piece in stream]
    await model.close()
    await network.close()
    return sum(len(result.token_ids) for result in results) + len(stream.result.token_ids) + (0 if pieces else 1000)


def main(folder: str, *planted: str) -> None:
    tokens = asyncio.run(_session(Path(folder)))
    loaded = sorted(name for name in HEAVY if name in sys.modules)
    for package in ("swarm.client", "swarm.core"):
        for found in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if found.name != DOOR:
                importlib.import_module(found.name)
    for module in planted:
        exec("import torch", sys.modules[module].__dict__)
    heavy = [(importer, name) for importer, name in imports if name.partition(".")[0] in HEAVY]
    engine = [(importer, name) for importer, name in imports if name.startswith("swarm.engine")]
    guilty = sorted(pair for pair in heavy + engine if pair[0].startswith("swarm."))
    walked = sorted(name for name in sys.modules if name.startswith(("swarm.client.", "swarm.core.")))
    json.dump({"tokens": tokens, "loaded": loaded, "guilty": guilty, "walked": walked}, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
