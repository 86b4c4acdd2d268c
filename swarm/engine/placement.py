"""One span over several devices of one machine, through accelerate's device maps."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from accelerate import dispatch_model, infer_auto_device_map

from swarm.core.errors import ConfigError
from swarm.engine.span_model import SpanModel


def span_device_map(model: SpanModel, max_memory: Mapping[int | str, int]) -> dict[str, torch.device]:
    """Which device each part of the span goes to: module name here (``body.layers.0``, ``embed``, …) -> device.

    ``model`` may be on meta; its parameters' dtypes count. ``max_memory`` is in bytes by device (GPU number, or
    ``cpu``), filled in the order GPUs first, then CPU. Embeddings and head go to the first device, layers fill what is
    left; a layer is never split. Raises ``ConfigError`` if the span does not fit.
    """
    first = next(iter(sorted(max_memory, key=lambda device: (device == "cpu", device))), None)
    ends = {name: part for name in ("embed", "head") if (part := getattr(model, name)) is not None}
    shared = {id(tensor): tensor.nbytes for part in ends.values() for tensor in part.parameters()}
    limits = {**max_memory, "cpu": max_memory.get("cpu", 0)}
    if first is None or sum(shared.values()) > limits[first]:
        raise _too_small("embeddings or head", max_memory)
    limits[first] -= sum(shared.values())
    whole_layers = sorted({type(layer).__name__ for layer in getattr(model.body, model.parts.layers)})
    placed: dict[str, int | str] = infer_auto_device_map(
        model.body, limits, no_split_module_classes=whole_layers, offload_buffers=True
    )
    if "disk" in placed.values():
        raise _too_small(next(name for name, device in placed.items() if device == "disk"), max_memory)
    devices = {f"body.{name}" if name else "body": _device(device) for name, device in placed.items()}
    return devices | dict.fromkeys(ends, _device(first))


def dispatch(model: SpanModel, devices: Mapping[str, torch.device]) -> None:
    """Hook the layers of a filled span so that each runs where ``devices`` put it.

    Rows go from device to device and come back to the one they came from; layers on the CPU beside a GPU are moved in
    for each call and dropped after. Embeddings and head need no hooks.
    """
    body = {
        name.removeprefix("body").removeprefix("."): device
        for name, device in devices.items()
        if name.partition(".")[0] == "body"
    }
    accelerators = [device for device in body.values() if device.type != "cpu"]
    main = accelerators[0] if accelerators else torch.device("cpu")
    dispatch_model(model.body, body, main_device=main, offload_buffers=True, force_hooks=True)


def _device(name: int | str) -> torch.device:
    return torch.device("cuda", name) if isinstance(name, int) else torch.device(name)


def _too_small(part: str, max_memory: Mapping[int | str, int]) -> ConfigError:
    return ConfigError(
        f"the span's {part} does not fit into the {sum(max_memory.values())} bytes of memory allowed",
        hint="serve fewer blocks, or use --quantization",
    )
