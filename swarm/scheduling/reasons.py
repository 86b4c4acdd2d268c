"""Why there is no chain: layers that nobody holds, or the constraint that took their servers away."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarm.core.announcement import Announcement
from swarm.core.errors import NoRouteError
from swarm.core.spans import Span, missing_layers

_MOST_NAMED = 4
"""Ranges or classes a message names before it counts the rest."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A server and why it cannot take part ("are draining", to follow "servers that"); None if it can."""

    server: Announcement
    objection: str | None


def has_embeddings(server: Announcement) -> bool:
    """True if it can begin a chain with a remote head."""
    return server.embeddings and server.start == 0


def has_head(server: Announcement) -> bool:
    """True if it can end a chain with a remote head."""
    return server.head and server.end == server.layer_count


def layers_text(spans: Sequence[Span]) -> str:
    """Spans as people count: ends included, "layers 10 to 19 and 25"."""
    parts = [str(span.start) if len(span) == 1 else f"{span.start} to {span.end - 1}" for span in spans]
    one = len(spans) == 1 and len(spans[0]) == 1
    return ("layer " if one else "layers ") + _listed(parts, "and")


def explain(verdicts: Sequence[Verdict], layer_count: int, *, remote_head: bool) -> NoRouteError:
    """The first true reason of: nobody holds it; who holds it may not take part; no class of numerics does it alone.

    ``verdicts`` cover every server of the model; at least one of the reasons must hold.
    """
    holes = missing_layers((verdict.server.span for verdict in verdicts), layer_count)
    if holes:
        hint = f"start one: python -m swarm.server --blocks {holes[0]}"
        return NoRouteError(f"no server holds {layers_text(holes)}", hint=hint)
    usable = [verdict.server for verdict in verdicts if verdict.objection is None]
    holes = missing_layers((server.span for server in usable), layer_count)
    if holes:
        text = layers_text(holes)
        holders = [
            v for v in verdicts if any(v.server.start < hole.end and hole.start < v.server.end for hole in holes)
        ]
        return _withheld(text + (" is" if text.startswith("layer ") else " are"), holders)
    if remote_head:
        last = layer_count - 1
        for missing in (
            _part(verdicts, "the embeddings are", "no server of layer 0 holds the embeddings", has_embeddings),
            _part(verdicts, "the LM head is", f"no server of layer {last} holds the LM head", has_head),
        ):
            if missing is not None:
                return missing
    return _divided(usable, layer_count, remote_head)


def _part(
    verdicts: Sequence[Verdict], held: str, unheld: str, holds: Callable[[Announcement], bool]
) -> NoRouteError | None:
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


def _divided(usable: Sequence[Announcement], layer_count: int, remote_head: bool) -> NoRouteError:
    classes: dict[str, list[Announcement]] = {}
    for server in usable:
        classes.setdefault(str(server.numerics), []).append(server)
    lacks = [f"{name} lacks {_lack(classes[name], layer_count, remote_head)}" for name in sorted(classes)]
    return NoRouteError(
        f"no one numerics class covers the model: {_listed(lacks, 'and')}",
        hint='allow mixed numerics with numerics="any"; the answer is then not exact',
    )


def _lack(servers: Sequence[Announcement], layer_count: int, remote_head: bool) -> str:
    lacking = []
    holes = missing_layers((server.span for server in servers), layer_count)
    if holes:
        lacking.append(layers_text(holes))
    if remote_head and not any(map(has_embeddings, servers)):
        lacking.append("the embeddings")
    if remote_head and not any(map(has_head, servers)):
        lacking.append("the LM head")
    return _listed(lacking, "and")


def _listed(parts: Sequence[str], word: str) -> str:
    shown = list(parts[:_MOST_NAMED])
    if len(parts) > _MOST_NAMED:
        shown.append(f"{len(parts) - _MOST_NAMED} more")
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} {word} {shown[-1]}"
