"""Fill a span with weights: only its tensors are read, one layer at a time, each placed as it arrives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from accelerate import init_empty_weights
from accelerate.utils import set_module_tensor_to_device
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from swarm.core.errors import ModelError, UnsupportedFamilyError
from swarm.core.spans import Span
from swarm.engine.conversion import Recipe, recipes_for
from swarm.engine.devices import dtype_name, pick_device, pick_dtype
from swarm.engine.family import build_head, build_span, layer_count
from swarm.engine.head import HeadEngine
from swarm.engine.placement import dispatch, span_device_map
from swarm.engine.quantize import check_quantization, quantize_linears
from swarm.engine.span_model import SpanModel

Progress = Callable[[str, int, int], None]
"""``progress(label, done_bytes, total_bytes)``."""

TensorBytes = tuple[str, memoryview, str, tuple[int, ...]]
"""Name, raw bytes the receiver may keep, safetensors dtype, shape."""

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip


class StoredTensor(Protocol):
    """What is known of a tensor before it is read."""

    @property
    def length(self) -> int: ...


class WeightFiles(Protocol):
    """An opened model: what this room needs of it."""

    @property
    def name(self) -> str: ...

    @property
    def config(self) -> Mapping[str, Any]: ...

    def tensor_names(self) -> frozenset[str]: ...

    def tensors(self, names: Sequence[str]) -> Mapping[str, StoredTensor]: ...

    def fetch(self, names: Sequence[str], progress: Progress) -> None: ...

    def read(self, names: Sequence[str]) -> Iterator[TensorBytes]: ...


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Where weights go and in what form: words as ``pick_device``, ``pick_dtype`` and ``quantize`` take them.

    ``max_memory`` (bytes by device: GPU number or ``cpu``) spreads the span's layers over several devices; layers put
    on the CPU beside a GPU are moved in for each step. ``memory_share`` is what weights and KV together may take of all
    the device's memory, up to 1 (what is free).
    """

    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    max_memory: Mapping[int | str, int] | None = None
    memory_share: float = 1.0


@dataclass(frozen=True, slots=True)
class LoadedSpan:
    """A span ready to run, and what was decided.

    ``note`` is for the banner, to be said loudly: a fallback to the CPU; empty if all is as one would expect.
    ``devices`` names the device of each part if there are several, else it is empty.
    """

    model: SpanModel
    device: str
    dtype: str
    quantization: str
    note: str
    devices: Mapping[str, str]


def load_span(
    files: WeightFiles, span: Span, *, options: LoadOptions, embeddings: bool, head: bool, progress: Progress
) -> LoadedSpan:
    """The span's modules, filled and ready to run.

    Reads only the tensors of ``span`` and, if asked for, of embeddings and of norm and head (a tied matrix once).
    Memory peaks at the finished span plus one layer. Linear layers are quantized as soon as their layer is complete.
    Raises ``ModelError`` if the checkpoint lacks a tensor or one does not fit, ``UnsupportedFamilyError`` for a family
    that cannot be served or a checkpoint that is itself quantized, ``ConfigError`` for a span outside the model, an
    unknown option, or a device, quantization or memory limit that does not work here, ``DownloadError`` if tensors
    cannot be fetched.
    """
    refuse_quantized_checkpoint(files)
    device, note = pick_device(options.device)
    dtype = pick_dtype(options.dtype, files.config, device)
    check_quantization(options.quantization, device)
    config = family_config(files)
    model = build_span(config, span, embeddings=embeddings, head=head)
    _set_dtype(model, dtype)
    devices = span_device_map(model, options.max_memory) if options.max_memory else {}
    _Filling(model, _whole_model(config), files, _Placing(devices, device), options.quantization).run(progress)
    if devices:
        dispatch(model, devices)
    return LoadedSpan(
        model=model,
        device=str(device),
        dtype=dtype_name(dtype),
        quantization=options.quantization,
        note=note,
        devices={name: str(place) for name, place in devices.items()},
    )


def load_head(files: WeightFiles, *, dtype: str = "auto", device: str = "cpu", progress: Progress) -> HeadEngine:
    """Embeddings, final norm and LM head without layers, for a client that keeps them. Raises like ``load_span``."""
    refuse_quantized_checkpoint(files)
    place, _ = pick_device(device)
    chosen = pick_dtype(dtype, files.config, place)
    config = family_config(files)
    model = build_head(config)
    _set_dtype(model, chosen)
    _Filling(model, _whole_model(config), files, _Placing({}, place), "none").run(progress)
    return HeadEngine(model, dtype=dtype_name(chosen))


