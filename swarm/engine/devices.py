"""Which device and which dtype a server computes in, and what it must say about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from swarm.core.errors import ConfigError
from swarm.core.numerics import DTYPE_BYTES

DEVICES = ("auto", "cpu", "cuda", "mps")
_DTYPES: dict[str, torch.dtype] = {name: getattr(torch, name) for name in DTYPE_BYTES}


def pick_device(wanted: str) -> tuple[torch.device, str]:
    """The device for ``auto``, ``cpu``, ``cuda`` (ROCm counts as such; ``cuda:1`` picks one) or ``mps``, and a note.

    The note is empty, except when ``auto`` falls back to the CPU: then it says so, for the banner to say it loudly.
    Raises ``ConfigError`` if the device asked for by name is not there.
    """
    kind, _, index = wanted.partition(":")
    if kind not in DEVICES or (index and (kind != "cuda" or not index.isdecimal())):
        raise ConfigError(f"unknown device {wanted!r}", hint=f"choose one of {', '.join(DEVICES)}")
    if kind == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", 0), ""
        if torch.backends.mps.is_available():
            return torch.device("mps"), ""
        return torch.device("cpu"), "NO GPU FOUND: computing on the CPU, which is many times slower"
    if kind == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if int(index or 0) >= count:
            built = "" if torch.version.cuda or torch.version.hip else "; the installed torch is a CPU build"
            raise ConfigError(f"device {wanted}: torch sees {count} GPUs{built}", hint="use --device cpu, or fix torch")
        return torch.device("cuda", int(index or 0)), ""
    if kind == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device mps: torch sees no Apple GPU", hint="use --device cpu")
    return torch.device(kind), ""


def pick_dtype(wanted: str, config: Mapping[str, Any], device: torch.device) -> torch.dtype:
    """The dtype for ``auto`` or a name from ``core.numerics``.

    ``auto`` is the checkpoint's own dtype, float32 if it names none or one we do not compute in. On a CPU, float16
    becomes float32, since most CPUs have no float16 arithmetic; bfloat16 stays, because it halves the memory and
    widening it is a choice that is the volunteer's to make (``--dtype float32``). All servers of a chain must agree,
    which is why ``auto`` looks at nothing but the checkpoint and this one exception. Raises ``ConfigError`` for an
    unknown name.
    """
    if wanted != "auto":
        if wanted not in _DTYPES:
            raise ConfigError(f"unknown dtype {wanted!r}", hint=f"choose auto, {', '.join(_DTYPES)}")
        return _DTYPES[wanted]
    stored = str(config.get("dtype") or config.get("torch_dtype") or "float32").removeprefix("torch.")
    dtype = _DTYPES.get(stored, torch.float32)
    return torch.float32 if device.type == "cpu" and dtype == torch.float16 else dtype


def dtype_name(dtype: torch.dtype) -> str:
    """The name of a dtype as ``core.numerics`` has it: ``float32``."""
    return str(dtype).removeprefix("torch.")
