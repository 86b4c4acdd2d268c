"""The health command: its options, what it says, and one look."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from health_states import HandWatch, crowd, model, server, state, stats
from msgspec.structs import replace

from swarm.cli.commands import health as command
from swarm.cli.output.console import HumanConsole, JsonConsole
from swarm.core.errors import ConfigError, NetworkError

PEER = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"
UNREAD = state(observer=replace(state().observer, directory_at=None))


def parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["--initial-peers", PEER, *arguments])


def test_the_defaults_are_for_this_machine_alone() -> None:
    options = parsed()
    assert (options.host, options.port) == ("127.0.0.1", 8080)
    checked = command.health_options(options)
    assert (checked.hosts, checked.origins, checked.page) == (("127.0.0.1",), (), True)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--streams", "0"),
        ("--streams-per-address", "-1"),
        ("--port", "65536"),
        ("--allow-host", "https://example.org"),
        ("--cors-origin", "example.org"),
    ],
)
def test_what_cannot_be_is_named(arguments: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match=arguments[0]) as caught:
        command.health_options(parsed(*arguments))
    assert caught.value.hint


def test_where_history_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert command.history_file(parsed()) == tmp_path / "swarm" / "health-history.sqlite"
    assert command.history_file(parsed("--history", "x.sqlite")) == Path("x.sqlite")
    assert command.history_file(parsed("--no-history")) == ":memory:"
    assert command.history_file(parsed("--once")) == ":memory:", "one look is no history"
    with pytest.raises(ConfigError, match="--no-history"):
        command.history_file(parsed("--no-history", "--history", "x.sqlite"))


def test_the_help_says_who_may_look() -> None:
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter)
    command.add_arguments(parser)
    said = parser.format_help()
    for part in ("this machine alone", "--host 0.0.0.0 everybody", "no secrets", "/metrics", "docs/health.md"):
        assert part in said


async def spoken(watch: HandWatch, *shown: Any) -> list[str]:
    """The lines said while ``watch`` shows these states, one after the other."""
    out = io.StringIO()
    telling = asyncio.create_task(command._tell(watch, HumanConsole(out)))  # type: ignore[arg-type]
    for one in shown:
        await asyncio.sleep(0)
        watch.show(one)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)
    return out.getvalue().splitlines()


async def test_an_empty_swarm_is_told_as_that() -> None:
    assert await spoken(HandWatch(UNREAD)) == []
    assert await spoken(HandWatch(UNREAD), state(2)) == [
        "No server is in the swarm yet; the page shows them as they come."
    ]


async def test_what_there_is_once_and_what_goes_wrong() -> None:
    lost = replace(crowd(3, 4), observer=replace(state().observer, problem="nobody answers"))
    said = await spoken(HandWatch(UNREAD), crowd(3, 2), crowd(4, 3), lost, replace(lost, revision=5), crowd(3, 6))
    assert said == [
        "The swarm has 1 model and 3 servers.",
        "What is shown may be old: nobody answers",
        "The directory answers again.",
    ]


class Node:
    """A node whose daemon dies when told to."""

    def __init__(self) -> None:
        self.died: asyncio.Future[NetworkError] = asyncio.get_running_loop().create_future()
        self.transport = SimpleNamespace(wait_broken=lambda: self._wait())

    async def _wait(self) -> NetworkError:
        return await asyncio.shield(self.died)


async def once(watch: HandWatch, node: Node | None = None, *, stop: bool = False) -> int:
    signals: Any = SimpleNamespace(stop=asyncio.Event(), hurry=asyncio.Event())
    looking = asyncio.create_task(command._once(watch, node or Node(), signals))  # type: ignore[arg-type]
    for one in (state(2, [model([server(1)])]), state(3, [model([server(1, stats=stats())])])):
        await asyncio.sleep(0.01)
        if stop:
            signals.stop.set()
        elif node is None:
            watch.show(one)
    return await looking


async def test_one_look_waits_until_every_server_was_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert await once(HandWatch(UNREAD)) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["revision"] == 3
    assert shown["models"][0]["servers"][0]["stats"]["sessions_total"] == 7


async def test_one_look_ends_when_told_to(capsys: pytest.CaptureFixture[str]) -> None:
    assert await once(HandWatch(UNREAD), stop=True) == 130
    assert capsys.readouterr().out == ""


async def test_one_look_at_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "ONCE_S", 0.01)
    node = Node()
    with pytest.raises(NetworkError, match="does not answer"):
        await once(HandWatch(UNREAD), node)
    node.died.set_result(NetworkError("the daemon died"))
    with pytest.raises(NetworkError, match="the daemon died"):
        await once(HandWatch(UNREAD), node)


def test_where_it_listens_for_people_and_programs() -> None:
    out, lines = io.StringIO(), io.StringIO()
    command._announce(parsed("--host", "0.0.0.0"), 8080, HumanConsole(out))
    assert "http://127.0.0.1:8080/metrics" in out.getvalue()
    assert "Everybody who reaches this port may look" in out.getvalue()
    command._announce(parsed(), 8080, JsonConsole(lines))
    [event] = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert (event["event"], event["url"], event["port"]) == ("listening", "http://127.0.0.1:8080", 8080)
