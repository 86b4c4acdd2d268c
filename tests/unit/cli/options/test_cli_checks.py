"""What people mistype on the command line."""

from __future__ import annotations

import pytest

from swarm.cli.options.checks import check_addresses, read_max_memory
from swarm.core.errors import ConfigError

PEER = "12D3KooWCXiQ95bGm3HLJDgEqDh8wFQc81t8MB4nVVsJYQ8V6WdG"


def test_memory_by_device() -> None:
    limits = read_max_memory(["0=8GB", "1=1.5GiB", "cpu=512M"])
    assert limits == {0: 8_000_000_000, 1: 1536 * 2**20, "cpu": 512_000_000}
    assert read_max_memory([]) is None


@pytest.mark.parametrize("text", ["8GB", "0:8GB", "cuda=8GB", "0=lots", "0=-8GB", "0=", "=8GB"])
def test_unreadable_memory_shows_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match="0=8GB"):
        read_max_memory([text])


def test_a_whole_address_passes() -> None:
    check_addresses("--initial-peers", [f"/ip4/192.0.2.1/tcp/31337/p2p/{PEER}"])
    check_addresses("--announce", ["/dns4/example.org/tcp/31337"], with_peer=False)


@pytest.mark.parametrize(
    "text",
    [
        "192.0.2.1:31337",
        "/ip4",
        "/ip4/192.0.2.1/tcp/31337",
        "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...",
        f"/ip4/192.0.2/tcp/31337/p2p/{PEER}",
        f"/ip4/192.0.2.1/tcp/31337/p2p/{PEER},/ip4/192.0.2.2/tcp/31337/p2p/{PEER}",
    ],
)
def test_a_cut_address_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--initial-peers") as caught:
        check_addresses("--initial-peers", [text])
    assert "/p2p/" in str(caught.value.hint)
