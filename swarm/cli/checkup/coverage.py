"""Whether the swarm serves the model, and which layers are missing."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.cli.checkup.findings import Finding, ok, warning
from swarm.client.finding.snapshot import Snapshot, layer_count_of
from swarm.core.ids import ModelId
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.core.text import clip
from swarm.models.demo import SMOLLM2
from swarm.models.resolve import DEMO
from swarm.scheduling.reasons import layers_text

MODEL_CHARS = 120
MOST_NAMED = 10


def named(name: str, entries: Sequence[ModelEntry]) -> ModelId | None:
    """The model of the index that ``name`` means, if exactly one does; its files need not be at hand."""
    plain = SMOLLM2.name if name == DEMO else name.partition("@")[0]
    fitting = {entry.model for entry in entries if name == entry.model or ModelId.parse(entry.model).name == plain}
    return ModelId.parse(fitting.pop()) if len(fitting) == 1 else None


def judge_models(entries: Sequence[ModelEntry]) -> Finding:
    """Without a model in mind: what the index lists."""
    names = list(dict.fromkeys(clip(entry.model, MODEL_CHARS) for entry in entries))
    if not names:
        return warning("swarm", "no server has told of its model yet", "be the first: python -m swarm.server")
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return ok("swarm", f"it serves {', '.join(names[:MOST_NAMED])}{more}; --model says which to look at")


def judge_coverage(model: str, layers: int, listings: Sequence[Listing], peer: str) -> Finding:
    """Which of ``layers`` layers nobody holds whom a session could use; ``peer`` is whom to join through."""
    layers = layers or layer_count_of(listings, None)
    join = f"python -m swarm.server --model {model} --initial-peers {peer}"
    snapshot = Snapshot(model=model, layers=layers, listings=listings)
    servers = f"{len(snapshot.shown)} server{'s' if len(snapshot.shown) != 1 else ''}"
    if not snapshot.shown:
        return warning("swarm", f"nobody serves {model} yet", join)
    if snapshot.holes:
        what = f"{servers} of {model}, and nobody holds {layers_text(snapshot.holes)}: no answers until then"
        return warning("swarm", what, join)
    least = min(snapshot.counts)
    held = "by one server only" if least == 1 else f"by {least} servers or more"
    return ok("swarm", f"{servers} of {model}, all {layers} layers are held, each {held}")
