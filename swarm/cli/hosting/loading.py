"""Load a span as the command line says, and find out how fast it is."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from swarm.cli.apart import apart
from swarm.cli.options.checks import read_max_memory
from swarm.cli.output.console import Console
from swarm.cli.signals import Signals
from swarm.core.errors import SwarmError
from swarm.core.spans import Span
from swarm.engine.capacity import Room, room_for
from swarm.engine.contention import contended, cpu_cores, cpu_threads, read_cpu
from swarm.engine.opening import OpenedSpan, SpanRequest, open_span
from swarm.engine.speed import SpanSpeed, measure_speed
from swarm.engine.weights import LoadOptions
from swarm.models.files import ModelFiles
from swarm.models.progress import Progress


@dataclass(frozen=True, slots=True)
class Loaded:
    """A running engine and its speed; ``busy`` says that others took the machine while that was measured."""

    opened: OpenedSpan
    speed: SpanSpeed
    busy: bool = False


@dataclass(frozen=True, slots=True)
class Loader:
    """Loads spans of one model, one after the other."""

    options: argparse.Namespace
    files: ModelFiles
    console: Console
    signals: Signals

    @property
    def weights(self) -> LoadOptions:
        """Where weights go and in what form."""
        options = self.options
        max_memory = read_max_memory(options.max_memory)
        return LoadOptions(options.device, options.dtype, options.quantization, max_memory, options.memory_share)

    async def load(self, span: Span) -> Loaded:
        """Load ``span`` and time it, in a thread that ends soon after the server was told to stop."""
        return await apart(lambda: self._load(span))

    async def room(self) -> Room:
        """What of the model fits into this machine. Raises as ``room_for`` does."""
        with self.console.waiting("looking what fits into this machine"):
            return await apart(lambda: room_for(self.files, self.weights, kv_tokens=self.options.kv_tokens))

    def _load(self, span: Span) -> Loaded:
        with self.console.waiting(f"loading layers {span}"):
            opened = open_span(self.files, self._request(span), self._progress())
        with self.console.waiting("measuring how fast this machine computes them"):
            before = read_cpu()
            speed = measure_speed(opened.engine, check=self._check)
            busy = contended(before, read_cpu(), threads=cpu_threads(opened.devices), cores=cpu_cores())
        return Loaded(opened, speed, busy)

    def _request(self, span: Span) -> SpanRequest:
        options = self.options
        return SpanRequest(
            span=span,
            embeddings=span.start == 0 and not options.no_head,
            head=span.end == self.files.layer_count and not options.no_head,
            weights=self.weights,
            kv_tokens=options.kv_tokens,
            threads=options.threads,
        )

    def _progress(self) -> Progress:
        """Reports bytes, and ends the loading thread once the server was told to stop: nothing else can."""

        def progress(label: str, done: int, total: int) -> None:
            self._check()
            self.console.progress(label, done, total)

        return progress

    def _check(self) -> None:
        if self.signals.stop.is_set():
            raise SwarmError("loading was stopped")
