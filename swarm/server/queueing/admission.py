"""What an OPEN must satisfy before anything is reserved for it."""

from __future__ import annotations

import msgspec

from swarm.core.announcement import Announcement
from swarm.core.errors import RefusedError
from swarm.core.limits import PROTOCOL_MAJOR
from swarm.core.records import read_announcement
from swarm.engine.work import SpanInfo
from swarm.transport.addresses import is_neighbour, is_public
from swarm.wire.messages import Open


def check_open(opened: Open, info: SpanInfo, announced: Announcement) -> None:
    """Raise ``RefusedError`` with the precise reason if this server can never serve this OPEN.

    A stage without a next server sends its rows to the client, wherever its span ends: so a server can be probed alone.
    """
    span = info.span
    if opened.protocol != PROTOCOL_MAJOR:
        raise RefusedError(f"this server speaks protocol {PROTOCOL_MAJOR}, not {opened.protocol}")
    if opened.model != announced.model:
        raise RefusedError(f"this server holds {announced.model}, not {opened.model}")
    if opened.start < span.start or opened.end > span.end:
        raise RefusedError(f"this server holds layers {span}, not {opened.start}:{opened.end}")
    if opened.embed and not (info.embeddings and opened.start == 0):
        raise RefusedError("token ids enter at a server that holds the embeddings and layer 0")
    last = opened.end == info.layer_count
    if opened.head and not (info.head and last):
        raise RefusedError("sampling needs the norm and LM head behind the last layer")
    if last and opened.downstream is not None:
        raise RefusedError("nobody follows the last layer")
    if opened.numerics and opened.numerics != str(announced.numerics):
        raise RefusedError(f"this server computes in {announced.numerics}, not {opened.numerics}")


def check_following(record: bytes, opened: Open, announced: Announcement, now_s: float) -> Announcement:
    """The next server's announcement, with only the addresses this server is willing to dial.

    A client must not be able to make us knock at other people's private networks, or at this machine's own ports: a
    server with a public address (most have private ones beside it) dials public ones, and neighbours in a private
    network of its own. Raises ``PeerError`` for a record that is not signed by whom it names, has expired or makes no
    sense, ``RefusedError`` if that server cannot follow this stage or has no address left.
    """
    following = read_announcement(record, now_s=now_s)
    if following.model != announced.model or not following.start <= opened.end < following.end:
        raise RefusedError(f"the next server does not hold layer {opened.end} of this model")
    addresses = following.addresses
    if any(map(is_public, announced.addresses)):
        addresses = tuple(a for a in addresses if is_public(a) or is_neighbour(a, announced.addresses))
    if following.addresses and not addresses:
        raise RefusedError("the next server announces private addresses only, and this one is on the internet")
    return msgspec.structs.replace(following, addresses=addresses)
