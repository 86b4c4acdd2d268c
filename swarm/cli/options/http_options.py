"""Options of commands that serve HTTP: where they listen, and to whom they answer."""

from __future__ import annotations

import argparse
import ipaddress
import re

from swarm.core.errors import ConfigError


def add_http(group: argparse._ArgumentGroup, *, port: int, page: str, share: int) -> None:
    """``--host``, ``--port``, ``--allow-host``, ``--cors-origin``, ``--connections-per-address`` and ``--no-page``.

    ``page`` says what is at ``/``; ``share`` is how many connections one address has by default.
    """
    group.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1, this machine)")
    group.add_argument("--port", type=int, default=port, help=f"default: {port}; 0: any that is free")
    group.add_argument("--allow-host", nargs="+", default=[], metavar="NAME",
                       help="names under which browsers may ask, beside IP addresses, localhost and --host, like "
                       "swarm.example.org; * for any")  # fmt: skip
    group.add_argument("--cors-origin", nargs="+", default=[], metavar="ORIGIN",
                       help="web pages of these origins may ask as well, like https://example.org")  # fmt: skip
    group.add_argument("--connections-per-address", type=int, default=share, metavar="N",
                       help=f"connections at once from one address, loopback aside (default: {share}; of "
                       "1024 in all): more where a proxy on another machine brings everybody")  # fmt: skip
    group.add_argument("--no-page", action="store_true", help=f"no {page} at /")


def check_http(options: argparse.Namespace) -> None:
    """Raise ``ConfigError`` for what cannot be of these options."""
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port} is outside 0 to 65535", hint="0 takes any free one")
    if options.connections_per_address < 1:
        told = f"--connections-per-address is {options.connections_per_address}"
        raise ConfigError(told, hint="give at least 1")
    for origin in options.cors_origin:
        if origin != "*" and ("://" not in origin or origin.endswith("/") or not origin.isprintable()):
            raise ConfigError(f"--cors-origin {origin!r} is no origin", hint="like https://example.org, without a path")
    for name in options.allow_host:
        if name != "*" and not re.fullmatch(r"[^\s:/@\[\]*]+", name):
            hint = "like swarm.example.org, without scheme, port or path"
            raise ConfigError(f"--allow-host {name!r} is no name of a host", hint=hint)


def known_hosts(options: argparse.Namespace) -> tuple[str, ...]:
    """The names under which requests are answered, for ``swarm.runtime.http.guarded``."""
    return (options.host, *options.allow_host)


def base_url(host: str, port: int) -> str:
    """The URL under which this machine reaches a server on ``host``."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]", "": "127.0.0.1"}.get(host)
    return f"http://{shown or (f'[{host}]' if ':' in host else host)}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server on ``host``."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
