"""A swarm as a causal language model of transformers: embeddings, norm and head here, the layers wherever they are."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, Self, overload

import numpy as np
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation import GenerateBeamDecoderOnlyOutput, GenerateDecoderOnlyOutput
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils import ModelOutput

from swarm.core.errors import ConfigError, MisuseError
from swarm.engine.causal_cache import Feeder, SwarmCache
from swarm.engine.head import HeadEngine

CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
"""What the installed transformers calls the cache, as an argument and in outputs."""

_NOT_HERE = "they stay at the servers"
_REFUSED = {
    "assistant_model": "assisted generation",
    "prompt_lookup_num_tokens": "prompt lookup, a kind of assisted generation",
    "assistant_early_exit": "assisted generation by early exit",
    "use_mtp": "multi-token prediction",
    "penalty_alpha": f"contrastive search, which needs the hidden states of the layers: {_NOT_HERE}",
    "dola_layers": f"DoLa, which needs the hidden states of the layers: {_NOT_HERE}",
    "num_beam_groups": "group beam search",
    "constraints": "constrained beam search",
    "force_words_ids": "constrained beam search",
    "cache_implementation": "a kind of cache: keys and values lie at the servers",
    "compile_config": "compilation: there are no layers here to compile",
    "inputs_embeds": "embeddings: servers are fed with token ids, so that a lost one can be replaced",
    "output_attentions": f"attentions: {_NOT_HERE}",
    "output_hidden_states": f"hidden states: {_NOT_HERE}",
}
"""Arguments and generation settings that cannot be honoured, and what each of them asks for."""
_IGNORED = ("cache_position", "synced_gpus")
_GRADIENTS = "no gradient passes through a swarm: its layers are other people's"


class _RegistryConfig(PretrainedConfig):  # type: ignore[misc]  # transformers is not type-checked here
    """Stands for this class in transformers' registry, where pipelines look whether they know a model."""

    model_type = "swarm"


class _NoGradient(torch.autograd.Function):
    """Passes a loss on, and tells whoever asks for its gradient that there is none."""

    @staticmethod
    def forward(ctx: Any, loss: torch.Tensor, anchor: torch.Tensor) -> torch.Tensor:
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> NoReturn:
        raise MisuseError(_GRADIENTS)


class _TellsCache(StoppingCriteriaList):  # type: ignore[misc]  # transformers is not type-checked here
    """Tells a cache which rows have ended."""

    def __init__(self, criteria: StoppingCriteriaList, cache: SwarmCache) -> None:
        super().__init__(criteria)
        self._cache = cache

    def __call__(self, input_ids: torch.Tensor, scores: Any, **more: Any) -> torch.Tensor:
        ended: torch.Tensor = super().__call__(input_ids, scores, **more)
        self._cache.ended.update(ended.nonzero()[:, 0].tolist())
        return ended


