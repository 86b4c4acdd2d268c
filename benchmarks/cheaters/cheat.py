"""What a cheat is: a server as it is, with one thing changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from swarm.engine import opening, weights
from swarm.engine.executor import EngineOptions, SpanEngine
from swarm.engine.span_model import SpanModel
from swarm.engine.weights import LoadedSpan, WeightFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Cheat:
    """``summary`` says what the server does; at least one of the others does it.

    ``weights`` is given a loaded span before the engine lays it out, ``engine`` an engine before its first forward.
    ``server`` are replacements: the dotted name of a function or method of the package, and what makes the new one of
    the old.
    """

    summary: str
    weights: Callable[[SpanModel, WeightFiles], None] | None = None
    engine: Callable[[SpanEngine], None] | None = None
    server: tuple[tuple[str, Callable[[Any], Any]], ...] = ()


@contextmanager
def installed(cheat: Cheat) -> Iterator[None]:
    """Inside, every span that this process loads and every server that it runs cheats; what was made then goes on so.

    Functions that were imported by name before keep their own copy: patch where they are used.
    """
    with ExitStack() as patches:
        patches.enter_context(patch.object(opening, "load_span", _loading(cheat)))
        patches.enter_context(patch.object(SpanEngine, "__init__", _building(cheat)))
        for name, make in cheat.server:
            patching = patch(name)
            patching.new = make(patching.get_original()[0])
            patches.enter_context(patching)
        yield


def _loading(cheat: Cheat) -> Callable[..., LoadedSpan]:
    load = weights.load_span

    def load_span(files: WeightFiles, *arguments: Any, **options: Any) -> LoadedSpan:
        loaded = load(files, *arguments, **options)
        if cheat.weights is not None:
            cheat.weights(loaded.model, files)
        return loaded

    return load_span


def _building(cheat: Cheat) -> Callable[..., None]:
    build = SpanEngine.__init__

    def init(engine: SpanEngine, model: SpanModel, options: EngineOptions) -> None:
        build(engine, model, options)
        if cheat.engine is not None:
            cheat.engine(engine)

    return init
