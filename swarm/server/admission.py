"""What an OPEN must satisfy before anything is reserved for it."""

from __future__ import annotations

from swarm.core.errors import RefusedError
from swarm.core.limits import PROTOCOL_MAJOR
from swarm.core.records import Announcement
from swarm.engine.work import SpanInfo
from swarm.wire.messages import Open


def check_open(opened: Open, info: SpanInfo, announced: Announcement) -> None:
    """Raise ``RefusedError`` with the precise reason if this server can never serve this OPEN."""
    span = info.span
    if opened.protocol != PROTOCOL_MAJOR:
        raise RefusedError(f"this server speaks protocol {PROTOCOL_MAJOR}, not {opened.protocol}")
    if opened.model != announced.model:
        raise RefusedError(f"this server holds {announced.model}, not {opened.model}")
    if not span.start <= opened.start < opened.end <= span.end:
        raise RefusedError(f"this server holds layers {span}, not {opened.start}:{opened.end}")
    if opened.stage >= opened.stages:
        raise RefusedError(f"stage {opened.stage} of {opened.stages}")
    if opened.embed and not (info.embeddings and opened.stage == 0 and opened.start == 0):
        raise RefusedError("token ids enter at a server that holds the embeddings and layer 0")
    last = opened.stage == opened.stages - 1
    if opened.head and not (info.head and last and opened.end == info.layer_count):
        raise RefusedError("sampling needs the norm and LM head behind the last layer, at the last stage")
    if last != (not opened.downstream):
        raise RefusedError("every stage but the last names the next server")
    if opened.numerics and opened.numerics != str(announced.numerics):
        raise RefusedError(f"this server computes in {announced.numerics}, not {opened.numerics}")