class SwarmCausalLM(PreTrainedModel, GenerationMixin):  # type: ignore[misc]  # transformers is not type-checked here
    """A causal LM but for its layers. ``generate`` is transformers' own; a forward feeds one session a row.

    It has no parameters to train, save or move: it stays on the CPU, and logits are float32 whatever the swarm computes
    in. Padding is what ``attention_mask`` leaves out, and is not sent.
    """

    config_class = _RegistryConfig
    base_model_prefix = ""
    main_input_name = "input_ids"
    _supports_sdpa = True

    def __init__(
        self, config: PretrainedConfig, generation: Mapping[str, Any], feeder: Feeder, head: HeadEngine, *, name: str
    ) -> None:
        config = copy.deepcopy(config)
        config.name_or_path = name
        super().__init__(config)
        if generation:
            self.generation_config = GenerationConfig.from_dict(dict(generation))
        self.loss_type = "ForCausalLM"
        self._feeder = feeder
        self._head = head
        self.eval()
        AutoModelForCausalLM.register(_RegistryConfig, type(self), exist_ok=True)

    # -- the forward ----------------------------------------------------------------------------------------

    if TYPE_CHECKING:
        __call__: Callable[..., CausalLMOutputWithPast]

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        cache: SwarmCache | None = None,
        labels: torch.Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | torch.Tensor = 0,
        **others: Any,
    ) -> Any:
        """``[batch, n]`` ids → a ``CausalLMOutputWithPast`` with float32 ``logits``, ``[batch, kept, vocab]``.

        ``attention_mask`` is ``[batch, held + n]``; the logits of places that it leaves out are 0. ``logits_to_keep``
        says how many last places are wanted (0: all), or which. ``labels`` make a loss, without a gradient. Without
        ``use_cache`` the servers forget the text at once. Raises ``ConfigError`` by name for what is not supported,
        and what ``SwarmModel.generate`` raises.
        """
        cache, return_dict = _read_others(cache, others)
        if input_ids is None or input_ids.dim() != 2:
            raise ConfigError("input_ids are not [batch, n]", hint="give token ids, a row for each text")
        wants_cache = getattr(self.config, "use_cache", True) if use_cache is None else use_cache
        used = SwarmCache(self._feeder) if cache is None else cache
        mask = _new_places(input_ids, attention_mask, used)
        _check_positions(position_ids, used, mask)
        try:
            logits = self._logits(input_ids.cpu(), mask, used, logits_to_keep)
        except BaseException:
            if cache is None:
                used.close()
            raise
        if cache is None and not wants_cache:
            used.close()
        loss = None if labels is None else self._loss(logits, labels)
        told = {CACHE: None if cache is None and not wants_cache else used}
        output = CausalLMOutputWithPast(loss=loss, logits=logits.to(input_ids.device), **told)
        return output if return_dict else output.to_tuple()

    def _logits(
        self, ids: torch.Tensor, mask: torch.Tensor, cache: SwarmCache, keep: int | torch.Tensor
    ) -> torch.Tensor:
        length = ids.shape[1]
        places = torch.arange(length)[keep.cpu()] if isinstance(keep, torch.Tensor) else torch.arange(length)[-keep:]
        first = int(places.min()) if len(places) else length
        wanted = mask[:, first:]
        filled = torch.cat([cache.mask, mask], dim=1).any(dim=1) if cache.rows else mask.any(dim=1)
        if isinstance(keep, int) and keep and not wanted[filled].any(dim=1).all():
            raise ConfigError("a text ends in padding", hint='pad before it: tokenizer.padding_side = "left"')
        heard = cache.extend(ids, mask, length - first)
        logits = torch.zeros(*wanted.shape, self._head.vocab_size)
        for row, values in enumerate(heard):
            if not len(values):
                continue
            logits[row][wanted[row]] = torch.from_numpy(values.astype(np.float32, copy=False))
        return logits[:, places - first]

    def _loss(self, logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss: torch.Tensor = self.loss_function(
            logits=logits, labels=labels.to(logits.device), vocab_size=self._head.vocab_size
        )
        if torch.is_grad_enabled():
            loss = _NoGradient.apply(loss, torch.zeros((), requires_grad=True))  # type: ignore[no-untyped-call]
        return loss

    # -- generation -----------------------------------------------------------------------------------------

    @overload
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *more: Any,
        return_dict_in_generate: Literal[False] = False,
        **options: Any,
    ) -> torch.Tensor: ...

    @overload
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *more: Any,
        return_dict_in_generate: Literal[True],
        **options: Any,
    ) -> GenerateDecoderOnlyOutput | GenerateBeamDecoderOnlyOutput: ...

    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        *more: Any,
        **options: Any,
    ) -> torch.Tensor | GenerateDecoderOnlyOutput | GenerateBeamDecoderOnlyOutput:
        """transformers' own ``generate``; what it cannot do over a swarm is refused by name with a ``ConfigError``.

        The servers forget the text when it is done, unless it returns the cache or was given one.
        """
        _refuse_modes(self.generation_config, generation_config, options)
        own = None
        if options.get("cache") is None and options.get("past_key_values") is None:
            own = options[CACHE] = SwarmCache(self._feeder)
        returned = None
        try:
            with self._feeder.generation() as ended:
                result: Any = super().generate(inputs, generation_config, *more, **options)
                returned = result if isinstance(result, ModelOutput) else None
                ended(*(result if returned is None else returned.sequences).shape)
        finally:
            cache = options.get("cache", options.get("past_key_values"))
            if isinstance(cache, SwarmCache):
                cache.ended.clear()
            if own is not None and returned is None:
                own.close()
        return result

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], mode: Any, batch_size: int, max_cache_length: int
    ) -> None:
        """Tell the cache how long its texts get; a model without ``use_cache`` goes without."""
        cache = model_kwargs.get(CACHE)
        if generation_config.use_cache is False:
            model_kwargs.pop(CACHE, None)
        elif isinstance(cache, SwarmCache):
            cache.room = max(cache.room, max_cache_length)
            if generation_config._eos_token_tensor is not None and generation_config.num_beams == 1:
                generation_config.swarm_cache = cache  # a copy that lives as long as this generation

    def _get_stopping_criteria(self, generation_config: Any, *others: Any, **more: Any) -> StoppingCriteriaList:
        """transformers pads a row that has ended until the last one does: what it makes of padding is not asked for."""
        criteria = super()._get_stopping_criteria(generation_config, *others, **more)
        cache = generation_config.__dict__.pop("swarm_cache", None)
        return criteria if cache is None else _TellsCache(criteria, cache)

    # -- what transformers asks of a model ------------------------------------------------------------------

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    def get_input_embeddings(self) -> nn.Module:
        """The embeddings that this machine holds."""
        return self._head.embeddings

    def get_output_embeddings(self) -> nn.Module | None:
        """The LM head that this machine holds."""
        return self._head.lm_head

    def train(self, mode: bool = True) -> Self:
        if mode:
            raise MisuseError(_GRADIENTS)
        super().train(False)
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        if requires_grad:
            raise MisuseError(_GRADIENTS)
        return self

    def gradient_checkpointing_enable(self, *_: Any, **__: Any) -> NoReturn:
        raise MisuseError(_GRADIENTS)

    def save_pretrained(self, *_: Any, **__: Any) -> NoReturn:
        raise MisuseError("there is nothing to save: the weights are the swarm's")

    def resize_token_embeddings(self, *_: Any, **__: Any) -> NoReturn:
        raise MisuseError("the vocabulary is the swarm's, it cannot be resized")

    # -- life -----------------------------------------------------------------------------------------------

    def new_cache(self, room: int = 0) -> SwarmCache:
        """An empty cache for texts that grow to ``room`` tokens; beyond that, or with 0, each time for a prefill."""
        return SwarmCache(self._feeder, room=room)

    def close(self) -> None:
        """Leave the swarm; caches that are still there are worth nothing then. Idempotent."""
        self._feeder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _read_others(cache: Any, others: dict[str, Any]) -> tuple[SwarmCache | None, bool]:
    """The cache under whatever name it came, and ``return_dict``; refuses what is not supported."""
    older = others.pop("past_key_values", None)
    return_dict = others.pop("return_dict", None)
    for name, value in others.items():
        if name not in _IGNORED and _asks(name, value):
            what = f"it asks for {_REFUSED[name]}" if name in _REFUSED else ""
            raise ConfigError(f"{name} is not supported over a swarm", hint=what)
    cache = older if cache is None else cache
    if cache is not None and not isinstance(cache, SwarmCache):
        raise ConfigError(
            f"a {type(cache).__name__} holds keys and values, which lie at the servers here",
            hint="pass on the cache that the model returned",
        )
    return cache, return_dict is not False


