"""Cut a span of layers out of any causal language model transformers knows, without touching its weights.

The family's own classes are built on the meta device (parameters without memory, buffers for real), cut to the span,
and told to use the ragged attention. Whether a family can be cut is not looked up but probed: its forward with no
layers and no norm must be the identity on ``inputs_embeds``, and every layer must call the attention interface.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from accelerate import init_empty_weights
from torch import nn
from transformers import PretrainedConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

from swarm.core.errors import UnsupportedFamilyError
from swarm.core.spans import Span
from swarm.engine import attention, probe
from swarm.engine.batch import LayerShape, RaggedState
from swarm.engine.calls import peel_forwards
from swarm.engine.probe import MisfitError, Stack, probe_identity, probe_layers
from swarm.engine.rotary import SessionRotary
from swarm.engine.span_model import Parts, SpanModel

T = TypeVar("T")

KNOWN_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def layer_count(config: PretrainedConfig) -> int:
    """How many layers the model has."""
    return int(config.num_hidden_layers)


def build_span(config: PretrainedConfig, span: Span, *, embeddings: bool, head: bool) -> SpanModel:
    """The modules of ``span``, with its embeddings and head if asked for: parameters on meta, buffers real.

    Not safe beside another model construction in the same process (accelerate patches torch while it builds).
    Raises ``UnsupportedFamilyError``, which names the family and why it cannot be served in spans, and
    ``ConfigError`` for a span outside the model.
    """
    check_family(config)
    span.within(layer_count(config))
    state = RaggedState()
    body, shapes = _build_body(config, span, state)
    return _assemble(config, span, _Built(body, shapes, state), embeddings=embeddings, head=head)


def build_head(config: PretrainedConfig) -> SpanModel:
    """Embeddings, final norm and LM head without a layer, for a client that keeps them. Raises like ``build_span``."""
    check_family(config)
    return _assemble(config, None, _Built(None, [], RaggedState()), embeddings=True, head=True)


def check_family(config: PretrainedConfig) -> None:
    """Refuse by name what its configuration alone rules out; ``build_span`` probes the rest."""
    if getattr(config, "is_encoder_decoder", False):
        raise _refusal(config, "it is an encoder-decoder, and spans serve decoders only")
    if config.get_text_config() is not config:
        raise _refusal(config, "it is multimodal", hint="serve its text model on its own")
    model_class = _model_class(config)
    kinds = set(getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None) or ())
    strange = sorted(str(kind) for kind in kinds - KNOWN_LAYER_TYPES)
    if getattr(model_class, "_is_stateful", False):
        raise _refusal(config, "it keeps recurrent state, which cannot be truncated by position")
    if strange:
        raise _refusal(config, f"it has layers of kind {', '.join(strange)}; only full and sliding attention is served")
    encoder = hasattr(config, "add_cross_attention") and not getattr(config, "is_decoder", True)
    if encoder or not getattr(config, "is_causal", True):
        raise _refusal(config, "it is not causal: its rows look ahead")
    if getattr(config, "use_bidirectional_attention", False):
        raise _refusal(config, "its attention is bidirectional")
    if not getattr(model_class, "_supports_attention_backend", False):
        raise _refusal(config, "its attention does not go through transformers' exchangeable interface")


@dataclass
class _Built:
    body: nn.Module | None
    shapes: list[LayerShape]
    state: RaggedState


def _refusal(config: PretrainedConfig, why: str, *, hint: str = "") -> UnsupportedFamilyError:
    return UnsupportedFamilyError(f"the family {config.model_type!r} cannot be served in spans: {why}", hint=hint)


def _model_class(config: PretrainedConfig) -> Any:
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise _refusal(config, "transformers has no causal language model for it")
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, (tuple, list)) else found


def _construct(config: PretrainedConfig) -> tuple[nn.Module, Parts]:
    """The whole model on meta, from a copy of ``config``, and where its parts are."""
    attention.register()
    probe.register()
    own = copy.deepcopy(config)
    own._attn_implementation = attention.NAME
    try:
        with init_empty_weights(include_buffers=False):
            model = _model_class(config)(own)
    except (ValueError, TypeError, AttributeError, KeyError, NotImplementedError) as error:
        raise _refusal(config, f"transformers cannot build it from this configuration: {error}") from error
    model.eval().requires_grad_(False)
    return model, _find_parts(config, model)


def _find_parts(config: PretrainedConfig, model: Any) -> Parts:
    base = model.base_model
    if base is model:
        raise _refusal(config, "its layers are not in a base model of their own")
    embeddings, output = model.get_input_embeddings(), model.get_output_embeddings()
    stacks = [
        name
        for name, child in base.named_children()
        if isinstance(child, nn.ModuleList) and len(child) == layer_count(config)
    ]
    if len(stacks) != 1 or embeddings is None or output is None:
        raise _refusal(config, "it is not one stack of layers between embeddings and a head")
    weighty = {name: child for name, child in base.named_children() if any(True for _ in child.parameters())}
    embed_name = next((name for name, child in weighty.items() if child is embeddings), None)
    rest = [name for name in weighty if name not in (embed_name, stacks[0])]
    if not rest:  # a norm may have no weights
        rest = [name for name, _ in base.named_children() if "norm" in name]
    outer = [name for name, child in model.named_children() if child is not base and child is not output]
    if embed_name is None or len(rest) > 1 or any(True for name in outer for _ in getattr(model, name).parameters()):
        raise _refusal(config, f"it has weights outside layers, embeddings, norm and head: {', '.join(rest + outer)}")
    head_name = next(name for name, child in model.named_modules() if child is output)
    return Parts(
        prefix=model.base_model_prefix,
        layers=stacks[0],
        embeddings=embed_name,
        norm=rest[0] if rest else None,
        head=head_name,
        tied=bool(getattr(config, "tie_word_embeddings", False)),
    )


def _build_body(config: PretrainedConfig, span: Span, state: RaggedState) -> tuple[nn.Module, list[LayerShape]]:
    """The base model with the layers of ``span`` and no embeddings or norm, and what each layer attends with."""
    model, parts = _construct(config)
    base: Any = model.base_model
    stack = Stack(parts.layers, parts.norm)
    layers = list(getattr(base, parts.layers))[span.start : span.end]
    setattr(base, parts.embeddings, None)
    cut_config(base.config, span)
    _probe(config, lambda: probe_identity(base, stack))
    for name, child in list(base.named_children()):
        if name != parts.layers and _is_rotary(child):
            setattr(base, name, SessionRotary(child, state))
    for index, layer in enumerate(layers):
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                module.layer_idx = index
                module.ragged = state
    base.config._attn_implementation = probe.NAME
    shapes = _probe(config, lambda: probe_layers(base, stack, layers, state, cut_config))
    base.config._attn_implementation = attention.NAME
    setattr(base, parts.layers, nn.ModuleList(layers))
    state.windows = [shape.window for shape in shapes]
    peel_forwards(base)
    return base, shapes


def _probe(config: PretrainedConfig, ask: Callable[[], T]) -> T:
    """What a probe finds, its misfits turned into refusals by name."""
    try:
        return ask()
    except MisfitError as error:
        raise _refusal(config, str(error)) from error


def _is_rotary(module: nn.Module) -> bool:
    return "position_ids" in inspect.signature(module.forward).parameters


def cut_config(config: PretrainedConfig, span: Span) -> None:
    """Shorten the configuration's per-layer lists to the span, since a forward reads them by local layer index."""
    count = layer_count(config)
    for name, value in list(vars(config).items()):
        per_layer = isinstance(value, (list, tuple)) and len(value) == count
        if per_layer and ("layer" in name or "block" in name):
            vars(config)[name] = value[span.start : span.end]
    config.num_hidden_layers = len(span)


def _assemble(config: PretrainedConfig, span: Span | None, built: _Built, *, embeddings: bool, head: bool) -> SpanModel:
    model, parts = _construct(config)
    base: Any = model.base_model
    embed = getattr(base, parts.embeddings)
    setattr(base, parts.embeddings, None)
    setattr(base, parts.layers, nn.ModuleList())
    norm = None if parts.norm is None else getattr(base, parts.norm)
    if span is None:  # a span's own body has been probed already
        _probe(config, lambda: probe_identity(base, Stack(parts.layers, parts.norm)))
    if norm is not None:
        setattr(base, str(parts.norm), norm)
    for name, child in list(base.named_children()):
        if _is_rotary(child):
            setattr(base, name, _NoRotary())
    peel_forwards(model)
    return SpanModel(
        config,
        span=span,
        parts=parts,
        state=built.state,
        shapes=built.shapes,
        modules=(built.body, embed if embeddings else None, model if head else None),
    )


class _NoRotary(nn.Module):
    """Stands where a head without layers would compute tables that nobody reads."""

    def forward(self, *_args: Any, **_kwargs: Any) -> None:
        return None
