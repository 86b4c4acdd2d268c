"""The command's options."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from swarm.cli.commands import gateway as command
from swarm.cli.commands.gateway import gateway_options
from swarm.core.errors import ConfigError

PEER = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["--initial-peers", PEER, *arguments])


def test_the_defaults_are_for_this_machine_alone() -> None:
    options = parsed()
    assert (options.host, options.port) == ("127.0.0.1", 8000)
    checked = gateway_options(options, "")
    assert (checked.keys, checked.hosts, checked.origins, checked.page) == ((), ("127.0.0.1",), (), True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--concurrent", "0"),
        ("--queue", "-1"),
        ("--queue-timeout", "nan"),
        ("--drain-timeout", "-1"),
        ("--max-tokens", "0"),
        ("--max-body-kb", "0"),
        ("--port", "65536"),
        ("--allow-host", "http://gateway.example"),
        ("--cors-origin", "example.org"),
        ("--cors-origin", "https://example.org/"),
        ("--api-keys", "/no/such/file"),
    ],
)
def test_what_cannot_be_is_named(arguments: tuple[str, str]) -> None:
    with pytest.raises(ConfigError) as caught:
        gateway_options(parsed(*arguments), "")
    assert arguments[0] in str(caught.value) or arguments[1] in str(caught.value)
    assert caught.value.hint


def test_keys_of_the_file_and_of_the_environment(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# ours\nfirst-key\n")
    options = parsed("--api-keys", str(path))
    assert gateway_options(options, "second-key,third-key").keys == ("first-key", "second-key", "third-key")
    assert gateway_options(parsed(), "second-key").keys == ("second-key",)


def test_a_file_without_keys_lets_nobody_think_that_it_protects(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# none yet\n")
    with pytest.raises(ConfigError, match="no API key"):
        gateway_options(parsed("--api-keys", str(path)), "")