class LayerByLayer:
    """A whole model without its head, in float32, of which one layer at a time has weights.

    ``model`` has embeddings from the start and until ``drop_embeddings``; a layer runs only inside ``holding``. The
    weights are fetched to this machine's disk when it is made. Raises like ``load_span``.
    """

    def __init__(self, files: WeightFiles, *, device: str = "auto", progress: Progress) -> None:
        refuse_quantized_checkpoint(files)
        self.device, self.note = pick_device(device)
        config = family_config(files)
        self.layers = layer_count(config)
        self.model = build_span(config, Span(0, self.layers), embeddings=True, head=False)
        _set_dtype(self.model, torch.float32)
        self._filling = _Filling(self.model, _whole_model(config), files, _Placing({}, self.device), "none")
        self._plan = self._filling.plan(progress)
        self.total_bytes, self.done_bytes = self._plan.total_bytes, 0
        _move_buffers(self.model, self._filling.place)
        self._fill("")
        self.model.requires_grad_(False).eval()

    def drop_embeddings(self) -> None:
        """Give the embeddings' memory back."""
        if self.model.embed is not None:
            self.model.embed.to("meta")

    @contextmanager
    def holding(self, layer: int) -> Iterator[None]:
        """Inside, ``layer`` has its weights; afterwards their memory is given back."""
        name = f"body.{self.model.parts.layers}.{layer}"
        self._fill(name)
        try:
            yield
        finally:
            self.model.get_submodule(name).to("meta")

    def _fill(self, name: str) -> None:
        if name in self._plan.groups:
            self.done_bytes += sum(self._filling.fill(name, self._plan))


def family_config(files: WeightFiles) -> PretrainedConfig:
    """The configuration as the family's own class; ``UnsupportedFamilyError`` if transformers does not know it."""
    model_type = str(files.config.get("model_type"))
    if model_type not in CONFIG_MAPPING:
        raise UnsupportedFamilyError(
            f"the family {model_type!r} of {files.name} is unknown to the installed transformers",
            hint="update transformers, or choose another model; code from model repositories is never run",
        )
    try:
        config: PretrainedConfig = CONFIG_MAPPING[model_type].from_dict(dict(files.config))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"the config.json of {files.name} is not a valid {model_type} one: {error}") from error
    return config


def refuse_quantized_checkpoint(files: WeightFiles) -> None:
    """Raise ``UnsupportedFamilyError`` if the checkpoint's own weights are quantized, which we cannot read."""
    settings = files.config.get("quantization_config")
    if settings:
        method = settings.get("quant_method", "an unnamed method") if isinstance(settings, Mapping) else settings
        raise UnsupportedFamilyError(
            f"the checkpoint of {files.name} is itself quantized ({method})",
            hint="use the unquantized checkpoint, with --quantization int8 or nf4 if memory is short",
        )


@dataclass(frozen=True, slots=True)
class _Placing:
    """Which device a name goes to: the longest prefix in ``devices``, else ``default``."""

    devices: Mapping[str, torch.device]
    default: torch.device

    def __call__(self, name: str) -> torch.device:
        parts = name.split(".")
        prefixes = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((self.devices[prefix] for prefix in prefixes if prefix in self.devices), self.default)


def _whole_model(config: PretrainedConfig) -> PreTrainedModel:
    """The family's whole model on meta: what names and shapes conversion rules speak of."""
    with init_empty_weights(include_buffers=True):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    return model


@dataclass(frozen=True, slots=True)
class _Plan:
    """Names here by name in the whole model; recipes by the layer they fill ('': what is in none); bytes of all."""

    local: Mapping[str, str]
    groups: Mapping[str, list[Recipe]]
    total_bytes: int


