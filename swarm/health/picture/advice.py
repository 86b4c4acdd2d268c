"""Which layers need help most, and the command that a volunteer copies. Pure.

Names and addresses are strangers' text: they go into a shell, so they are quoted, and what cannot be an address or a
model's name is left out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from swarm.core.errors import ConfigError
from swarm.core.ids import ModelId
from swarm.core.spans import Span
from swarm.health.state import AdviceState
from swarm.models.demo import SMOLLM2
from swarm.models.folder import FROM_FOLDER
from swarm.models.hub import is_repo_id
from swarm.models.resolve import DEMO
from swarm.scheduling.coverage import runs
from swarm.scheduling.reasons import layers_text
from swarm.transport.addresses import is_loopback, is_public, split_peer
from swarm.transport.multiaddr import to_bytes

MAX_ADVICE = 5
MOST_SHARE = 0.5
"""Of a model's layers in ``--blocks``: who would have to hold more had better let the server choose what fits."""
PLACEHOLDER = "NAME"
MAX_CONTACTS = 2
"""Addresses in one command: a second in case the first is gone by then."""
_PLAIN = re.compile(r"[A-Za-z0-9._:/-]+")
"""All that an address needs, and nothing that any shell reads as more than a letter: not all shells quote alike."""


def advice(replicas: Sequence[int], slowest: Sequence[Span], model: str, contacts: Sequence[str]) -> list[AdviceState]:
    """What to host next, the most urgent first: layers nobody serves, those of one server alone, then ``slowest``.

    ``replicas`` holds the number of servers for each layer. Spans are within the model; nothing of a model without
    layers. O(layers).
    """
    layers = len(replicas)
    wanted: list[tuple[Span, str]] = []
    stretches = runs(replicas) if layers else []
    for span, count in sorted(stretches, key=lambda one: (one[1], -len(one[0]), one[0])):
        if count == 0:
            wanted.append((span, _nobody(span, layers)))
        elif count == 1:
            wanted.append((span, _alone(span)))
    told = [span for span, _ in wanted]
    for span in slowest:
        if 0 <= span.start < span.end <= layers and not any(_overlap(span, other) for other in told):
            wanted.append((span, f"{_subject(span)} slowest: one more server there makes answers faster."))
    return [
        AdviceState(start=span.start, end=span.end, reason=reason, command=command(model, contacts, span, layers))
        for span, reason in wanted[:MAX_ADVICE]
    ]


def command(model: str, contacts: Sequence[str], span: Span, layers: int) -> str:
    """How to start a server of ``span``; without ``--blocks`` where that is a large part of the model."""
    words = ["python", "-m", "swarm.server", "--model", model_name(model), "--initial-peers"]
    words += contacts[:MAX_CONTACTS] or ["ADDRESS"]
    if len(span) <= max(1, int(layers * MOST_SHARE)):
        words += ["--blocks", str(span)]
    return shlex.join(words)


def model_name(model: str) -> str:
    """What to give as ``--model`` for a model id: the demo by its short name, a hub's by name and revision, a folder
    as one; ``NAME`` for what is nothing of these."""
    try:
        parsed = ModelId.parse(model)
    except ConfigError:
        return PLACEHOLDER
    if (parsed.name, parsed.revision) == (SMOLLM2.name, SMOLLM2.revision):
        return DEMO
    if parsed.name.startswith("-") or not (str(parsed).isascii() and is_repo_id(parsed.name)):
        return PLACEHOLDER
    if parsed.revision == FROM_FOLDER:
        return f"path/to/{parsed.name}"
    return f"{parsed.name}@{parsed.revision}" if is_repo_id(parsed.revision) else PLACEHOLDER


def contacts(initial_peers: Sequence[str], servers: Sequence[Sequence[str]]) -> list[str]:
    """Addresses that a volunteer may join by, the best first: public ones before private ones, own before others'.

    ``servers`` are those of live servers, each server's with its peer id at the end, the steadiest server first; one
    of each counts. Addresses of this machine alone come last.
    """
    ranked = [(_rank(address), 0, address) for address in initial_peers if _whole(address)]
    for theirs in servers:
        whole = sorted((_rank(address), address) for address in theirs if _whole(address))
        ranked += [(rank, 1, address) for rank, address in whole[:1]]
    ranked.sort(key=lambda one: one[:2])
    chosen: dict[str, str] = {}
    for _, _, address in ranked:
        chosen.setdefault(str(split_peer(address)[1]), address)
    return list(chosen.values())[:MAX_CONTACTS]


def _rank(address: str) -> int:
    return 0 if is_public(address) else 2 if is_loopback(address) else 1


def _whole(address: str) -> bool:
    if not _PLAIN.fullmatch(address):
        return False
    try:
        to_bytes(address)
    except ConfigError:
        return False
    return split_peer(address)[1] is not None


def _overlap(one: Span, other: Span) -> bool:
    return one.start < other.end and other.start < one.end


def _subject(span: Span) -> str:
    text = layers_text([span])
    return text[0].upper() + text[1:] + (" is" if len(span) == 1 else " are")


def _nobody(span: Span, layers: int) -> str:
    if len(span) == layers:
        return "Nobody serves this model: every layer is missing."
    return f"Nobody serves {layers_text([span])}: without {'it' if len(span) == 1 else 'them'} there are no answers."


def _alone(span: Span) -> str:
    return f"Nobody stands by for {layers_text([span])}: when one server goes, answers stop."
