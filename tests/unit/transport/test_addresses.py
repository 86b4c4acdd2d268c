"""Multiaddresses: parts, publicness, reach, and libp2p's binary form."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.announcement import Reach
from swarm.core.errors import ConfigError
from swarm.core.keys import Identity
from swarm.transport.addresses import (
    household,
    is_neighbour,
    is_public,
    is_relayed,
    join_peer,
    reach_of,
    split_peer,
    widest_first,
)
from swarm.transport.multiaddr import to_bytes, to_text

PEER, RELAY = Identity(bytes(32)).peer_id, Identity(b"r" * 32).peer_id
PUBLIC, PRIVATE, LOOPBACK = "/ip4/8.8.8.8/tcp/31337", "/ip4/192.168.1.5/tcp/31337", "/ip4/127.0.0.1/tcp/4001"
CIRCUIT = f"{PUBLIC}/p2p/{RELAY}/p2p-circuit"


def test_the_peer_is_the_last_part_and_a_relay_is_not() -> None:
    assert split_peer(f"{PUBLIC}/p2p/{PEER}") == (PUBLIC, PEER)
    assert split_peer(PUBLIC) == (PUBLIC, None)
    assert split_peer(CIRCUIT) == (CIRCUIT, None)
    assert split_peer(f"{CIRCUIT}/p2p/{PEER}") == (CIRCUIT, PEER)
    assert split_peer(f"{PUBLIC}/p2p/") == (f"{PUBLIC}/p2p/", None)
    assert join_peer(PUBLIC, PEER) == join_peer(f"{PUBLIC}/p2p/{RELAY}", PEER) == f"{PUBLIC}/p2p/{PEER}"
    assert is_relayed(CIRCUIT)
    assert not is_relayed(PUBLIC)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        (PUBLIC, True),
        ("/ip6/2606:4700::1111/tcp/1", True),
        ("/dns4/node.example.org/tcp/1", True),
        (PRIVATE, False),
        (LOOPBACK, False),
        ("/ip4/100.64.0.1/tcp/1", False),
        ("/ip4/169.254.1.1/tcp/1", False),
        ("/ip6/::1/tcp/1", False),
        ("/ip6/fd00::2/tcp/1", False),
        ("/ip6/::ffff:10.0.0.1/tcp/1", False),
        ("/ip6/::10.0.0.1/tcp/1", False),
        ("/ip6/64:ff9b::10.0.0.1/tcp/1", False),
        ("/ip6/2002:a00:1::/tcp/1", False),
        ("/ip6/fec0::1/tcp/1", False),
        ("/ip4/224.0.0.1/tcp/1", False),
        ("/dns4/localhost/tcp/1", False),
        ("/memory/x", False),
        ("/ip4/not-an-address/tcp/1", False),
        ("/ip4", False),
        ("", False),
    ],
)
def test_public_addresses(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize(
    ("address", "neighbour"),
    [
        ("/ip4/192.168.1.77/tcp/22", True),
        ("/ip4/192.168.2.5/tcp/22", False),
        (LOOPBACK, False),
        ("/ip4/127.0.0.2/tcp/1", False),
        (PUBLIC, False),
        ("/ip4/8.8.8.9/tcp/1", False),
        ("/ip4/169.254.169.254/tcp/80", False),
        ("/ip6/fd00::99/tcp/1", True),
        ("/ip6/fd00:0:0:1::99/tcp/1", False),
        ("/ip6/fe80::2/tcp/1", False),
        ("/ip4/0.0.0.0/tcp/1", False),
        (f"{PRIVATE}/p2p/{RELAY}/p2p-circuit", False),
        ("/dns4/localhost/tcp/1", False),
        ("/ip4", False),
    ],
)
def test_neighbours_share_a_private_network(address: str, neighbour: bool) -> None:
    own = [PUBLIC, PRIVATE, LOOPBACK, "/ip4/169.254.1.1/tcp/1", "/ip6/fd00::1/tcp/1", "/ip6/fe80::1/tcp/1"]
    assert is_neighbour(address, own) is neighbour
    assert not is_neighbour(address, [PUBLIC, LOOPBACK])


@pytest.mark.parametrize(
    ("addresses", "initial", "reach"),
    [
        ([PRIVATE, PUBLIC], [PUBLIC], Reach.DIRECT),
        ([PRIVATE, CIRCUIT], [PUBLIC], Reach.RELAYED),
        ([PRIVATE], [PUBLIC], Reach.UNREACHABLE),
        ([PRIVATE], [LOOPBACK], Reach.DIRECT),
        ([LOOPBACK], [], Reach.DIRECT),
        ([PUBLIC, CIRCUIT], [], Reach.DIRECT),
        ([], [], Reach.UNREACHABLE),
    ],
)
def test_reach(addresses: list[str], initial: list[str], reach: Reach) -> None:
    assert reach_of(addresses, initial) is reach


def test_known_binary_forms() -> None:
    # From the multiformats specification's examples and go-multiaddr's tests.
    assert to_bytes("/ip4/127.0.0.1/udp/1234").hex() == "047f000001910204d2"
    assert to_bytes("/ip4/127.0.0.1/tcp/4321").hex() == "047f0000010610e1"
    assert to_bytes("/ip6/2001:8a0:7ac5:4201:3ac9:86ff:fe31:7095/tcp/8000").hex() == (
        "29200108a07ac542013ac986fffe317095061f40"
    )
    assert to_bytes("/dns4/a.example/tcp/1").hex() == "3609" + b"a.example".hex() + "060001"
    assert to_bytes(f"/p2p/{PEER}/p2p-circuit")[:5].hex() == "a503260024"


@given(
    st.lists(
        st.one_of(
            st.ip_addresses(v=4).map(lambda ip: f"/ip4/{ip}"),
            st.ip_addresses(v=6).map(lambda ip: f"/ip6/{ip}"),
            st.integers(0, 65535).map(lambda port: f"/tcp/{port}"),
            st.sampled_from(["/dns/example.org", "/quic-v1", "/ws", f"/p2p/{RELAY}", "/p2p-circuit"]),
        ),
        max_size=3,
    ).map("".join)
)
def test_text_and_binary_form_are_one(address: str) -> None:
    if address:
        assert to_text(to_bytes(address)) == address


@pytest.mark.parametrize(
    "address",
    [
        *("", "nonsense", "ip4/1.2.3.4", "/", "/ip4", "/ip4/1.2.3", "/ip4/1.2.3.4/tcp", "/ip4/1.2.3.4/tcp/65536"),
        *("/ip4/1.2.3.4/tcp/-1", "/ip4/1.2.3.4/tcp/1/", "/ip6/1.2.3.4", "/p2p/0OIl", "/p2p/abc", "/foo/1"),
        *("/ip4/1.2.3.4/tcp/1,/ip4/1.2.3.4/tcp/2", "/dns4//tcp/1", "/ip4/1.2.3.4\n/tcp/1", "/dns4/" + "a" * 300),
    ],
)
def test_malformed_addresses_are_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="multiaddress"):
        to_bytes(address)


@given(st.binary(max_size=64))
def test_any_bytes_have_a_text_or_none(raw: bytes) -> None:
    text = to_text(raw)
    assert text is None or text == "" or text.startswith("/")


def test_addresses_that_most_can_dial_come_first() -> None:
    own, lan, relayed = "/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.2/tcp/1", "/ip4/8.8.8.8/tcp/1/p2p/x/p2p-circuit"
    public = "/ip4/8.8.4.4/tcp/1"
    assert widest_first([own, lan, relayed, public]) == (public, relayed, lan, own)
    assert widest_first(["/ip6/::1/tcp/1", "nonsense", own]) == ("nonsense", "/ip6/::1/tcp/1", own)


def test_strangers_are_counted_by_address_or_prefix() -> None:
    assert household(PUBLIC) == household("/ip4/8.8.8.8/udp/4001/quic-v1") == "8.8.8.8/32"
    assert household(PRIVATE) != household("/ip4/192.168.1.6/tcp/31337")
    assert household("/ip6/2001:db8:1:2::7/tcp/1") == household("/ip6/2001:db8:1:2:a::9/tcp/2") == "2001:db8:1:2::/64"


@pytest.mark.parametrize(
    "address", [LOOPBACK, "/ip6/::1/tcp/1", CIRCUIT, "", "/ip4", "/dns/example.org/tcp/1", "/ip4/x/tcp/1"]
)
def test_whose_place_is_not_known_is_not_counted(address: str) -> None:
    assert household(address) == ""
