"""How long one span alone takes to compute a context, in chunks as a replay sends them: no network, no other span."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from swarm.core.spans import Span
from swarm.engine.executor import SpanEngine
from swarm.engine.opening import SpanRequest, open_span
from swarm.engine.rows import rows_to_bytes
from swarm.engine.weights import LoadOptions
from swarm.engine.work import Work
from swarm.models.files import ModelFiles
from swarm.models.progress import silent

CHUNK_ROWS = 128


class SpanPrefill:
    """The engines of ``spans``, float32 and one thread, as the servers have them."""

    def __init__(self, files: ModelFiles, spans: Sequence[Span], tokens: int) -> None:
        self._engines = [_engine(files, span, tokens) for span in spans]
        for engine in self._engines:
            _run(engine, CHUNK_ROWS)  # the first forward is slower

    def seconds(self, number: int, tokens: int) -> float:
        """Of a context of ``tokens`` rows through span ``number``; every row comes out, as it has to for the log."""
        began_s = time.perf_counter()
        _run(self._engines[number], tokens)
        return time.perf_counter() - began_s


def _engine(files: ModelFiles, span: Span, tokens: int) -> SpanEngine:
    weights = LoadOptions(device="cpu", dtype="float32")
    request = SpanRequest(span=span, embeddings=False, head=False, weights=weights, kv_tokens=tokens, threads=1)
    return open_span(files, request, silent).engine


def _run(engine: SpanEngine, tokens: int) -> None:
    slot = engine.open(tokens)
    try:
        for start in range(0, tokens, CHUNK_ROWS):
            rows = min(CHUNK_ROWS, tokens - start)
            hidden = torch.randn((rows, engine.info.hidden_size), generator=torch.Generator().manual_seed(start))
            engine.run([Work(slot, start, rows_to_bytes(hidden), None, rows, want=rows)])
    finally:
        engine.close(slot)
