"""Real servers that are told how much to hold, not what: they cover the model, and a spare replaces the dead."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from swarm import SwarmError, SwarmModel
from swarm.core.spans import Span, missing_layers
from swarm.runtime.remembered import RememberedSpans

LAYERS = 30
TEN = ("--num-blocks", "10", "--dtype", "float32", "--claim-wait", "1", "--rebalance-every", "2", "--move-gain", "9")
"""Nobody moves for a better balance here, since what these processes measure of themselves depends on the machine."""
PROMPT = "The three primary colours are"
REPLACED_S = 90.0
"""From a kill until the answer comes again: metrics run out in 10 s, two looks, ten layers to load, slow cores."""


def blocks(server: Any) -> Span:
    """What it took, once it has chosen."""
    return Span(*server.event("blocks")["span"])


def said(server: Any, name: str) -> list[dict[str, Any]]:
    """Its events of that name so far."""
    while not server.lines.empty():
        line = server.lines.get()
        if line is not None:
            server.events.append(json.loads(line))
    return [event for event in server.events if event["event"] == name]


def held(model: SwarmModel) -> dict[str, Span]:
    """What a reader of the directory sees each server hold."""
    parts = model._inner.parts
    found = model._loop.run(parts.directory.servers(parts.files.model_id))
    return {listing.peer: listing.announcement.span for listing in found}


def answer(model: SwarmModel) -> tuple[int, ...]:
    return model.generate(PROMPT, max_new_tokens=8, ignore_eos=True).token_ids


def test_servers_choose_their_blocks_and_a_spare_replaces_the_dead(
    launcher: Any, connect: Callable[..., SwarmModel], eventually: Callable[[Callable[[], bool], float], None]
) -> None:
    first = launcher.server("auto", *TEN).ready()
    servers = [first]
    for _ in range(3):
        servers.append(launcher.server("auto", *TEN, join=first.address))
        blocks(servers[-1])  # each chooses before the next one comes
    chosen = [server.event("blocks") for server in servers]
    spans = [blocks(server) for server in servers]
    assert missing_layers(spans[:3], LAYERS) == [], "three of ten layers each cover the thirty"
    assert spans[3] in spans[:3], "the fourth is a spare"
    assert all(event["why"].startswith("nobody held") for event in chosen[:3])
    assert [event["tokens_per_s_after"] > 0 for event in chosen] == [False, False, True, True]

    for server in servers:
        server.ready()
    model = connect(first)
    tokens = answer(model)

    before = held(model)
    dead = next(server for server in servers[1:] if list(before.values()).count(before[server.peer]) == 1)
    dead.process.kill()
    left = [server for server in servers if server is not dead]

    def answers() -> bool:
        try:
            return answer(model) == tokens
        except SwarmError:
            return False

    eventually(answers, REPLACED_S)
    after = held(model)
    [mover] = [server for server in left if after[server.peer] != before[server.peer]]
    assert after[mover.peer] == before[dead.peer]
    assert list(before.values()).count(before[mover.peer]) == 2, "it was a spare"
    assert said(mover, "moving")[-1]["why"].startswith("nobody held")

    # It remembers where it is now, not where it began.
    key = launcher.folder / f"{servers.index(mover)}.key"
    model_id = str(model._inner.parts.files.model_id)
    assert RememberedSpans.of(key).get(model_id) == before[dead.peer]
