"""OpenTelemetry spans, for programs that use OpenTelemetry; for all others nothing, not even an import.

A program says that it does by importing ``opentelemetry`` (its set-up does). Spans tell how long things take and how
many tokens they took. No prompt, no text and no word that a stranger sent is ever in one, so of errors only their kind.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from opentelemetry import trace

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value]
INSTRUMENT = "swarm"
"""What spans call the library that made them."""


class Span(Protocol):
    """One thing that takes time."""

    def set(self, attributes: Attributes) -> None:
        """Say more about it."""
        ...

    def event(self, name: str) -> None:
        """Something happened in it now."""
        ...


class SilentSpan:
    """Nobody looks."""

    def set(self, attributes: Attributes) -> None:
        """Nothing."""

    def event(self, name: str) -> None:
        """Nothing."""


class OpenTelemetrySpan:
    """One of OpenTelemetry's."""

    def __init__(self, inner: trace.Span) -> None:
        self._inner = inner

    def set(self, attributes: Attributes) -> None:
        self._inner.set_attributes(dict(attributes))

    def event(self, name: str) -> None:
        self._inner.add_event(name)


_SILENT: AbstractContextManager[Span] = nullcontext(SilentSpan())


def span(
    name: str, attributes: Attributes | None = None, *, caller: Mapping[str, str] | None = None
) -> AbstractContextManager[Span]:
    """The block as a span of what the caller's context is in.

    With ``caller``, the headers of a request from elsewhere, it is a server's span, in the trace that ``traceparent``
    names there. An exception that leaves the block makes it a failed one.
    """
    if "opentelemetry.trace" not in sys.modules:
        return _SILENT
    return _opened(name, attributes or {}, caller)


@contextmanager
def _opened(name: str, attributes: Attributes, caller: Mapping[str, str] | None) -> Iterator[Span]:
    from opentelemetry import propagate, trace

    kind = trace.SpanKind.INTERNAL if caller is None else trace.SpanKind.SERVER
    with trace.get_tracer(INSTRUMENT).start_as_current_span(
        name,
        context=None if caller is None else propagate.extract(caller),
        kind=kind,
        attributes=dict(attributes),
        record_exception=False,
        set_status_on_exception=False,
    ) as inner:
        try:
            yield OpenTelemetrySpan(inner)
        except BaseException as error:
            inner.set_attribute("error.type", type(error).__name__)
            inner.set_status(trace.StatusCode.ERROR)
            raise
