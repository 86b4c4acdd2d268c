"""What is told and heard on the local network: parsed once, bounded, never trusted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError, PeerUnreachableError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.runtime.clock import VirtualClock
from swarm.transport.lan import (
    LOOK_S,
    MAX_ADDRESSES,
    MAX_HEARD,
    MAX_JOINED,
    MAX_PLACES,
    Hearing,
    MemoryAir,
    Notice,
    advertised,
    check_swarm_name,
    find_peers,
    is_near,
    read_notice,
    write_notice,
)
from swarm.transport.subnets import Subnet, subnet_of

HOME = "/ip4/192.168.1.20/tcp/31337"
CAMPUS, OFF_CAMPUS = "/ip4/130.149.7.20/tcp/31337", "/ip4/130.149.8.20/tcp/31337"
GLOBAL, ELSEWHERE = "/ip6/2001:db8:7::20/tcp/31337", "/ip6/2001:db8:8::20/tcp/31337"


def peer(number: int) -> PeerId:
    return Identity(number.to_bytes(32, "big")).peer_id


def entries(notice: Notice, subnets: tuple[Subnet, ...] = ()) -> dict[bytes, bytes | None]:
    return {key.encode(): value.encode() for key, value in write_notice(notice, subnets).items()}


@given(
    number=st.integers(1, 1000),
    swarm=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=63),
    hosts=st.lists(st.integers(1, 254), min_size=1, max_size=MAX_ADDRESSES, unique=True),
)
def test_what_is_written_is_read(number: int, swarm: str, hosts: list[int]) -> None:
    notice = Notice(peer(number), tuple(f"/ip4/10.0.0.{host}/tcp/{host}" for host in hosts), swarm)
    assert read_notice(entries(notice)) == notice
    assert all(len(key) + 1 + len(value) <= 255 for key, value in write_notice(notice).items())


@given(
    st.dictionaries(
        st.sampled_from([b"peer", b"swarm", b"addr0", b"addr1", b"addr5", b"addr6", b"other"]) | st.binary(max_size=9),
        st.none()
        | st.binary(max_size=255)
        | st.sampled_from([peer(1).encode(), HOME.encode(), b"/ip4//tcp/", b"/" * 9]),
    )
)
def test_whatever_is_heard_is_read_or_dropped(heard: dict[bytes, bytes | None]) -> None:
    notice = read_notice(heard)
    if notice is not None:
        assert heard[b"peer"] == notice.peer.encode()
        assert notice.addresses
        assert all(map(is_near, notice.addresses))
        assert len(notice.addresses) <= MAX_ADDRESSES
    hearing = Hearing()
    hearing.hear("x", heard)
    assert len(hearing.heard()) <= 1


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/8.8.8.8/tcp/443",
        "/dns4/localhost/tcp/80",
        "/dns/example.org/tcp/80",
        "/ip4/0.0.0.0/tcp/80",
        "/ip6/::/tcp/80",
        "/ip4/192.168.1.20/tcp/0",
        "/ip4/192.168.1.20/tcp/70000",
        "/ip4/192.168.1.20/udp/80",
        "/ip4/192.168.1/tcp/80",
        "/ip6/2001:4860:4860::8888/tcp/80",
        "/ip4/224.0.0.251/tcp/5353",
        "/ip4/255.255.255.255/tcp/80",
        "/ip4/240.0.0.1/tcp/80",
        "/ip4/192.168.1.20/tcp/00",
        "/ip6/0:0::0/tcp/80",
        "/ip6/ff02::1/tcp/80",
        "/ip6/::ffff:8.8.8.8/tcp/80",
        "/ip6/64:ff9b::808:808/tcp/80",
        "/ip6/2002:808:808::1/tcp/80",
        "/ip6/fe80::1%eth0/tcp/80",
        f"{HOME}/p2p/{peer(1)}",
        f"{HOME}/p2p/{peer(1)}/p2p-circuit",
        "",
        "/",
        "nonsense",
    ],
)
def test_only_what_machines_near_by_can_dial_counts(address: str) -> None:
    assert not is_near(address)
    assert read_notice({b"peer": peer(1).encode(), b"addr0": address.encode()}) is None


@pytest.mark.parametrize("address", [HOME, "/ip4/10.1.2.3/tcp/1", "/ip4/169.254.7.7/tcp/9", "/ip6/fd00::2/tcp/80"])
def test_private_addresses_are_near(address: str) -> None:
    assert is_near(address)


@pytest.mark.parametrize("wrong", [b"", b"12D3KooW", b"\xff" * 52, b"Qm" + b"1" * 44, b"1" * 255])
def test_a_notice_without_a_peer_id_is_none(wrong: bytes) -> None:
    assert read_notice({b"peer": wrong, b"addr0": HOME.encode()}) is None


def test_own_addresses_to_tell() -> None:
    visible = ["/ip4/203.0.113.7/tcp/1", f"{HOME}/p2p/{peer(1)}", "/ip4/127.0.0.1/tcp/31337", "/ip4/8.8.8.8/tcp/1"]
    assert advertised(visible)[-1] == HOME
    assert "/ip4/127.0.0.1/tcp/31337" not in advertised(visible)
    assert advertised(["/ip4/127.0.0.1/tcp/31337"]) == ("/ip4/127.0.0.1/tcp/31337",)


@pytest.fixture
def campus() -> tuple[Subnet, ...]:
    """The subnets of a machine whose network has public addresses."""
    found = subnet_of("130.149.7.1", "255.255.255.0"), subnet_of("2001:db8:7::1", "ffff:ffff:ffff:ffff::")
    return tuple(subnet for subnet in found if subnet is not None)


def test_public_addresses_count_in_our_own_subnets_alone(campus: tuple[Subnet, ...]) -> None:
    places = (HOME, CAMPUS, OFF_CAMPUS, GLOBAL, ELSEWHERE, "/ip4/130.149.7.255/tcp/31337")
    assert [place for place in places if is_near(place, campus)] == [HOME, CAMPUS, GLOBAL]
    assert advertised(places, campus) == (HOME, CAMPUS, GLOBAL)
    assert advertised(places) == (HOME,)


def test_a_campus_hears_its_own_and_nobody_else_does(campus: tuple[Subnet, ...]) -> None:
    told = entries(Notice(peer(1), (OFF_CAMPUS, CAMPUS, GLOBAL)), campus)
    here, elsewhere = Hearing(subnets=campus), Hearing()
    for hearing in (here, elsewhere):
        hearing.hear("a", told)
        hearing.hear("b", {b"peer": peer(2).encode(), b"addr0": OFF_CAMPUS.encode()})
    assert here.heard() == [Notice(peer(1), (CAMPUS, GLOBAL))]
    assert elsewhere.heard() == []


def test_other_swarms_own_notices_and_loopback_of_others_are_not_heard() -> None:
    hearing = Hearing("kitchen")
    hearing.ignore(peer(1))
    hearing.hear("a", entries(Notice(peer(1), (HOME,), "kitchen")))
    hearing.hear("b", entries(Notice(peer(2), (HOME,), "garage")))
    hearing.hear("c", entries(Notice(peer(3), ("/ip4/127.0.0.1/tcp/1",), "kitchen")))
    assert hearing.heard() == []
    there = Notice(peer(4), (HOME,), "kitchen")
    hearing.hear("d", entries(there))
    assert hearing.heard() == [there]
    hearing.forget("d")
    assert hearing.heard() == []


def test_a_flood_of_names_is_bounded() -> None:
    hearing = Hearing()
    for number in range(1, 3 * MAX_HEARD):
        hearing.hear(str(number), entries(Notice(peer(number), (HOME,))))
    assert len(hearing.heard()) == MAX_HEARD
    moved = Notice(peer(1), ("/ip4/192.168.1.21/tcp/31337",))
    hearing.hear("1", entries(moved))
    assert hearing.heard()[0] == moved


def test_whoever_names_another_peer_does_not_hide_where_it_is() -> None:
    hearing = Hearing()
    hearing.hear("itself", entries(Notice(peer(1), (HOME,))))
    for number in range(1, 10):
        hearing.hear(f"stranger {number}", entries(Notice(peer(1), (f"/ip4/10.0.0.{number}/tcp/1",))))
    (found,) = hearing.heard()
    assert found.addresses[0] == HOME
    assert len(found.addresses) <= MAX_PLACES


@pytest.mark.parametrize("name", ["x" * 64, "küche", "a\nb"])
def test_names_that_fit_no_notice(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a swarm"):
        check_swarm_name(name)


async def test_peers_are_found_soon_after_the_first_was_heard() -> None:
    air, clock = MemoryAir(), VirtualClock()
    network = air.join()
    looking = asyncio.create_task(find_peers(network, clock))
    await clock.advance(1.0)
    for number in range(1, 2 * MAX_JOINED):
        await air.join().advertise(Notice(peer(number), (HOME,)))
    await clock.advance(0.5)
    found = looking.result()
    assert found[0] == f"{HOME}/p2p/{peer(1)}"
    assert len(found) == MAX_JOINED


@pytest.mark.parametrize(
    "say",
    [
        lambda air: None,
        lambda air: air.tell("x", {b"peer": b"\xff", b"addr0": None}),
        lambda air: air.tell("x", entries(Notice(peer(1), (HOME,), "another"))),
    ],
)
async def test_nobody_is_found_where_nobody_is(say: Callable[[MemoryAir], None]) -> None:
    air, clock = MemoryAir(), VirtualClock()
    network = air.join()
    looking = asyncio.create_task(find_peers(network, clock))
    await clock.advance(LOOK_S / 2)
    say(air)
    await clock.advance(LOOK_S / 2)
    with pytest.raises(PeerUnreachableError, match="nobody on the local network"):
        looking.result()
    await network.close()
    assert not air.ears


async def test_who_closes_is_not_heard_any_more() -> None:
    air = MemoryAir()
    one, other = air.join("kitchen"), air.join("kitchen")
    await one.advertise(Notice(peer(1), (HOME,)))
    assert [notice.peer for notice in other.heard()] == [peer(1)]
    assert one.heard() == []
    await one.close()
    await one.close()
    assert other.heard() == []
