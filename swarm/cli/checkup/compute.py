"""What there is to compute with: torch, a GPU that it can use, bitsandbytes, and how fast it is."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.cli.apart import apart
from swarm.cli.checkup.findings import Finding, Report, error, ok, warning

if TYPE_CHECKING:
    from swarm.engine.survey import Survey

NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
"""There is a driver, whatever torch makes of it."""
INSTALL_TORCH = "install a torch built for this GPU: pytorch.org/get-started has the command"
UPDATE_DRIVER = "update the GPU's driver, or install a torch built for an older one: pytorch.org/get-started"


async def look_at_device(device: str, quantization: str, report: Report, *, speed: bool = False) -> None:
    """torch, then the device that was asked for, then bitsandbytes if weights are to be quantized."""
    try:
        found, nvidia_driver = await apart(lambda: (_survey(), NVIDIA_DRIVER.exists()))
    except (ImportError, OSError) as fault:
        what = f"torch cannot be imported: {' '.join(str(fault).split())[:300]}"
        report(error("torch", what, "pip install --force-reinstall torch, or make the environment anew"))
        return
    report(ok("torch", f"{found.torch}, {f'for {found.build}' if found.build else 'a CPU build'}"))
    verdict = judge_device(found, device, nvidia_driver=nvidia_driver)
    report(verdict)
    if verdict.level == "error":
        return
    if quantization != "none":
        await apart(lambda: import_module("swarm.engine.survey").try_quantization(quantization, device))
        report(ok("bitsandbytes", f"{quantization} works on {device}"))
    if speed:
        report(await apart(lambda: _speed(device)))


def _survey() -> Survey:
    found: Survey = import_module("swarm.engine.survey").survey()
    return found


def _speed(device: str) -> Finding:
    capacity, devices = import_module("swarm.engine.capacity"), import_module("swarm.engine.devices")
    where, _ = devices.pick_device(device)
    bytes_per_s = capacity.read_bytes_per_s(where, devices.pick_dtype("float32", {}, where))
    return ok("speed", f"reads weights at {bytes_per_s / 1e9:.1f} GB/s: a decode step reads each layer's once")


def judge_device(found: Survey, device: str, *, nvidia_driver: bool) -> Finding:
    """What a server with ``--device device`` would compute on."""
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (index and (kind != "cuda" or not index.isdecimal())):
        return error("device", f"there is no device {device!r}", "give auto, cpu, cuda, cuda:N or mps")
    if kind == "cpu":
        return ok("device", f"the CPU, {found.threads} threads")
    if kind == "mps" and not found.apple:
        return error("device", "torch sees no Apple GPU", "use --device cpu")
    if kind in ("auto", "cuda") and int(index or 0) < len(found.gpus):
        gpu = found.gpus[int(index or 0)]
        room = f"{gpu.free_bytes / 1e9:.1f} of {gpu.total_bytes / 1e9:.1f} GB free"
        return ok("device", f"{gpu.name}, {room}" + (f" (of {len(found.gpus)} GPUs)" if len(found.gpus) > 1 else ""))
    if kind in ("auto", "mps") and found.apple:
        return ok("device", "Apple GPU")
    return _no_gpu(found, device, nvidia_driver=nvidia_driver)


def _no_gpu(found: Survey, device: str, *, nvidia_driver: bool) -> Finding:
    judge = error if device != "auto" else warning
    if found.complaint:
        return judge("device", f"torch cannot use the GPU: {found.complaint}", UPDATE_DRIVER)
    if device != "auto" and found.gpus:
        return error("device", f"torch sees {len(found.gpus)} GPUs, and none is {device}", "count from cuda:0")
    if not found.build and (nvidia_driver or device != "auto"):
        there = "there is an NVIDIA GPU, but " if nvidia_driver else ""
        return judge("device", f"{there}the installed torch is a CPU build", INSTALL_TORCH)
    if device != "auto":
        return error("device", f"torch ({found.build}) sees no GPU", "check the driver with nvidia-smi or rocm-smi")
    if nvidia_driver:
        return warning("device", f"there is an NVIDIA GPU, and torch ({found.build}) does not see it", UPDATE_DRIVER)
    what = f"no GPU: the CPU computes, {found.threads} threads, many times slower"
    return warning("device", what, "good enough for small models and for trying; --device cpu says that it is meant")
