"""``swarm generate``: the command in an error's hint can be copied."""

from __future__ import annotations

import argparse
import shlex
from typing import Any

import pytest

from swarm.cli.commands.generate import copyable
from swarm.core.errors import NoRouteError
from swarm.scheduling.cluster import Cluster
from swarm.scheduling.routing import RouteNeeds, find_route

ADDRESS = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWAnna"


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({"initial_peers": [ADDRESS]}, ["--model", "my model", "--initial-peers", ADDRESS]),
        ({"lan": True}, ["--model", "my model", "--lan"]),
        ({"lan": True, "lan_name": "it's"}, ["--model", "my model", "--lan", "--lan-name", "it's"]),
    ],
)
def test_layers_that_nobody_holds_come_with_a_command_to_copy(changes: dict[str, Any], where: list[str]) -> None:
    given: dict[str, Any] = {"model": "my model", "initial_peers": [], "lan": False, "lan_name": ""}
    with pytest.raises(NoRouteError) as caught, copyable(argparse.Namespace(**(given | changes))):
        find_route(Cluster(layers=7, nodes=()), needs=RouteNeeds())
    command = caught.value.hint.removeprefix("start one: ")
    assert shlex.split(command) == ["python", "-m", "swarm.server", *where, "--blocks", "0:7"]
    assert command in str(caught.value)
