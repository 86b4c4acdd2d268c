"""Where commands that serve HTTP listen, and under which names."""

from __future__ import annotations

import argparse

import pytest

from swarm.cli.options.http_options import add_http, base_url, check_http, is_loopback, known_hosts
from swarm.core.errors import ConfigError


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_http(parser.add_argument_group("http"), port=8080, page="page", share=256)
    return parser.parse_args(arguments)


def test_the_defaults_are_for_this_machine_alone() -> None:
    options = parsed()
    check_http(options)
    assert (options.host, options.port, options.cors_origin, options.no_page) == ("127.0.0.1", 8080, [], False)
    assert known_hosts(options) == ("127.0.0.1",)


def test_the_name_it_listens_on_is_known_and_so_are_those_that_are_allowed() -> None:
    options = parsed("--host", "box.local", "--allow-host", "swarm.example.org", "swarm")
    check_http(options)
    assert known_hosts(options) == ("box.local", "swarm.example.org", "swarm")


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("--port", "65536"),
        ("--port", "-1"),
        ("--connections-per-address", "0"),
        ("--cors-origin", "example.org"),
        ("--cors-origin", "https://example.org/"),
        ("--allow-host", "https://example.org"),
        ("--allow-host", "example.org:8080"),
        ("--allow-host", "*.example.org"),
        ("--allow-host", ""),
    ],
)
def test_what_cannot_be_is_named(flag: str, value: str) -> None:
    with pytest.raises(ConfigError, match=flag) as caught:
        check_http(parsed(f"{flag}={value}"))
    assert value in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000"),
        ("0.0.0.0", "http://127.0.0.1:8000"),
        ("::", "http://[::1]:8000"),
        ("2001:db8::1", "http://[2001:db8::1]:8000"),
        ("gateway.example", "http://gateway.example:8000"),
    ],
)
def test_the_url_to_try(host: str, url: str) -> None:
    assert base_url(host, 8000) == url


@pytest.mark.parametrize(
    ("host", "alone"),
    [("127.0.0.1", True), ("127.1.2.3", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)],
)
def test_who_reaches_it(host: str, alone: bool) -> None:
    assert is_loopback(host) is alone
