"""Which network a stranger's address is in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.health.networks import NOWHERE, first_network, network_of


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("/ip4/203.0.113.7/tcp/31337", "203.0.113.0/24"),
        ("/ip4/203.0.113.250/udp/1/quic", "203.0.113.0/24"),
        ("/ip6/2001:db8:1:2::7/tcp/31337", "2001:db8:1::/48"),
        ("/ip4/203.0.113.7/tcp/1/p2p/QmRelay/p2p-circuit", "203.0.113.0/24"),
        ("/dns4/a.b.Example.org/tcp/1", "example.org"),
        ("/dns/c.example.org./tcp/1", "example.org"),
        ("/memory/x", NOWHERE),
        ("", NOWHERE),
    ],
)
def test_the_network_of_an_address(address: str, network: str) -> None:
    assert network_of(address) == network


@given(st.text(max_size=60))
def test_whatever_a_stranger_writes_has_a_network(text: str) -> None:
    assert isinstance(network_of("/" + text), str)
    assert isinstance(network_of("/ip4/" + text), str)


def test_of_several_addresses_the_first_that_says_something() -> None:
    assert first_network(("/memory/x", "/ip4/203.0.113.7/tcp/1", "/ip4/198.51.100.1/tcp/1")) == "203.0.113.0/24"
    assert first_network(()) == NOWHERE
