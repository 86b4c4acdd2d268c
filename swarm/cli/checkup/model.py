"""Whether the model can be opened, how much of it fits here, and whether the disk holds what is still to be fetched."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from swarm.cli.apart import apart
from swarm.cli.checkup.findings import Finding, Report, error, ok, warning
from swarm.cli.checkup.storage import free_bytes, judge_disk
from swarm.models.demo import DISK_BYTES, FETCHED_BYTES, is_prepared
from swarm.models.files import ModelFiles
from swarm.models.progress import human_bytes
from swarm.models.resolve import DEMO, default_cache, resolve

if TYPE_CHECKING:
    from swarm.engine.capacity import Room


@dataclass(frozen=True, slots=True)
class Wish:
    """What a server of the model would be started with."""

    model: str
    revision: str | None
    device: str
    quantization: str


async def open_model(wish: Wish) -> ModelFiles | None:
    """The model without its weights: small files are fetched if need be. None for a demo that is not there yet.

    Raises what ``resolve`` does.
    """
    if wish.model == DEMO and not await apart(lambda: is_prepared(default_cache())):
        return None
    return await apart(lambda: resolve(wish.model, revision=wish.revision))


async def look_at_model(wish: Wish, files: ModelFiles | None, report: Report) -> None:
    """Report on the opened model, what of it fits, and the disk."""
    cache = default_cache()
    if files is None:
        what = f"the demo is made at the first start: {human_bytes(FETCHED_BYTES)} to fetch from the package index"
        report(ok("model", what))
        report(judge_disk(free_bytes(cache), FETCHED_BYTES + 2 * DISK_BYTES, str(cache)))
        return
    report(ok("model", f"{files.model_id}, {files.layer_count} layers"))
    missing = await apart(files.source.to_fetch_bytes)
    room = await apart(lambda: _room(wish, files))
    report(judge_room(room, files.layer_count))
    share = max(room.capacity_layers, 1) / files.layer_count
    report(judge_disk(free_bytes(cache), int(missing * share), str(cache)))


async def look_at_disk(report: Report) -> None:
    """Without a model: only whether there is any room."""
    report(judge_disk(free_bytes(default_cache()), 0, str(default_cache())))


def _room(wish: Wish, files: ModelFiles) -> Room:
    capacity, weights = import_module("swarm.engine.capacity"), import_module("swarm.engine.weights")
    options = weights.LoadOptions(device=wish.device, quantization=wish.quantization)
    found: Room = capacity.room_for(files, options)
    return found


def judge_room(room: Room, layers: int) -> Finding:
    """How many of the model's ``layers`` fit into memory, and how fast they should be."""
    each = f"{human_bytes(room.layer_bytes)} each in {room.numerics}"
    if room.capacity_layers < 1:
        return error("room", f"not one of {layers} layers fits into free memory ({each})", "end other programs, use "
                     "--quantization, or choose a smaller model")  # fmt: skip
    what = f"{room.capacity_layers} of {layers} layers fit into free memory ({each})"
    rate = f", about {room.power_layers_per_s:.3g} layers/s" if room.power_layers_per_s else ""
    if room.capacity_layers == layers:
        return ok("room", f"{what}{rate}; the whole model fits here, and a swarm is for those that do not")
    if room.capacity_layers * 50 < layers:
        return warning("room", what + rate, "few sessions gain by so few layers: --quantization holds more")
    return ok("room", what + rate)
