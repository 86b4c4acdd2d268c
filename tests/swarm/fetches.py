"""FETCH streams by hand, and sessions to fetch from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from by_hand import Place
from fakes import FakeClient
from harness import Node, Swarm
from signed_chain import SignedChain

from swarm.transport.framing import FrameStream
from swarm.verification.challenges.commitment import commit
from swarm.wire.evidence import FetchRows
from swarm.wire.session import Channel, Role

PROMPT = list(range(40, 140))
AUDIT_SECRET = bytes(range(32))
Want = Literal["leaves", "outputs", "sent"]


async def fetching(client: FakeClient, node: Node) -> FrameStream:
    return FrameStream(await client.raw(node, Channel.FETCH), Channel.FETCH, Role.DIALER)


def request(place: Place, first: int, last: int, want: Want = "leaves", **changes: Any) -> FetchRows:
    assert place.opened is not None
    fields = {"session": place.opened.session, "stage": place.number, "secret": AUDIT_SECRET}
    return FetchRows(**(fields | {"first": first, "last": last, "want": want} | changes))


async def closed(
    swarm: Swarm, client: FakeClient, nodes: Sequence[Node], chunk: int = 37, **opening: object
) -> SignedChain:
    """A session of 150 rows that is settled and closed."""
    signed = await SignedChain(client, nodes, commitment=commit(AUDIT_SECRET), **opening).open()
    last = await signed.prompt(PROMPT, chunk=chunk)
    await signed.go_on(last, 50)
    await signed.settle()
    await signed.close()
    await swarm.quiet()
    return signed
