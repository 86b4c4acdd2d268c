"""A model's files, wherever they lie: configuration, tokenizer, and tensors by name. No weights are read to open it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from swarm.core.errors import ModelError, UnsupportedFamilyError
from swarm.core.ids import ModelId
from swarm.models.progress import Progress
from swarm.models.safetensors_file import TensorInfo

_VOLATILE = ("_name_or_path", "transformers_version")
"""Configuration keys that say who wrote the file, not what the model is."""
_DECODER_SUFFIXES = ("ForCausalLM", "LMHeadModel")
_TEXT_PREFIXES = (("model.language_model.", "model."), ("language_model.", ""))
"""Where multimodal checkpoints keep the tensors that a text-only model calls by the second name."""

TensorBytes = tuple[str, memoryview, str, tuple[int, ...]]
"""Name, raw little-endian bytes, safetensors dtype, shape."""


class TensorSource(Protocol):
    """Where tensors come from: a folder or a hub."""

    @property
    def index(self) -> Mapping[str, str] | None:
        """Tensor name -> shard, from ``model.safetensors.index.json``; None if there is a single file."""
        ...

    def locate(self, names: Iterable[str] | None) -> dict[str, TensorInfo]:
        """Where each named tensor lies (all of them for None); reads headers only. ``ModelError`` if one is missing."""
        ...

    def fetch(self, infos: Mapping[str, TensorInfo], progress: Progress) -> None:
        """Bring the tensors onto this machine's disk, as far as they are not there yet."""
        ...

    def to_fetch_bytes(self) -> int:
        """What of all weights is not on this machine yet; asks nobody."""
        ...

    def read(self, infos: Mapping[str, TensorInfo]) -> Iterator[tuple[str, memoryview]]:
        """The bytes of each fetched tensor, in any order; each buffer is writable and the receiver's own."""
        ...


