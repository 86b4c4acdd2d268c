"""Which checkpoint tensors make which parameter of a span.

Since transformers 5 a checkpoint's tensors are not always the model's: experts are fused, projections split or
renamed. The library carries the rules for every family; this room applies them to the tensors of a span only, so that
no family is named here.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

from swarm.core.errors import ModelError


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one or more parameters are made: from ``sources`` (checkpoint names, in order) by ``converter``.

    ``targets`` are names in the whole model. Without a converter the one source is the one target.
    """

    targets: tuple[str, ...]
    sources: tuple[str, ...]
    patterns: tuple[str, ...]
    converter: WeightConverter | None

    def make(self, whole: PreTrainedModel, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The parameters' values from the sources' tensors; ``ModelError`` if the library's rule does not fit them.

        ``whole`` is the model on meta: some rules look at shapes in it.
        """
        if self.converter is None:
            return {self.targets[0]: tensors[self.sources[0]]}
        rule = copy.deepcopy(self.converter)
        for source, pattern in zip(self.sources, self.patterns, strict=True):
            rule.add_tensor(self.targets[0], source, pattern, tensors[source])
        try:
            made = rule.convert(self.targets[0], model=whole, config=whole.config)
        except (ValueError, RuntimeError, KeyError, IndexError, AttributeError) as error:
            raise ModelError(f"the tensors of {self.targets[0]} do not fit together: {error}") from error
        return {name: value[0] if isinstance(value, list) else value for name, value in made.items()}


def recipes_for(whole: PreTrainedModel, wanted: Collection[str], stored: Iterable[str]) -> list[Recipe]:
    """A recipe for every wanted parameter or persistent buffer, in natural order (layer by layer).

    ``whole`` is the family's model on meta, ``wanted`` are names in it, ``stored`` the checkpoint's tensor names.
    Raises ``ModelError`` naming what the checkpoint lacks.
    """
    rules = get_model_conversion_mapping(whole)
    renamings = [rule for rule in rules if isinstance(rule, WeightRenaming)]
    converters = [rule for rule in rules if isinstance(rule, WeightConverter)]
    owner = {pattern: rule for rule in converters for pattern in rule.source_patterns}
    known = whole.state_dict()
    prefix = whole.base_model_prefix

    sources: dict[str, list[tuple[str, str | None]]] = {}
    for key in sorted(stored, key=dot_natural_key):
        target, pattern = rename_source_key(key, renamings, converters, prefix, known)
        if target not in known and key in known:
            target, pattern = rename_source_key(key, [], [], prefix, known)
        if target in known:
            sources.setdefault(target, []).append((key, pattern))

    recipes = [_recipe(target, found, owner) for target, found in sources.items()]
    needed = [recipe for recipe in recipes if any(target in wanted for target in recipe.targets)]
    made = {target for recipe in needed for target in recipe.targets}
    if missing := sorted(set(wanted) - made, key=dot_natural_key):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelError(f"the checkpoint has no tensors for {missing[0]}{more}", hint="is it the complete model?")
    return sorted(needed, key=lambda recipe: dot_natural_key(recipe.targets[0]))


def _recipe(target: str, found: list[tuple[str, str | None]], owner: Mapping[str, WeightConverter]) -> Recipe:
    keys, patterns = zip(*found, strict=True)
    if patterns[0] is None:
        return Recipe((target,), keys[:1], (), None)
    rule = owner[patterns[0]]
    first, *others = rule.target_patterns
    targets = (target, *(target.replace(first, other) for other in others))
    return Recipe(targets, keys, tuple(str(pattern) for pattern in patterns), rule)
