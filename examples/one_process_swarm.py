"""A whole swarm in one process: three servers, a client and a network that is only memory.

Nothing here is faked but the network and the directory: the engines, the wire format, the session protocol and the
client are those of a real swarm. The model is tiny and random, so its answer makes no sense, but it is the right one:
transformers' own ``generate`` on the whole model gives the same tokens.

    python examples/one_process_swarm.py
"""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as WordTokenizer
from tokenizers import models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig
from transformers.utils import logging as transformers_logging

from swarm.client.model import AsyncSwarmModel
from swarm.client.parts import ClientOptions, ClientParts
from swarm.client.tokenizer import Tokenizer
from swarm.core.keys import Identity
from swarm.core.spans import Span
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.engine.opening import SpanRequest, open_span
from swarm.engine.weights import LoadOptions
from swarm.models.files import ModelFiles
from swarm.models.folder import open_folder
from swarm.models.progress import silent
from swarm.runtime.clock import SystemClock
from swarm.server.config import ServerConfig
from swarm.server.reports.announcer import Announcer, first_announcement
from swarm.server.service import Server, ServerParts
from swarm.transport.memory import MemoryNetwork

TEXT = "the a swarm of small machines answers together while each one holds few layers and passes rows on"
WORDS = TEXT.split()
PROMPT = "each one of the machines holds"
LAYERS = 5
SPANS = (Span(0, 2), Span(2, 3), Span(3, 5))
NEW_TOKENS = 16


def make_model(folder: Path) -> Any:
    """A random llama whose vocabulary is a handful of words, in a folder as ``save_pretrained`` leaves it."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.save_pretrained(folder)
    words = WordTokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    return model


async def start_server(files: ModelFiles, span: Span, network: MemoryNetwork, directory: MemoryDirectory) -> Server:
    """Load a span and serve it, as ``python -m swarm.server`` does on a real network."""
    clock, config = SystemClock(), ServerConfig(public_name=f"server {span}")
    request = SpanRequest(
        span=span,
        embeddings=span.start == 0,
        head=span.end == files.layer_count,
        weights=LoadOptions(device="cpu", dtype="float32"),
        kv_tokens=1024,
        threads=1,
    )
    engine = open_span(files, request, silent).engine
    identity = Identity(secrets.token_bytes(32))
    transport = network.transport(identity)
    first = first_announcement(
        files.model_id,
        engine,
        transport,
        clock.wall_s(),
        instance=secrets.randbits(63),
        public_name=config.public_name,
    )
    announcer = Announcer(directory, identity, clock, first, config)
    server = Server(ServerParts(transport, engine, announcer, clock), config)
    await server.start()
    await server.announce()
    return server


async def answer(files: ModelFiles) -> tuple[int, ...]:
    """Start the swarm, ask it, print what it says as it comes; the answer's token ids."""
    clock = SystemClock()
    network, directory = MemoryNetwork(clock), MemoryDirectory(MemoryDirectoryStore(clock))
    servers = [await start_server(files, span, network, directory) for span in SPANS]
    transport = network.transport(Identity(secrets.token_bytes(32)))
    client = AsyncSwarmModel(ClientParts(transport, directory, clock, files, Tokenizer.of(files)), ClientOptions())
    stream = await client.stream(PROMPT, max_new_tokens=NEW_TOKENS)
    print(f"prompt   {PROMPT}\nanswer  ", end="", flush=True)
    async for piece in stream:
        print(piece, end="", flush=True)
    result = stream.result
    print(f"\nchain    {' → '.join(map(str, result.chain))}")
    print(f"speed    first token after {1e3 * result.ttft_s:.0f} ms, then {result.tokens_per_s:.0f} tokens/s")
    for server in servers:
        await server.leave()
    await client.close()
    await network.close()
    return result.token_ids


def main() -> None:
    transformers_logging.disable_progress_bar()
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        whole = make_model(Path(name))
        files = open_folder(Path(name))
        token_ids = asyncio.run(answer(files))
        ids = torch.tensor([Tokenizer.of(files).encode(PROMPT)])
    mask = torch.ones_like(ids)
    wanted = whole.generate(ids, attention_mask=mask, do_sample=False, max_new_tokens=NEW_TOKENS)
    same = tuple(wanted[0, ids.shape[1] :].tolist()) == token_ids
    print(f"check    the whole model in one piece gives {'the same' if same else 'OTHER'} tokens")
    print(f"took     {time.perf_counter() - began_s:.2f} s")
    if not same:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
