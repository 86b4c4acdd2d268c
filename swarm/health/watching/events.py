"""What happened between two states of a swarm. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from msgspec.structs import replace

from swarm.core.text import clip
from swarm.health.state import EventState, ModelState, ServerState, SwarmState

MANY = 5
"""More events of one kind at one moment are told as one."""
NAMED = 3
SHOWN_NAME_CHARS = 40
MOST_HEALS = 1000
"""So many are told at most: it is the server's own word."""
PRESENT = ("serving", "draining")
"""Conditions of a server that answers; one that is joining or silent has yet to come, or to come back."""


def happened(before: SwarmState, after: SwarmState) -> list[EventState]:
    """Events that lead from one state to the other, without numbers; none from a state to itself.

    A model that was not there before tells nothing of its servers: somebody began to look, they did not all come at
    once. Of a server that never answered only its end is told. O(servers).
    """
    known = {model.model: model for model in before.models}
    events: list[EventState] = []
    for model in after.models:
        if model.model in known:
            events += _of_model(known[model.model], model, after.at)
    return events


def condensed(events: Sequence[EventState]) -> list[EventState]:
    """The events of one moment, those of a kind and model with over ``MANY`` as one; ejections are never joined."""
    kinds: dict[tuple[str, str], list[EventState]] = defaultdict(list)
    for event in events:
        kinds[event.kind, event.model].append(event)
    told: list[EventState] = []
    for (kind, _), theirs in kinds.items():
        if len(theirs) <= MANY or kind == "ejected":
            told += theirs
            continue
        first = "; ".join(event.text.rstrip(".") for event in theirs[:NAMED])
        told.append(replace(theirs[0], peer="", text=f"{first}; and {len(theirs) - NAMED} more like that."))
    return told


def called(server: ServerState) -> str:
    """A server as people call it: its public name, if it has one, and the end of its peer id."""
    name = clip(server.name, SHOWN_NAME_CHARS)
    return f"{name} (…{server.short})" if name else f"…{server.short}"


def _of_model(before: ModelState, after: ModelState, at: float) -> list[EventState]:
    known = {server.peer: server for server in before.servers}
    present = {server.peer for server in after.servers}
    found: list[tuple[str, ServerState | None, str, str]] = []
    for server in after.servers:
        found += _of_server(known.get(server.peer), server)
    for peer, server in known.items():
        if peer not in present:
            found.append(("left", server, _left(server), ""))
    if before.usable and not after.usable:
        found.append(("unusable", None, after.sentence, ""))
    if after.usable and not before.usable:
        found.append(("usable", None, after.sentence, ""))
    return [
        EventState(
            number=0,
            at=at,
            kind=kind,
            model=after.model,
            peer="" if subject is None else subject.peer,
            text=text,
            proof=proof,
        )
        for kind, subject, text, proof in found
    ]


_Found = tuple[str, ServerState | None, str, str]
"""Kind, whom it is about, text, proof."""


def _of_server(before: ServerState | None, after: ServerState) -> list[_Found]:
    name = called(after)
    if before is None:
        return [("joined", after, f"{name} joined: {_layers(after)}.", "")] if _serves(after) else []
    return [
        *((kind, after, text, "") for kind, text in _came_and_went(before, after, name)),
        *((kind, after, text, proof) for kind, text, proof in _judged(before, after, name)),
    ]


def _serves(server: ServerState) -> bool:
    """Not only by its own word: it answers."""
    return server.condition == "serving" and bool(server.reached)


def _came_and_went(before: ServerState, after: ServerState, name: str) -> list[tuple[str, str]]:
    told = []
    if _serves(after) and (before.condition == "joining" or before.reached is None):
        told.append(("joined", f"{name} joined: {_layers(after)}."))
    elif after.condition == "silent" and before.condition in PRESENT and before.reached:
        told.append(("silent", f"{name} does not answer any more: it had {_layers(after)}."))
    elif before.condition == "silent" and after.condition in PRESENT and after.reached:
        told.append(("back", f"{name} is back with {_layers(after)}."))
    elsewhere = (before.start, before.end) != (after.start, after.end) and before.condition != "joining"
    if elsewhere and (before.reached or after.reached):
        told.append(("moved", f"{name} moved from {_layers(before)} to {_layers(after)}."))
    healed = _heals(before, after)
    if healed:
        times = "a running answer" if healed == 1 else f"{min(healed, MOST_HEALS)} running answers"
        told.append(("healed", f"{name} took over for a lost server in {times}."))
    return told


def _judged(before: ServerState, after: ServerState, name: str) -> list[tuple[str, str, str]]:
    old, new = before.standing, after.standing
    proof = next((digest for digest in new.proofs if digest not in old.proofs), "")
    told = []
    if new.strikes > old.strikes:
        told.append(("struck", f"{name} was caught: strike {new.strikes}.", proof))
    if new.accused and not (old.accused or new.ejected):
        told.append(("accused", f"Others say to have proof against {name}; it was not checked here.", ""))
    if new.ejected and not old.ejected:
        why = "what was proven against it was checked here" if proof else "this machine found it at fault itself"
        told.append(("ejected", f"{name} was ejected: {why}.", proof))
    if old.ejected and not new.ejected:
        told.append(("back", f"{name} is let back in: what was held against it was not proven, or was forgiven.", ""))
    return told


def _heals(before: ServerState, after: ServerState) -> int:
    """Spans it took over since, as far as it is the same process that counts."""
    if before.stats is None or after.stats is None or after.stats.uptime_s < before.stats.uptime_s:
        return 0
    return max(after.stats.heals_total - before.stats.heals_total, 0)


def _left(server: ServerState) -> str:
    if server.condition == "silent":
        return f"{called(server)} did not come back."
    return f"{called(server)} left: it had {_layers(server)}."


def _layers(server: ServerState) -> str:
    return f"layer {server.start}" if server.end - server.start == 1 else f"layers {server.start} to {server.end - 1}"
