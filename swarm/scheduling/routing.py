"""From the directory's view to a chain of servers that tiles the model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from swarm.core.announcement import Announcement, Reach, State
from swarm.core.errors import ConfigError, NoRouteError
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_STAGES
from swarm.core.numerics import DTYPE_BYTES, Numerics
from swarm.core.spans import Span
from swarm.scheduling.reasons import Verdict, explain, has_embeddings, has_head


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteNeeds:
    """What a session asks of its chain.

    ``kv_tokens``: cache room in tokens at every server. ``head``: ``"remote"`` wants embeddings at the first server and
    norm with LM head at the last, ``"local"`` wants neither. ``numerics``: ``"same"`` any one class for the whole chain
    (the answer is exact), ``"any"`` lets classes mix, a ``Numerics`` asks for that class. ``excluded`` peers take no
    part.
    """

    kv_tokens: int = 0
    head: Literal["local", "remote"] = "local"
    numerics: Numerics | Literal["same", "any"] = "same"
    excluded: frozenset[PeerId] = frozenset()


@dataclass(frozen=True, slots=True)
class Stage:
    """One server's part of a chain: ``span`` is what it computes, within what ``announcement`` holds."""

    peer: PeerId
    span: Span
    announcement: Announcement


@dataclass(frozen=True, slots=True)
class Route:
    """Stages in order; their spans tile the model. ``exact``: all declare one numerics class."""

    stages: tuple[Stage, ...]
    exact: bool

    @property
    def peers(self) -> tuple[PeerId, ...]:
        return tuple(stage.peer for stage in self.stages)


def find_route(servers: Sequence[Announcement], layer_count: int, *, needs: RouteNeeds, salt: int = 0) -> Route:
    """The chain with the fewest servers that covers layers ``[0, layer_count)`` and meets ``needs``.

    Spans may be used in part; each cut is as near to equal shares as the spans allow. Only online, reachable servers
    that announce this layer count take part. Optimal in the number of servers: with k servers a prefix grows to the
    farthest end among those that start within it, and every shorter prefix is reachable too. O(k·N).

    Ties: among numerics classes the one of higher precision (unquantized first, then wider); among servers that fit a
    place in a shortest chain, the lowest hash of (``salt``, peer id). One salt gives one answer whatever the order
    of ``servers``; clients with different salts spread over equals.

    Raises ``NoRouteError`` that names the layers, or the constraint that took their servers away.
    """
    if layer_count < 1:
        raise ConfigError(f"a model of {layer_count} layers")
    verdicts = [Verdict(server, _objection(server, needs)) for server in servers if server.layer_count == layer_count]
    usable = [verdict.server for verdict in verdicts if verdict.objection is None]
    best: list[Announcement] | None = None
    for group in _groups(usable, needs):
        chain = _fewest(group, layer_count, needs, salt)
        if chain is not None and (best is None or len(chain) < len(best)):
            best = chain
    if best is None:
        raise explain(verdicts, layer_count, remote_head=needs.head == "remote")
    if len(best) > MAX_STAGES:
        raise NoRouteError(
            f"the shortest chain has {len(best)} servers, over {MAX_STAGES}", hint="let servers hold longer spans"
        )
    return Route(_cut(best, layer_count), exact=len({str(server.numerics) for server in best}) == 1)


def _objection(server: Announcement, needs: RouteNeeds) -> str | None:
    """Why this server cannot be in any chain of these needs; None if it can."""
    room = min(server.kv_tokens, server.context_tokens or server.kv_tokens)
    if server.state is not State.ONLINE:
        return f"are {server.state.value}"
    if server.peer_id in needs.excluded:
        return "have just failed this client"
    if server.reach is Reach.UNREACHABLE:
        return "cannot be reached"
    if room < needs.kv_tokens:
        return f"have too little KV room (under {needs.kv_tokens} tokens)"
    if isinstance(needs.numerics, Numerics) and str(server.numerics) != str(needs.numerics):
        return f"compute in other numerics than {needs.numerics}"
    return None


def _groups(usable: Sequence[Announcement], needs: RouteNeeds) -> Iterable[list[Announcement]]:
    """Servers that may stand in one chain: each numerics class, best precision first, then all if classes may mix."""
    classes = {str(server.numerics): server.numerics for server in usable}  # str names the class, defaults resolved
    for name, _ in sorted(classes.items(), key=lambda item: _precision(item[1])):
        yield [server for server in usable if str(server.numerics) == name]
    if needs.numerics == "any":
        yield list(usable)


def _precision(numerics: Numerics) -> tuple[bool, int, str]:
    return numerics.quantization != "none", -DTYPE_BYTES.get(numerics.dtype, 0), str(numerics)


def _fewest(
    servers: Sequence[Announcement], layer_count: int, needs: RouteNeeds, salt: int
) -> list[Announcement] | None:
    """A chain of the fewest servers, each starting no later than its predecessor ends; None if there is none."""
    remote = needs.head == "remote"
    firsts = [server for server in servers if (has_embeddings(server) if remote else server.start == 0)]
    lasts = [server for server in servers if (has_head(server) if remote else server.end == layer_count)]
    alone = [server for server in firsts if server.end == layer_count and (has_head(server) or not remote)]
    if alone:
        return [_pick(alone, salt)]
    if not firsts or not lasts:
        return None
    # needed[m]: a chain's prefix must reach this layer for m more servers to finish.
    needed = [layer_count, min(server.start for server in lasts)]
    while max(server.end for server in firsts) < needed[-1]:
        earlier = min((server.start for server in servers if server.end >= needed[-1]), default=needed[-1])
        if earlier >= needed[-1]:
            return None
        needed.append(earlier)
    chain = [_pick([server for server in firsts if server.end >= needed[-1]], salt)]
    for goal in reversed(needed[:-1]):
        pool = lasts if goal == layer_count else servers
        chain.append(_pick([server for server in pool if server.start <= chain[-1].end and server.end >= goal], salt))
    return chain


def _pick(candidates: Sequence[Announcement], salt: int) -> Announcement:
    def rank(server: Announcement) -> tuple[bytes, str]:
        return hashlib.blake2b(f"{salt}/{server.peer}".encode(), digest_size=8).digest(), server.peer

    return min(candidates, key=rank)


def _cut(chain: Sequence[Announcement], layer_count: int) -> tuple[Stage, ...]:
    """Assign each server its part of the model.

    In a shortest chain no server reaches its successor's successor, so cuts anywhere in the overlaps of neighbours grow
    strictly; equal shares are at least one layer, so the first and the last stage are not empty either.
    """
    cuts = [0]
    for index, (server, successor) in enumerate(pairwise(chain), start=1):
        ideal = round(layer_count * index / len(chain))
        cuts.append(min(max(ideal, successor.start), server.end))
    cuts.append(layer_count)
    return tuple(
        Stage(server.peer_id, Span(start, end), server)
        for server, start, end in zip(chain, cuts[:-1], cuts[1:], strict=True)
    )