def _refuse_modes(defaults: Any, given: Any, options: Mapping[str, Any]) -> None:
    """``ConfigError`` for a way to generate that a swarm does not offer."""
    settings = defaults if given is None else given
    for name, what in _REFUSED.items():
        own_kind = name in ("cache_implementation", "compile_config")  # in a model's defaults they are but advice
        value = options.get(name, None if own_kind and given is None else getattr(settings, name, None))
        if _asks(name, value):
            raise ConfigError(f"{name}={value!r} is not supported over a swarm", hint=f"it asks for {what}")


def _asks(name: str, value: object) -> bool:
    """False for what switches a setting off."""
    off = isinstance(value, int | float) and not value
    return not (value is None or off or (name == "num_beam_groups" and value == 1))


def _new_places(ids: torch.Tensor, attention_mask: torch.Tensor | None, cache: SwarmCache) -> torch.Tensor:
    """``[batch, n]``: which of the new places hold a token."""
    batch, new = ids.shape
    held = cache.get_seq_length()
    if cache.rows and len(cache.rows) != batch:
        raise MisuseError(f"{batch} texts for a cache of {len(cache.rows)}")
    if attention_mask is None:
        return torch.ones(batch, new, dtype=torch.bool)
    mask = attention_mask.cpu().bool()
    if mask.shape != (batch, held + new):
        raise ConfigError(
            f"an attention_mask of {list(attention_mask.shape)}", hint=f"give {[batch, held + new]}, the held included"
        )
    if cache.rows and not torch.equal(mask[:, :held], cache.mask):
        raise ConfigError("an attention_mask that says otherwise of what is held", hint="only add to it")
    return mask[:, held:]


def _check_positions(position_ids: torch.Tensor | None, cache: SwarmCache, mask: torch.Tensor) -> None:
    """A token's position is the number of tokens before it; ``ConfigError`` for any other."""
    if position_ids is None:
        return
    before = cache.mask.sum(dim=1)[:, None] if cache.rows else torch.zeros(len(mask), 1, dtype=torch.long)
    wanted = before + mask.long().cumsum(dim=1) - 1
    given = position_ids.cpu()
    fits = given.dim() == 2 and given.shape[0] in (1, len(mask)) and given.shape[1] == mask.shape[1]
    if not fits or not torch.equal(given.expand_as(mask)[mask], wanted[mask]):
        raise ConfigError("position_ids that skip places", hint="leave them out: they follow from attention_mask")
