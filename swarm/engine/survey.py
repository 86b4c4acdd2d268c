"""What torch has to compute with on this machine, for whoever wants to know why it is slow."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import torch

from swarm.engine.devices import pick_device
from swarm.engine.quantize import check_quantization


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU that torch can use; bytes of its memory."""

    name: str
    free_bytes: int
    total_bytes: int


@dataclass(frozen=True, slots=True)
class Survey:
    """``build`` is what torch was built for ("CUDA 12.8", "ROCm 6.3", "" the CPU alone); ``complaint`` what it said
    when it was asked for GPUs, such as a driver that is too old."""

    torch: str
    build: str
    gpus: tuple[Gpu, ...] = ()
    apple: bool = False
    threads: int = 1
    complaint: str = ""


def survey() -> Survey:
    """Ask torch. Never raises for a GPU that does not work: that is the ``complaint``."""
    cuda, hip = torch.version.cuda, torch.version.hip
    gpus: list[Gpu] = []
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        complaint = ""
        try:
            for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
                free_bytes, total_bytes = torch.cuda.mem_get_info(index)
                gpus.append(Gpu(torch.cuda.get_device_name(index), int(free_bytes), int(total_bytes)))
        except RuntimeError as error:
            complaint = _line(str(error))
    return Survey(
        torch=torch.__version__,
        build=f"CUDA {cuda}" if cuda else f"ROCm {hip}" if hip else "",
        gpus=tuple(gpus),
        apple=torch.backends.mps.is_available(),
        threads=torch.get_num_threads(),
        complaint=complaint or " ".join(_line(str(warning.message)) for warning in heard),
    )


def try_quantization(quantization: str, device: str) -> None:
    """Quantize and apply a small layer. Raises ``ConfigError`` as ``check_quantization`` and ``pick_device`` do."""
    check_quantization(quantization, pick_device(device)[0])


def _line(text: str) -> str:
    return " ".join(text.split())[:300]
