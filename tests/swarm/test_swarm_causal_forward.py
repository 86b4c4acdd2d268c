"""``SwarmForCausalLM``'s forward and its cache beside the same model by transformers alone.

Over a whole swarm in its background loop. Real time, since callers block.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from causal_place import Place, places, step
from harness import SPANS, Engines
from tiny_model import Reference

from swarm.core.errors import ConfigError, MisuseError, PromptTooLongError


@pytest.fixture(scope="module")
def shared(engines: Engines, reference: Reference) -> Iterator[Place]:
    with places(engines, reference) as make:
        built = make(*SPANS)
        yield built
        built.end()


@pytest.fixture
def place(shared: Place) -> Iterator[Place]:
    """One swarm for all tests of this file that do it no harm; each leaves nothing behind."""
    yield shared
    gc.collect()
    assert shared.idle()


# -- the forward ------------------------------------------------------------------------------------------------


def test_logits_of_all_places_of_some_and_of_the_last(place: Place) -> None:
    inputs = place.inputs()
    mask = inputs["attention_mask"].bool()
    wanted = place.local(**inputs).logits
    ours = place.model(**inputs)
    torch.testing.assert_close(ours.logits[mask], wanted[mask], atol=2e-5, rtol=0)
    assert not ours.logits[~mask].any()
    assert place.model(**inputs, logits_to_keep=2).logits.shape == (2, 2, 260)
    some = torch.tensor([-9, -1, 20])
    torch.testing.assert_close(place.model(**inputs, logits_to_keep=some).logits[1], wanted[1, some], atol=2e-5, rtol=0)
    assert isinstance(place.model(**inputs, return_dict=False), tuple)
    assert place.model(**inputs, use_cache=False).cache is None


def test_padding_on_the_right(place: Place) -> None:
    ids, mask = torch.tensor([[5, 6, 7, 1], [8, 9, 1, 1]]), torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    ours, wanted = place.model(ids, attention_mask=mask), place.local(ids, attention_mask=mask)
    torch.testing.assert_close(ours.logits[mask.bool()], wanted.logits[mask.bool()], atol=2e-5, rtol=0)
    with pytest.raises(ConfigError, match="padding_side"):
        place.model(ids, attention_mask=mask, logits_to_keep=1)


def test_a_loss_without_a_gradient(place: Place) -> None:
    inputs = place.inputs("hello")
    ours = place.model(**inputs, labels=inputs["input_ids"])
    torch.testing.assert_close(ours.loss, place.local(**inputs, labels=inputs["input_ids"]).loss)
    with pytest.raises(MisuseError, match="gradient"):
        ours.loss.backward()
    with torch.no_grad():
        assert not place.model(**inputs, labels=inputs["input_ids"]).loss.requires_grad
    for ask in (place.model.train, place.model.requires_grad_, place.model.gradient_checkpointing_enable):
        with pytest.raises(MisuseError, match="gradient"):
            ask()
    assert place.model.eval() is place.model
    assert place.model.requires_grad_(False) is place.model
    assert not place.model.training


def test_what_it_is_made_of(place: Place) -> None:
    ids = torch.tensor([[5, 6]])
    assert torch.equal(place.model.get_input_embeddings()(ids), place.local.get_input_embeddings()(ids))
    assert torch.equal(place.model.get_output_embeddings().weight, place.local.get_output_embeddings().weight)
    assert place.model.config.vocab_size == 260
    assert (place.model.device, place.model.dtype) == (torch.device("cpu"), torch.float32)
    assert place.model.to("cpu") is place.model
    assert place.model.can_generate()
    for ask in (place.model.save_pretrained, place.model.resize_token_embeddings):
        with pytest.raises(MisuseError):
            ask("here")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"input_ids": None}, "input_ids"),
        ({"attention_mask": torch.ones(1, 3)}, r"\[1, 5\]"),
        ({"attention_mask": torch.ones(1, 1, 5, 5)}, r"\[1, 5\]"),
        ({"position_ids": torch.tensor([[3, 4, 5, 6, 7]])}, "position_ids"),
        ({"output_hidden_states": True}, "output_hidden_states"),
        ({"token_type_ids": torch.ones(1, 5)}, "token_type_ids"),
        ({"input_ids": torch.tensor([[5, 6, 7, 8, 9000]])}, "vocabulary"),
        ({"input_ids": torch.ones(1, 700).long(), "attention_mask": None}, "context"),
    ],
    ids=str,
)
def test_a_forward_of_what_cannot_be_is_refused(place: Place, changes: dict[str, Any], named: str) -> None:
    with pytest.raises((ConfigError, MisuseError, PromptTooLongError), match=named):
        place.model(**{**place.inputs("hello"), **changes})


# -- the cache --------------------------------------------------------------------------------------------------


def last(place: Place, ids: list[int]) -> torch.Tensor:
    found: torch.Tensor = place.local(torch.tensor([ids])).logits[0, -1]
    return found


def close_to(ours: torch.Tensor, wanted: torch.Tensor) -> bool:
    return bool(torch.allclose(ours, wanted, atol=2e-5, rtol=0))


def test_a_cache_is_cropped_copied_repeated_and_picked_from(place: Place) -> None:
    cache = place.model(torch.tensor([[5, 6, 7, 8]])).cache
    assert close_to(step(place, cache, [9])[0], last(place, [5, 6, 7, 8, 9]))
    cache.crop(-3)
    assert (cache.get_seq_length(), repr(cache)) == (2, "SwarmCache(batch_size=1, length=2)")
    assert close_to(step(place, cache, [10])[0], last(place, [5, 6, 10]))

    copied = copy.deepcopy(cache)
    assert close_to(step(place, copied, [11])[0], last(place, [5, 6, 10, 11]))
    assert close_to(step(place, cache, [12])[0], last(place, [5, 6, 10, 12])), "the copy is another one"

    cache.batch_repeat_interleave(3)
    ours = step(place, cache, [20], [21], [22])
    for row, token in enumerate((20, 21, 22)):
        assert close_to(ours[row], last(place, [5, 6, 10, 12, token]))
    cache.batch_select_indices(torch.tensor([2, 2, 0]))
    ours = step(place, cache, [30], [31], [32])
    for row, tokens in enumerate(([22, 30], [22, 31], [20, 32])):
        assert close_to(ours[row], last(place, [5, 6, 10, 12, *tokens]))
    cache.batch_select_indices(torch.tensor([1]))
    assert close_to(step(place, cache, [40])[0], last(place, [5, 6, 10, 12, 22, 31, 40]))
    cache.reset()
    assert cache.get_seq_length() == 0
    assert close_to(step(place, cache, [50, 51])[0], last(place, [50, 51]))


def test_a_padded_batch_is_cropped_by_its_padded_length(place: Place) -> None:
    inputs = place.inputs()
    cache = place.model(**inputs).cache
    cache.crop(-25)
    assert [row.tokens for row in cache.rows] == [[], inputs["input_ids"][1, :2].tolist()]
    mask = torch.cat([inputs["attention_mask"][:, :2], torch.ones(2, 1).long()], dim=1)
    ours = place.model(torch.tensor([[60], [61]]), attention_mask=mask, cache=cache).logits[:, -1]
    assert close_to(ours[0], last(place, [60]))
    assert close_to(ours[1], last(place, [*inputs["input_ids"][1, :2].tolist(), 61]))


def test_what_beams_share_is_not_computed_again(place: Place) -> None:
    cache = place.model(torch.tensor([[5, 6, 7, 8]] * 3)).cache
    step(place, cache, [20], [21], [22])
    for node in place.swarm.nodes:
        node.rows.clear()
    cache.reorder_cache(torch.tensor([1, 1, 0]))
    step(place, cache, [30], [31], [32])
    assert [sum(node.rows) for node in place.swarm.nodes] == [4, 4, 4], "three new tokens, and one of a beam that split"


def test_a_cache_that_nobody_has_frees_the_servers(place: Place) -> None:
    output = place.model(**place.inputs("hello"))
    assert not place.swarm.nodes[0].idle
    del output
    assert place.idle()


def test_a_cache_misused(place: Place) -> None:
    cache = place.model(**place.inputs()).cache
    with pytest.raises(MisuseError, match="of 2"):
        step(place, cache, [5])
    with pytest.raises(ConfigError, match="only add"):
        place.model(torch.tensor([[5], [6]]), attention_mask=torch.ones(2, 28), cache=cache)
    for wrong in (1, -28):
        with pytest.raises(MisuseError, match="crop"):
            cache.crop(wrong)
