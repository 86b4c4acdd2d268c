"""The cluster file: a swarm described in JSON, for what-if questions without any network (docs/cluster-format.md)."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Annotated, Any

import msgspec

from swarm.core.announcement import Coordinate, Reach, State
from swarm.core.errors import ConfigError
from swarm.core.limits import MAX_CONTEXT_TOKENS, MAX_LAYERS
from swarm.core.metrics import BATCHES, Count
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.core.text import clip
from swarm.scheduling.cluster import Cluster, Defaults, Node

MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_NODES = 20_000
MAX_ID_CHARS = 200
MAX_PROBLEM_CHARS = 400
MAX_FIGURE = 1e12
"""Upper bound of every time, rate and power; its inverse is the least power and the least uplink."""
UNKNOWN_POWER = 1.0
"""Layers per second of a node of which neither power nor tau_s is given."""
TOP = "cluster file"
ENUMS: dict[str, type[State] | type[Reach]] = {"state": State, "reach": Reach}
PLAIN_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "true or false",
    "object": "an object",
    "array": "a list",
}

Layer = Annotated[int, msgspec.Meta(ge=0, le=MAX_LAYERS)]
Tokens = Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS * MAX_LAYERS)]
Text = Annotated[str, msgspec.Meta(max_length=MAX_ID_CHARS)]
Figure = Annotated[float, msgspec.Meta(ge=0, le=MAX_FIGURE)]
Place = Annotated[float, msgspec.Meta(ge=-MAX_FIGURE, le=MAX_FIGURE)]
Rate = Annotated[float, msgspec.Meta(ge=1 / MAX_FIGURE, le=MAX_FIGURE)]


class _Entry(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One element of ``nodes``: the fields of ``Node`` that a person may write; None is as good as left out."""

    id: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_ID_CHARS)]
    capacity_layers: Layer | None = None
    power: Rate | None = None
    region: Text = ""
    uplink_mbps: Rate | None = None
    span: tuple[Layer, Layer] | None = None
    tau_s: Figure | None = None
    fixed_s: Figure = 0.0
    kv_free_tokens: Tokens | None = None
    state: State = State.ONLINE
    numerics: Text | None = None
    head: bool = True
    embeddings: bool = True
    sessions: Count = 0
    queued_steps: Count = 0
    step_s: Annotated[tuple[Figure, ...], msgspec.Meta(max_length=len(BATCHES))] = ()
    reach: Reach = Reach.DIRECT
    live: bool = True
    coordinate: tuple[Place, Place, Figure, Figure] | None = None


