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
    ``cpu``), filled in the order GPUs first, then CPU. A layer is never split. Raises ``ConfigError`` if the span does
    not fit.
    """
    whole_layers = sorted({type(layer).__name__ for layer in getattr(model.body, model.parts.layers)})
    limits = {**max_memory, "cpu": max_memory.get("cpu", 0)}
    placed: dict[str, int | str] = infer_auto_device_map(
        model, limits, no_split_module_classes=whole_layers, offload_buffers=True
    )
    if "disk" in placed.values():
        first = next(name for name, device in placed.items() if device == "disk")
        total = sum(max_memory.values())
        raise ConfigError(
            f"the span's {first} does not fit into the {total} bytes of memory allowed",
            hint="serve fewer blocks, or use --quantization",
        )
    return {name: _device(device) for name, device in placed.items()}


def dispatch(model: SpanModel, devices: Mapping[str, torch.device]) -> None:
    """Hook the filled span's modules so that each runs where ``devices`` put it.

    Inputs follow from device to device; parts on the CPU beside a GPU are moved in for each call and dropped after.
    """
    accelerators = [device for device in devices.values() if device.type != "cpu"]
    main = accelerators[0] if accelerators else torch.device("cpu")
    dispatch_model(model, dict(devices), main_device=main, offload_buffers=True, force_hooks=True)


def _device(name: int | str) -> torch.device:
    return torch.device("cuda", name) if isinstance(name, int) else torch.device(name)
