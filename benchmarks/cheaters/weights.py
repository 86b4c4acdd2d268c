"""Cheaper weights than declared: layers left out, rounded, disturbed, blind, or replaced by one matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.cheaters.cheat import Cheat
from swarm.cli.commands.calibrate import cut
from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.engine.calibration import BoundaryStates
from swarm.engine.quantize import quantize_linears
from swarm.engine.span_model import SpanModel
from swarm.engine.weights import WeightFiles
from swarm.models.files import ModelFiles
from swarm.models.progress import silent
from swarm.verification.verdicts.calibration_text import TEXT

NOISE = 0.01
WINDOW_TOKENS = 64
FIT_TOKENS = 2000
RIDGE = 1e-3
"""Of the mean square of the inputs: what keeps the surrogate's matrix from fitting noise."""
FP8_LARGEST = 448.0
"""Of ``float8_e4m3fn``."""


def layers_of(model: SpanModel) -> Any:
    """The stack of decoder layers; assign to its places to replace them."""
    return getattr(model.body, model.parts.layers)


def span_of(model: SpanModel) -> Span:
    if model.span is None:
        raise ConfigError("a server without layers has nothing to cheat with")
    return model.span


class Skipped(nn.Module):
    """In place of a decoder layer: rows go through as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(1), False)  # an engine asks its parameters where they lie

    def forward(self, hidden_states: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        """``[1, T, hidden]`` unchanged."""
        return hidden_states


class Affine(nn.Module):
    """In place of a decoder layer: ``rows + rows · matrix + bias``."""

    def __init__(self, matrix: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.matrix, self.bias = nn.Parameter(matrix, False), nn.Parameter(bias, False)

    def forward(self, hidden_states: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        """``[1, T, hidden]`` to the same."""
        return hidden_states + hidden_states @ self.matrix + self.bias


def identity() -> Cheat:
    def leave_out(model: SpanModel, _: WeightFiles) -> None:
        stack = layers_of(model)
        for index in range(len(stack)):
            stack[index] = Skipped()

    return Cheat(summary="returns its input unchanged", weights=leave_out)


def skip(layer: int) -> Cheat:
    """``layer`` counts in the whole model."""

    def leave_out(model: SpanModel, _: WeightFiles) -> None:
        layers_of(model)[place_of(layer, model)] = Skipped()

    return Cheat(summary=f"leaves out layer {layer}", weights=leave_out)


def place_of(layer: int, model: SpanModel) -> int:
    """Where a layer of the whole model lies in this span; ``ConfigError`` if it does not."""
    span = span_of(model)
    if not span.start <= layer < span.end:
        raise ConfigError(f"layer {layer} is not among {span}")
    return layer - span.start


def quantized(quantization: str) -> Cheat:
    def quantize(model: SpanModel, _: WeightFiles) -> None:
        quantize_linears(layers_of(model), quantization)

    return Cheat(summary=f"computes with {quantization} weights and declares none", weights=quantize)


def fp8() -> Cheat:
    def rounded(weight: torch.Tensor) -> torch.Tensor:
        scale = weight.abs().max().float() / FP8_LARGEST
        return (weight.float() / scale).to(torch.float8_e4m3fn).float() * scale

    return Cheat(summary="rounds its weights to fp8, one scale a matrix", weights=_each_matrix(rounded))


def noise() -> Cheat:
    generator = torch.Generator().manual_seed(5)

    def disturbed(weight: torch.Tensor) -> torch.Tensor:
        return weight.float() * (1 + NOISE * torch.randn(weight.shape, generator=generator))

    return Cheat(summary=f"has noise of {NOISE:.0%} on its weights", weights=_each_matrix(disturbed))


def short_window() -> Cheat:
    def shorten(model: SpanModel, _: WeightFiles) -> None:
        model.state.windows = [WINDOW_TOKENS] * len(model.state.windows)

    return Cheat(summary=f"attends to the last {WINDOW_TOKENS} tokens only", weights=shorten)


def surrogate() -> Cheat:
    def fit(model: SpanModel, files: WeightFiles) -> None:
        matrix, bias = fitted(files, span_of(model))
        dtype = next(parameter.dtype for parameter in layers_of(model).parameters() if parameter.is_floating_point())
        stack = layers_of(model)
        for index in range(len(stack)):
            stack[index] = Skipped()
        stack[0] = Affine(torch.tensor(matrix).to(dtype), torch.tensor(bias).to(dtype))

    return Cheat(summary="one matrix for all of its layers, least squares on text", weights=fit)


def fitted(files: WeightFiles, span: Span) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Matrix ``[hidden, hidden]`` and bias ``[hidden]`` of the span's update on the text that calibrates models.

    Ridge regression of output minus input, the sinks left out. Some seconds, for the model runs up to the span's end.
    """
    if not isinstance(files, ModelFiles):
        raise ConfigError("a surrogate is fitted on a whole model's files")
    reading = cut(files, TEXT, FIT_TOKENS)
    boundaries = BoundaryStates(files, reading.pieces, device="cpu", progress=silent)
    states: Iterator[npt.NDArray[np.float32]] = iter(boundaries)
    inputs = outputs = next(states)[reading.counted()]
    for boundary, rows in enumerate(islice(states, span.end), start=1):
        counted = rows[reading.counted()]
        inputs = counted if boundary == span.start else inputs
        outputs = counted
    rows64, update = inputs.astype(np.float64), outputs.astype(np.float64) - inputs
    centre, mean = rows64.mean(axis=0), update.mean(axis=0)
    centred = rows64 - centre
    ridge = RIDGE * float((centred**2).mean()) * len(centred)
    matrix = np.linalg.solve(centred.T @ centred + ridge * np.eye(len(centre)), centred.T @ (update - mean))
    return matrix.astype(np.float32), (mean - centre @ matrix).astype(np.float32)


def _each_matrix(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[SpanModel, WeightFiles], None]:
    def apply(model: SpanModel, _: WeightFiles) -> None:
        for module in layers_of(model).modules():
            if isinstance(module, nn.Linear):
                module.weight.data = change(module.weight.data).to(module.weight.dtype)

    return apply