class _DefaultsEntry(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    rtt_s: Figure | None = None
    client_rtt_s: Figure | None = None
    uplink_mbps: Rate | None = None
    region_rtt_s: dict[str, Any] = {}


class _File(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    layers: Annotated[int, msgspec.Meta(ge=1, le=MAX_LAYERS)]
    activation_bytes: Annotated[int, msgspec.Meta(ge=1, le=2**40)] = 16384
    nodes: Annotated[list[_Entry], msgspec.Meta(max_length=MAX_NODES)]
    rtt_s: dict[str, Any] = {}
    client_rtt_s: dict[str, Any] = {}
    client_uplink_mbps: Rate | None = None
    defaults: _DefaultsEntry = msgspec.field(default_factory=_DefaultsEntry)


def read_cluster(data: bytes) -> Cluster:
    """The cluster that the bytes of a cluster file describe. O(bytes).

    Left out or null: ``tau_s`` is 1/power, ``power`` 1/tau_s (both: one layer a second), ``capacity_layers`` the length
    of the span, an uplink or a round trip what ``defaults`` says, and what that leaves out is ``Defaults``'s.
    Raises ``ConfigError`` that begins with the field, like ``nodes[3].tau_s``, and says what is wanted there.
    """
    try:
        file = msgspec.convert(_json(data), _File)
    except msgspec.ValidationError as error:
        raise _explained(str(error)) from None
    nodes = tuple(_node(entry, f"nodes[{index}]", file.layers) for index, entry in enumerate(file.nodes))
    names: dict[str, int] = {}
    for index, node in enumerate(nodes):
        if names.setdefault(node.id, index) != index:
            raise _wrong(f"nodes[{index}].id", f"{node.id!r} is the id of nodes[{names[node.id]}] too")
    return Cluster(
        layers=file.layers,
        nodes=nodes,
        activation_bytes=file.activation_bytes,
        rtt_s=_matrix(file.rtt_s, "rtt_s", names),
        client_rtt_s=_row(file.client_rtt_s, "client_rtt_s", names),
        client_uplink_mbps=file.client_uplink_mbps,
        defaults=_defaults(file.defaults),
    )


def write_cluster(cluster: Cluster) -> bytes:
    """``cluster`` as a file, one node a line; ``read_cluster`` gives it back.

    Left out are intents and round trips to others than its nodes; rates beyond the file's bounds become the bound.
    """
    known = {node.id for node in cluster.nodes}
    regions: dict[str, dict[str, float]] = {}
    for (a, b), seconds in cluster.defaults.region_rtt_s.items():
        regions.setdefault(a, {})[b] = seconds
    defaults = _DefaultsEntry(
        rtt_s=cluster.defaults.rtt_s,
        client_rtt_s=cluster.defaults.client_rtt_s,
        uplink_mbps=cluster.defaults.uplink_mbps,
        region_rtt_s=regions,
    )
    nodes = ",\n  ".join(msgspec.json.encode(_entry(node)).decode() for node in cluster.nodes)
    parts = {
        "layers": cluster.layers,
        "activation_bytes": cluster.activation_bytes,
        "rtt_s": {name: _kept(row, known) for name, row in cluster.rtt_s.items() if name in known},
        "client_rtt_s": _kept(cluster.client_rtt_s, known),
        "client_uplink_mbps": cluster.client_uplink_mbps,
        "defaults": defaults,
    }
    lines = [f'"{name}": {msgspec.json.encode(value).decode()}' for name, value in parts.items()]
    lines.insert(2, f'"nodes": [\n  {nodes}\n]')
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _json(data: bytes) -> object:
    if len(data) > MAX_FILE_BYTES:
        raise _wrong(TOP, f"{len(data)} bytes, over {MAX_FILE_BYTES}")
    try:
        return json.loads(data.decode("utf-8-sig"), object_pairs_hook=_object)
    except (ValueError, RecursionError) as error:
        raise _wrong(TOP, f"is no JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise _wrong(twice[:MAX_ID_CHARS], "is written twice in one object")
    return found


def _explained(problem: str) -> ConfigError:
    """msgspec's complaint with the field first: "Expected `int`, got `str` - at `$.nodes[3].span[0]`"."""
    what, _, place = problem.partition(" - at ")
    path = place.strip("`").removeprefix("$").removeprefix(".")
    missing = re.fullmatch(r"Object (missing required|contains unknown) field `(.*)`", what, re.DOTALL)
    if missing:
        path = f"{path}.{missing[2]}" if path else missing[2]
        what = "is required" if missing[1] == "missing required" else "is no field of a cluster file"
    for name, plain in PLAIN_WORDS.items():
        what = re.sub(rf"`{name}( \| null)?`", plain, what)
    kind = ENUMS.get(path.rpartition(".")[2])
    if kind is not None and what.startswith("Invalid"):
        what = f"expected {' or '.join(choice.value for choice in kind)}, got {what.rpartition(' value ')[2]}"
    return _wrong(path or TOP, what[:1].lower() + what[1:].replace("`", ""))


def _wrong(path: str, what: str) -> ConfigError:
    return ConfigError(clip(f"{path}: {what}", MAX_PROBLEM_CHARS), hint="docs/cluster-format.md lists every field")


def _text(value: str, path: str) -> str:
    if not value.isprintable():
        raise _wrong(path, f"{value!r} holds unprintable characters")
    return value


def _node(entry: _Entry, path: str, layers: int) -> Node:
    _text(entry.id, f"{path}.id")
    _text(entry.region, f"{path}.region")
    if entry.step_s and len(entry.step_s) != len(BATCHES):
        raise _wrong(f"{path}.step_s", f"expected {len(BATCHES)} times, for {BATCHES} sessions")
    span = _span(entry.span, f"{path}.span", layers)
    power, tau_s = _speed(entry)
    capacity = entry.capacity_layers
    return Node(
        id=entry.id,
        span=span,
        capacity_layers=(0 if span is None else len(span)) if capacity is None else capacity,
        power=power,
        region=entry.region,
        tau_s=tau_s,
        fixed_s=entry.fixed_s,
        uplink_mbps=entry.uplink_mbps,
        kv_free_tokens=entry.kv_free_tokens,
        state=entry.state,
        reach=entry.reach,
        numerics=Numerics("float32") if entry.numerics is None else _numerics(entry.numerics, f"{path}.numerics"),
        head=entry.head,
        embeddings=entry.embeddings,
        live=entry.live,
        sessions=entry.sessions,
        queued_steps=entry.queued_steps,
        step_s=entry.step_s,
        coordinate=None if entry.coordinate is None else Coordinate(*entry.coordinate),
    )


def _speed(entry: _Entry) -> tuple[float, float]:
    """Power and tau, each from the other where only one is given."""
    power, tau_s = entry.power, entry.tau_s
    if power is None:
        power = 1.0 / max(tau_s, 1.0 / MAX_FIGURE) if tau_s is not None else UNKNOWN_POWER
    return power, 1.0 / power if tau_s is None else tau_s


def _span(given: tuple[int, int] | None, path: str, layers: int) -> Span | None:
    if given is None:
        return None
    start, end = given
    if not start < end <= layers:
        raise _wrong(path, f"expected [a, b] with 0 <= a < b <= {layers}, the model's layers; got [{start}, {end}]")
    return Span(start, end)


def _numerics(text: str, path: str) -> Numerics:
    try:
        return Numerics.parse(text)
    except ConfigError as error:
        raise _wrong(path, error.message) from None


def _row(given: object, path: str, known: Collection[str] | None) -> dict[str, float]:
    """Seconds by name; ``known`` None takes any printable name."""
    if not isinstance(given, dict):
        raise _wrong(path, "expected an object of seconds by id")
    row: dict[str, float] = {}
    for name, seconds in given.items():
        place = f"{path}.{name}"
        if known is None:
            _text(name, place)
        elif name not in known:
            raise _wrong(place, "no node has this id")
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= MAX_FIGURE:
            raise _wrong(place, f"expected seconds, from 0 to {MAX_FIGURE:g}, got {str(seconds)[:40]!r}")
        row[name] = float(seconds)
    return row


def _matrix(given: Mapping[str, object], path: str, known: Collection[str] | None) -> dict[str, dict[str, float]]:
    for name in given:
        if known is None:
            _text(name, f"{path}.{name}")
        elif name not in known:
            raise _wrong(f"{path}.{name}", "no node has this id")
    return {name: _row(row, f"{path}.{name}", known) for name, row in given.items()}


def _defaults(entry: _DefaultsEntry) -> Defaults:
    plain = Defaults()
    rtt_s = plain.rtt_s if entry.rtt_s is None else entry.rtt_s
    client_rtt_s = entry.client_rtt_s
    if client_rtt_s is None:
        client_rtt_s = plain.client_rtt_s if entry.rtt_s is None else entry.rtt_s
    regions = _matrix(entry.region_rtt_s, "defaults.region_rtt_s", None)
    return Defaults(
        rtt_s=rtt_s,
        client_rtt_s=client_rtt_s,
        uplink_mbps=plain.uplink_mbps if entry.uplink_mbps is None else entry.uplink_mbps,
        region_rtt_s={(a, b): seconds for a, row in regions.items() for b, seconds in row.items()},
    )


def _kept(row: Mapping[str, float], known: Collection[str]) -> dict[str, float]:
    return {name: seconds for name, seconds in row.items() if name in known}


def _bounded(rate: float) -> float:
    return min(max(rate, 1 / MAX_FIGURE), MAX_FIGURE)


def _entry(node: Node) -> _Entry:
    return _Entry(
        id=node.id,
        capacity_layers=node.capacity_layers,
        power=_bounded(node.power),
        region=node.region,
        uplink_mbps=None if node.uplink_mbps is None else _bounded(node.uplink_mbps),
        span=None if node.span is None else (node.span.start, node.span.end),
        tau_s=min(node.tau_s, MAX_FIGURE),
        fixed_s=node.fixed_s,
        kv_free_tokens=node.kv_free_tokens,
        state=node.state,
        numerics=str(node.numerics),
        head=node.head,
        embeddings=node.embeddings,
        sessions=node.sessions,
        queued_steps=node.queued_steps,
        step_s=node.step_s,
        reach=node.reach,
        live=node.live,
        coordinate=None if node.coordinate is None else msgspec.structs.astuple(node.coordinate),
    )
