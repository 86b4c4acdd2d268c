"""What a node that finds nobody is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from swarm.core.errors import PeerUnreachableError
from swarm.core.keys import Identity
from swarm.transport.libp2p_joining import join, reason_of
from swarm.transport.p2pd import DaemonRefused

MEANT, THERE = (Identity(bytes([index]) * 32).peer_id for index in (1, 2))
MISMATCH = (
    f"failed to dial {MEANT}: all dials failed\n  * [/ip4/127.0.0.1/tcp/9] failed to negotiate security protocol: "
    f"peer id mismatch: expected {MEANT}, but remote key matches {THERE}"
)
REFUSED = f"failed to dial {MEANT}: all dials failed\n  * [/ip4/127.0.0.1/tcp/9] dial tcp4: connection refused"


class Refusing:
    """A daemon that connects to nobody."""

    def __init__(self, why: str) -> None:
        self.why = why

    async def connect(self, peer: str, addresses: Sequence[str], *, timeout_s: float) -> None:
        raise DaemonRefused(self.why)


def test_another_peers_key_is_told_in_plain_words() -> None:
    assert reason_of(MISMATCH) == f"[/ip4/127.0.0.1/tcp/9] another peer answers there: {THERE}"
    assert reason_of(REFUSED) == "[/ip4/127.0.0.1/tcp/9] dial tcp4: connection refused"


@pytest.mark.parametrize(
    ("why", "hint"), [(MISMATCH, "copy the address that it prints now"), (REFUSED, "check that one of them is running")]
)
async def test_the_hint_fits_the_reason(why: str, hint: str) -> None:
    daemon: Any = Refusing(why)
    with pytest.raises(PeerUnreachableError, match="no initial peer answered") as caught:
        await join(daemon, (f"/ip4/127.0.0.1/tcp/9/p2p/{MEANT}",))
    assert caught.value.hint.startswith(hint)