@dataclass(frozen=True, slots=True)
class _Filling:
    """Gives every parameter and persistent buffer of ``model`` its value, and moves computed buffers.

    ``whole`` is the family's whole model on meta, whose names the conversion rules speak.
    """

    model: SpanModel
    whole: PreTrainedModel
    files: WeightFiles
    place: _Placing
    quantization: str

    def run(self, progress: Progress) -> None:
        plan = self.plan(progress)
        done = 0
        for layer in plan.groups:
            for count in self.fill(layer, plan):
                done += count
                progress("loading weights", done, plan.total_bytes)
        self.model.retie()
        _move_buffers(self.model, self.place)
        self.model.requires_grad_(False).eval()

    def plan(self, progress: Progress) -> _Plan:
        """What fills what; all of it is on this machine's disk afterwards."""
        local = {name: here for here, name in self.model.checkpoint_tensors().items()}
        recipes = recipes_for(self.whole, local, self.files.tensor_names())
        sources = [source for recipe in recipes for source in recipe.sources]
        self.files.fetch(sources, progress)
        total_bytes = sum(info.length for info in self.files.tensors(sources).values())
        return _Plan(local, _by_layer(self.model, recipes, local), total_bytes)

    def fill(self, layer: str, plan: _Plan) -> Iterator[int]:
        """Fill one layer of ``plan.groups``; how many bytes were read, each time some were."""
        for recipe, tensors in _complete(plan.groups[layer], self.files):
            for name, value in recipe.make(self.whole, tensors).items():
                if name in plan.local:
                    _set(self.model, plan.local[name], value, self.place(plan.local[name]))
            yield sum(tensor.nbytes for tensor in tensors.values())
        if layer:
            quantize_linears(self.model.get_submodule(layer), self.quantization)


def _by_layer(model: SpanModel, recipes: Sequence[Recipe], local: Mapping[str, str]) -> dict[str, list[Recipe]]:
    """Recipes grouped by the decoder layer they fill (its module name here), those outside any layer under ''."""
    stack = f"body.{model.parts.layers}."
    groups: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        name = next(local[target] for target in recipe.targets if target in local)
        index = name.removeprefix(stack).partition(".")[0]
        groups.setdefault(stack + index if name.startswith(stack) else "", []).append(recipe)
    return groups


def _complete(recipes: Sequence[Recipe], files: WeightFiles) -> Iterator[tuple[Recipe, dict[str, torch.Tensor]]]:
    """Each recipe with its tensors, as soon as the last of them has arrived; nothing is held longer."""
    wanted_by = {source: recipe for recipe in recipes for source in recipe.sources}
    waiting: dict[str, dict[str, torch.Tensor]] = {recipe.targets[0]: {} for recipe in recipes}
    for name, data, dtype, shape in files.read(list(wanted_by)):
        recipe = wanted_by[name]
        held = waiting[recipe.targets[0]]
        held[name] = _as_tensor(name, data, dtype, shape)
        if len(held) == len(recipe.sources):
            yield recipe, waiting.pop(recipe.targets[0])
            held = {}


def _as_tensor(name: str, data: memoryview, dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    """The bytes as a tensor that shares and owns them; no copy."""
    if dtype not in _DTYPES:
        raise UnsupportedFamilyError(f"tensor {name} is stored as {dtype}", hint="use the unquantized checkpoint")
    if len(data) == 0:
        return torch.empty(shape, dtype=_DTYPES[dtype])
    return torch.frombuffer(data, dtype=_DTYPES[dtype]).reshape(shape)


def _set_dtype(model: SpanModel, dtype: torch.dtype) -> None:
    """Cast the meta parameters, on which it costs nothing; a value later takes the dtype its parameter has."""
    for name, parameter in model.named_parameters():
        if parameter.is_floating_point():
            parent, _, leaf = name.rpartition(".")
            cast = parameter.to(model.parameter_dtype(name, dtype))
            setattr(model.get_submodule(parent), leaf, nn.Parameter(cast, requires_grad=False))
    model.retie()


def _set(model: SpanModel, name: str, value: torch.Tensor, device: torch.device) -> None:
    try:
        set_module_tensor_to_device(model, name, device, value=value, clear_cache=False)
    except ValueError as error:
        raise ModelError(f"the checkpoint's {name} does not fit its configuration: {error}") from error


def _move_buffers(model: SpanModel, place: _Placing) -> None:
    """Computed buffers (rotary frequencies, scales) are not in the checkpoint and keep their dtype: they only move."""
    for name, buffer in list(model.named_buffers()):
        if buffer.device.type == "meta":
            raise UnsupportedFamilyError(f"buffer {name} is neither in the checkpoint nor computed by the family")
        parent, _, leaf = name.rpartition(".")
        model.get_submodule(parent)._buffers[leaf] = buffer.to(place(name))