@dataclass(frozen=True)
class ModelFiles:
    """An opened model. ``config`` is the text model's own configuration, also for multimodal checkpoints.

    ``chat_template`` is the Jinja text, or None. ``generation`` is ``generation_config.json``, or empty.
    """

    name: str
    revision: str
    config: Mapping[str, Any]
    generation: Mapping[str, Any]
    tokenizer_path: Path
    tokenizer_config_path: Path | None
    chat_template: str | None
    source: TensorSource

    @cached_property
    def fingerprint(self) -> str:
        """16 hex digits: sha256 over the canonical configuration and the weight index.

        The index is the sharded checkpoint's name -> shard map, or the single file's names, dtypes and shapes: so a
        client that holds no weights computes it from small files.
        """
        config = {key: value for key, value in self.config.items() if key not in _VOLATILE}
        if self.source.index is not None:
            index: dict[str, Any] = dict(self.source.index)
        else:
            index = {name: [info.dtype, list(info.shape)] for name, info in self.source.locate(None).items()}
        text = json.dumps([config, index], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(b"swarm/model/1\0" + text.encode()).hexdigest()[:16]

    @property
    def model_id(self) -> ModelId:
        """What the swarm calls this model."""
        return ModelId(self.name, self.revision, self.fingerprint)

    @property
    def layer_count(self) -> int:
        return self._positive("num_hidden_layers")

    @property
    def hidden_size(self) -> int:
        return self._positive("hidden_size")

    @property
    def vocab_size(self) -> int:
        return self._positive("vocab_size")

    @property
    def context_tokens(self) -> int:
        """Positions the model was made for; prompt and answer together must fit."""
        return self._positive("max_position_embeddings")

    @property
    def short_table_tokens(self) -> int | None:
        """Up to which length a ``longrope`` model uses its short rotary table; None for every other model."""
        if self._rope_type not in ("longrope", "su"):
            return None
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        length = rope.get("original_max_position_embeddings") or self.config.get("original_max_position_embeddings")
        return length if isinstance(length, int) and length > 0 else None

    @property
    def length_matters(self) -> bool:
        """True if a row depends on how long the whole text is, not only on what stands before it."""
        return self._rope_type in ("longrope", "su", "dynamic")

    @property
    def has_experts(self) -> bool:
        """True for a mixture of experts, where rounding may send a row to another expert."""
        counts = (self.config.get(key) for key in ("num_local_experts", "num_experts", "n_routed_experts"))
        return any(isinstance(count, int) and count > 1 for count in counts)

    @property
    def _rope_type(self) -> str:
        """How rotary tables are scaled; empty if they are not."""
        rope = self.config.get("rope_parameters") or self.config.get("rope_scaling") or {}
        if not isinstance(rope, dict):
            return ""
        return str(rope.get("rope_type", rope.get("type")) or "")

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """Tokens that end an answer: of the generation config if it says so, else of the config; ascending."""
        for source in (self.generation, self.config):
            value = source.get("eos_token_id")
            values = value if isinstance(value, list) else [value]
            if ids := {item for item in values if isinstance(item, int) and item >= 0}:
                return tuple(sorted(ids))
        return ()

    @cached_property
    def _stored_names(self) -> dict[str, str] | None:
        """Plain name -> name in the checkpoint where a multimodal checkpoint prefixes them; None: no prefixes."""
        names = self.source.index if self.source.index is not None else self.source.locate(None)
        for prefix, plain in _TEXT_PREFIXES:
            stored = {plain + name.removeprefix(prefix): name for name in names if name.startswith(prefix)}
            if stored:
                return stored | {name: name for name in names if name.startswith("lm_head.")}
        return None

    def tensor_names(self) -> frozenset[str]:
        """Every tensor of the text model."""
        if self._stored_names is not None:
            return frozenset(self._stored_names)
        return frozenset(self.source.index if self.source.index is not None else self.source.locate(None))

    def tensors(self, names: Iterable[str] | None = None) -> dict[str, TensorInfo]:
        """Where the named tensors lie (None: all); reads headers only, and only of the shards concerned.

        Raises ``ModelError`` if one is not in the checkpoint.
        """
        wanted = sorted(self.tensor_names() if names is None else set(names))
        infos = self._stored(wanted)
        aliases = self._stored_names
        return infos if aliases is None else {name: infos[aliases[name]] for name in wanted}

    def fetch(self, names: Sequence[str], progress: Progress) -> None:
        """Bring the named tensors onto this machine's disk; nothing to do for a folder.

        From a hub only their byte ranges, or whole shards of which at least half is wanted, are fetched. Raises
        ``ModelError`` if one is missing, ``DownloadError`` if one cannot be fetched.
        """
        self.source.fetch(self._stored(names), progress)

    def read(self, names: Sequence[str]) -> Iterator[TensorBytes]:
        """The named tensors, fetched before, in the order in which they lie; nothing else of a file is read.

        Raises ``ModelError`` if one is missing or its file is cut short.
        """
        infos = self._stored(names)
        aliases = self._stored_names
        plain = {name: name for name in names} if aliases is None else {aliases[name]: name for name in names}
        for name, data in self.source.read(infos):
            yield plain[name], data, infos[name].dtype, infos[name].shape

    def _stored(self, names: Iterable[str]) -> dict[str, TensorInfo]:
        """Where the named tensors lie, under the names the checkpoint has for them."""
        aliases = self._stored_names
        if aliases is None:
            return self.source.locate(names)
        if missing := sorted(set(names) - set(aliases)):
            raise ModelError(f"the checkpoint of {self.name} has no tensor {missing[0]}")
        return self.source.locate([aliases[name] for name in names])

    def _positive(self, key: str) -> int:
        value = self.config.get(key)
        if not isinstance(value, int) or value <= 0:
            raise ModelError(f"the config of {self.name} says {key} = {value!r}, which must be a positive integer")
        return value


def text_config(config: Any, name: str) -> dict[str, Any]:
    """The configuration of the causal language model in ``config``, unwrapped if multimodal.

    Raises ``ModelError`` if it is no causal language model, ``UnsupportedFamilyError`` if a multimodal one does not
    say what its text model is.
    """
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise ModelError(f"the config.json of {name} does not name a model_type", hint="give a transformers model")
    inner = config.get("text_config")
    architectures = [str(item) for item in config.get("architectures") or []]
    if isinstance(inner, dict):
        if not isinstance(inner.get("model_type"), str):
            raise UnsupportedFamilyError(
                f"{name} is a multimodal {config['model_type']} whose text model has no model_type of its own",
                hint="use a text-only checkpoint of the family",
            )
        shared = ("dtype", "torch_dtype", "tie_word_embeddings", "eos_token_id", "bos_token_id", "pad_token_id",
                  "quantization_config")  # fmt: skip
        return {**{key: config[key] for key in shared if key in config}, **inner}
    if config.get("is_encoder_decoder") or not any(item.endswith(_DECODER_SUFFIXES) for item in architectures):
        raise ModelError(
            f"{name} is not a causal language model (architectures: {', '.join(architectures) or 'none named'})",
            hint="choose a model whose architecture ends in ForCausalLM",
        )
    return dict(config)
