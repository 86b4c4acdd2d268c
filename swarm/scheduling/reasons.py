"""Why there is no chain: layers that nobody holds, or the constraint that took their servers away."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from swarm.core.errors import NoRouteError
from swarm.core.spans import Span, missing_layers
from swarm.scheduling.cluster import Node

WHERE = "--model NAME --initial-peers ADDRESS"
"""In a hint's command, for what only the caller knows."""
_MOST_NAMED = 4
"""Ranges or classes a message names before it counts the rest."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A server and why it cannot take part ("are draining", to follow "servers that"); None if it can."""

    server: Node
    objection: str | None


def has_embeddings(server: Node) -> bool:
    """True if it can begin a chain with a remote head."""
    return server.embeddings and server.span is not None and server.span.start == 0


def has_head(server: Node, layer_count: int) -> bool:
    """True if it can end a chain with a remote head."""
    return server.head and server.span is not None and server.span.end >= layer_count


def _spans(servers: Iterable[Node]) -> list[Span]:
    return [server.span for server in servers if server.span is not None]


def _holds_some(server: Node, holes: Sequence[Span]) -> bool:
    span = server.span
    return span is not None and any(span.start < hole.end and hole.start < span.end for hole in holes)


def layers_text(spans: Sequence[Span]) -> str:
    """Spans as people count: ends included, "layers 10 to 19 and 25"."""
    parts = [str(span.start) if len(span) == 1 else f"{span.start} to {span.end - 1}" for span in spans]
    one = len(spans) == 1 and len(spans[0]) == 1
    return ("layer " if one else "layers ") + _listed(parts, "and")


def explain(verdicts: Sequence[Verdict], layer_count: int, *, remote_head: bool) -> NoRouteError:
    """The first true reason of: nobody holds it; who holds it may not take part; no class of numerics does it alone;
    those that would have to be neighbours are kept apart.

    ``verdicts`` cover every server of the model; at least one of the reasons must hold.
    """
    missing = _missing(verdicts, layer_count, Span(0, layer_count), remote_head)
    usable = [verdict.server for verdict in verdicts if verdict.objection is None]
    return missing or _divided(usable, layer_count, remote_head)


def explain_gap(
    verdicts: Sequence[Verdict], layer_count: int, gap: Span, *, remote_head: bool, apart: bool = False
) -> NoRouteError:
    """Why nobody takes over the layers of ``gap`` in a chain, in the same order; the last reason is its neighbours.

    ``apart``: some servers may not stand beside each other.
    """
    kept = ", by servers kept apart from those" if apart else ""
    return _missing(verdicts, layer_count, gap, remote_head) or NoRouteError(
        f"{layers_text([gap])} are held, but only by servers beside them in this chain{kept}, or in several numerics",
        hint="start another server for them",
    )


def _missing(verdicts: Sequence[Verdict], layer_count: int, asked: Span, remote_head: bool) -> NoRouteError | None:
    """What of ``asked`` nobody holds, or nobody who may take part."""
    holes = _holes((verdict.server for verdict in verdicts), layer_count, asked)
    if holes:
        hint = f"start one: python -m swarm.server {WHERE} --blocks {holes[0]}"
        return NoRouteError(f"no server holds {layers_text(holes)}", hint=hint)
    usable = [verdict.server for verdict in verdicts if verdict.objection is None]
    holes = _holes(usable, layer_count, asked)
    if holes:
        text = layers_text(holes)
        holders = [verdict for verdict in verdicts if _holds_some(verdict.server, holes)]
        return _withheld(text + (" is" if text.startswith("layer ") else " are"), holders)
    return _ends(verdicts, layer_count, asked) if remote_head else None


def _ends(verdicts: Sequence[Verdict], layer_count: int, asked: Span) -> NoRouteError | None:
    """What a remote head lacks at the model's ends, as far as they are asked for."""
    missing: NoRouteError | None = None
    if asked.start == 0:
        unheld = "no server of layer 0 holds the embeddings"
        missing = _part(verdicts, "the embeddings are", unheld, has_embeddings)
    if missing is None and asked.end == layer_count:
        unheld = f"no server of layer {layer_count - 1} holds the LM head"
        missing = _part(verdicts, "the LM head is", unheld, lambda server: has_head(server, layer_count))
    if missing is None and layer_count == 1:  # the only case in which who begins must also end
        both = "no one server may serve both embeddings and LM head of the one layer there is"
        missing = NoRouteError(both, hint='connect with head="local"')
    return missing


def _holes(servers: Iterable[Node], layer_count: int, asked: Span) -> list[Span]:
    """The layers of ``asked`` that none of ``servers`` holds."""
    holes = missing_layers(_spans(servers), layer_count)
    return [
        Span(max(hole.start, asked.start), min(hole.end, asked.end))
        for hole in holes
        if hole.start < asked.end and asked.start < hole.end
    ]


def _part(verdicts: Sequence[Verdict], held: str, unheld: str, holds: Callable[[Node], bool]) -> NoRouteError | None:
    holders = [verdict for verdict in verdicts if holds(verdict.server)]
    if not holders:
        return NoRouteError(unheld, hint='connect with head="local"')
    if all(verdict.objection is not None for verdict in holders):
        return _withheld(held, holders)
    return None


def _withheld(what: str, holders: Sequence[Verdict]) -> NoRouteError:
    objections = sorted({verdict.objection for verdict in holders if verdict.objection is not None})
    return NoRouteError(
        f"{what} held, but only by servers that {_listed(objections, 'or')}",
        hint="start a server for them, try later, or ask for less",
    )


def _divided(usable: Sequence[Node], layer_count: int, remote_head: bool) -> NoRouteError:
    classes: dict[str, list[Node]] = {}
    for server in usable:
        classes.setdefault(str(server.numerics), []).append(server)
    lacking = {name: _lack(classes[name], layer_count, remote_head) for name in sorted(classes)}
    if "" in lacking.values():
        return NoRouteError(
            "no chain of the servers there are keeps those apart whose common link broke",
            hint="start another server; `python -m swarm reputation` lists who is kept apart",
        )
    lacks = [f"{name} lacks {lack}" for name, lack in lacking.items()]
    return NoRouteError(
        f"no one numerics class covers the model: {_listed(lacks, 'and')}",
        hint='allow mixed numerics with numerics="any"; the answer is then not exact',
    )


def _lack(servers: Sequence[Node], layer_count: int, remote_head: bool) -> str:
    lacking = []
    holes = missing_layers(_spans(servers), layer_count)
    if holes:
        lacking.append(layers_text(holes))
    if remote_head and not any(map(has_embeddings, servers)):
        lacking.append("the embeddings")
    if remote_head and not any(has_head(server, layer_count) for server in servers):
        lacking.append("the LM head")
    return _listed(lacking, "and") if lacking else ""


def _listed(parts: Sequence[str], word: str) -> str:
    shown = list(parts[:_MOST_NAMED])
    if len(parts) > _MOST_NAMED:
        shown.append(f"{len(parts) - _MOST_NAMED} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} {word} {shown[-1]}"
