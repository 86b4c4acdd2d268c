"""Which networks this machine is in, and who lives near."""

from __future__ import annotations

import ipaddress
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.transport.subnets import WIDEST_BITS, lives_near, own_subnets, subnet_of

MASK_24, MASK_64 = "255.255.255.0", "ffff:ffff:ffff:ffff::"


def mask(bits: int, version: int) -> str:
    whole = {4: 32, 6: 128}[version]
    number = (1 << bits) - 1 << (whole - bits)
    return str(ipaddress.IPv4Address(number) if version == 4 else ipaddress.IPv6Address(number))


@given(st.ip_addresses(), st.integers(0, 128))
def test_a_subnet_holds_its_interface_and_is_no_wider_than_a_site(host: Any, bits: int) -> None:
    bits = min(bits, host.max_prefixlen)
    subnet = subnet_of(str(host), mask(bits, host.version))
    fits = WIDEST_BITS[host.version] <= bits < host.max_prefixlen and not host.is_loopback
    assert (subnet is not None) is fits
    if subnet is not None:
        assert host in subnet
        assert subnet.prefixlen == bits


@pytest.mark.parametrize(
    ("address", "netmask"),
    [
        ("8.8.8.8", "255.0.0.0"),
        ("8.8.8.8", "0.0.0.0"),
        ("8.8.8.8", "255.255.255.255"),
        ("8.8.8.8", "255.0.255.0"),
        ("8.8.8.8", MASK_64),
        ("8.8.8.8", None),
        ("2001:db8::1", "ffff:ffff::"),
        ("2001:db8::1", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
        ("127.0.0.1", MASK_24),
        ("02:fc:00:00:00:01", None),
        ("", ""),
    ],
)
def test_no_subnet(address: str, netmask: str | None) -> None:
    assert subnet_of(address, netmask) is None


def test_a_scope_is_no_part_of_an_address() -> None:
    assert subnet_of("fe80::1%eth0", MASK_64) == ipaddress.ip_network("fe80::/64")


@pytest.mark.parametrize(
    ("bits", "near", "far"),
    [
        (24, ["9.9.9.1", "9.9.9.254"], ["9.9.9.0", "9.9.9.255", "9.9.8.1"]),
        (31, ["9.9.9.0", "9.9.9.1"], ["9.9.9.2"]),  # a link of two (RFC 3021)
        (16, ["9.9.0.255"], ["9.8.0.1", "9.9.255.255"]),
    ],
)
def test_who_lives_in_it(bits: int, near: list[str], far: list[str]) -> None:
    subnet = subnet_of("9.9.9.1", mask(bits, 4))
    assert subnet is not None
    for host in near + far:
        assert lives_near(ipaddress.ip_address(host), (subnet,)) is (host in near), host


def test_interfaces_that_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for the kernel: this machine's interfaces are what they are."""

    def interface(address: str, netmask: str | None, ptp: str | None = None) -> Any:
        return SimpleNamespace(address=address, netmask=netmask, ptp=ptp)

    there = {
        "eth0": [interface("130.149.7.1", MASK_24), interface("2001:db8:7::1", MASK_64), interface("02:fc::", None)],
        "eth0:1": [interface("130.149.7.2", MASK_24)],
        "lo": [interface("127.0.0.1", "255.0.0.0"), interface("::1", mask(128, 6))],
        "tun0": [interface("9.9.9.1", MASK_24, ptp="9.9.9.2")],
        "cloud0": [interface("8.8.4.4", "255.255.255.255")],
        "down0": [interface("7.7.7.1", MASK_24)],
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: there)
    monkeypatch.setattr(psutil, "net_if_stats", lambda: {n: SimpleNamespace(isup=n != "down0") for n in there})
    assert own_subnets() == (ipaddress.ip_network("130.149.7.0/24"), ipaddress.ip_network("2001:db8:7::/64"))

    def forbidden() -> Any:
        raise PermissionError("no netlink here")

    monkeypatch.setattr(psutil, "net_if_addrs", forbidden)
    assert own_subnets() == ()
