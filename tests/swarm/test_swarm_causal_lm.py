"""``SwarmForCausalLM`` beside the same model by transformers alone: the same calls, the same answers.

Over a whole swarm in its background loop. Real time, since callers block.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from causal_place import PROMPTS, Maker, Place, places, step
from harness import SPANS, Engines, Node
from tiny_model import Reference
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    StoppingCriteria,
    StoppingCriteriaList,
    TextIteratorStreamer,
    pipeline,
)
from transformers.utils import logging as transformers_logging

from swarm import SwarmForCausalLM, SwarmModel
from swarm.core.errors import ConfigError, MisuseError, PeerLostError, SwarmError
from swarm.engine.causal_cache import SwarmCache


@pytest.fixture(scope="module")
def make(engines: Engines, reference: Reference) -> Iterator[Maker]:
    with places(engines, reference) as make:
        yield make


@pytest.fixture(scope="module")
def shared(make: Maker) -> Iterator[Place]:
    built = make(*SPANS)
    yield built
    built.end()


@pytest.fixture
def place(shared: Place) -> Iterator[Place]:
    """One swarm for all tests of this file that do it no harm; each leaves nothing behind."""
    yield shared
    gc.collect()
    assert shared.idle()


class Favours(LogitsProcessor):  # type: ignore[misc]  # transformers is not type-checked here
    """Adds to one token's score, more with every token, and counts how often it was asked."""

    calls = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        scores[:, 77] += 0.2 * input_ids.shape[1]
        return scores


class After(StoppingCriteria):  # type: ignore[misc]  # transformers is not type-checked here
    """Ends when so many tokens stand there; ``do`` is done once, at half of them."""

    def __init__(self, length: int, do: Callable[[], object] = lambda: None) -> None:
        self.length = length
        self.do = do

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        if input_ids.shape[1] == self.length // 2:
            self.do()
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


# -- generate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"repetition_penalty": 1.4, "no_repeat_ngram_size": 3, "min_new_tokens": 12},
        {"do_sample": True, "temperature": 1.3, "top_p": 0.9},
        {"do_sample": True, "top_k": 8, "num_return_sequences": 3},
        {"num_beams": 3},
        {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.3, "early_stopping": True},
        {"num_beams": 2, "do_sample": True},
        {"use_cache": False},
        {"prefill_chunk_size": 4},
        {"guidance_scale": 1.5},
    ],
    ids=str,
)
def test_a_batch_with_padding_equals_transformers(place: Place, options: dict[str, Any]) -> None:
    ours, theirs = place.both(place.inputs(), **{"max_new_tokens": 12, "do_sample": False} | options)
    assert torch.equal(ours, theirs), (ours, theirs)


@pytest.mark.parametrize("length", [1, 300])
def test_one_text_short_or_of_several_chunks(place: Place, length: int) -> None:
    inputs = {"input_ids": torch.arange(4, 4 + length)[None] % 256, "attention_mask": torch.ones(1, length).long()}
    ours, theirs = place.both(inputs, max_new_tokens=16, do_sample=False)
    assert torch.equal(ours, theirs)


def test_processors_criteria_and_a_generation_config(place: Place) -> None:
    found = []
    for model in (place.model, place.local):
        favours = Favours()
        answer = model.generate(
            **place.inputs(),
            generation_config=GenerationConfig(max_new_tokens=40, do_sample=False, eos_token_id=1, pad_token_id=1),
            logits_processor=LogitsProcessorList([favours]),
            stopping_criteria=StoppingCriteriaList([After(41)]),
        )
        found.append((answer.tolist(), favours.calls))
    assert found[0] == found[1]
    assert len(found[0][0][0]) == 41


def test_scores_logits_and_a_cache_that_goes_on(place: Place) -> None:
    asked = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False, "return_dict_in_generate": True}
    ours, theirs = place.both(place.inputs(), output_scores=True, output_logits=True, **asked)
    assert torch.equal(ours.sequences, theirs.sequences)
    for name in ("scores", "logits"):
        for mine, other in zip(ours[name], theirs[name], strict=True):
            torch.testing.assert_close(mine, other, atol=2e-5, rtol=0)
    assert place.model.compute_transition_scores(ours.sequences, ours.scores).shape == (2, 6)

    cache = ours.cache
    assert (cache.get_seq_length(), cache.batch_size) == (ours.sequences.shape[1] - 1, 2)
    assert not place.swarm.nodes[0].idle, "its sessions live"
    assert torch.equal(*goes_on(place, ours.sequences, cache))
    cache.close()
    assert place.idle()


def goes_on(place: Place, ids: torch.Tensor, cache: SwarmCache) -> tuple[torch.Tensor, torch.Tensor]:
    """Four more tokens with a cache of a batch of ``place.inputs()``, and without one by transformers."""
    mask = place.inputs()["attention_mask"]
    mask = torch.cat([mask, torch.ones(2, ids.shape[1] - mask.shape[1]).long()], dim=1)
    asked = {"attention_mask": mask, "max_new_tokens": 4, "do_sample": False}
    return place.model.generate(ids, cache=cache, **asked), place.local.generate(ids, **asked)


def test_a_cache_with_room_over_two_generations(place: Place) -> None:
    cache = place.model.new_cache(64)
    first = place.model.generate(**place.inputs(), cache=cache, max_new_tokens=5, do_sample=False)
    for node in place.swarm.nodes:
        node.rows.clear()
    assert torch.equal(*goes_on(place, first, cache))
    assert [sum(node.rows) for node in place.swarm.nodes] == [8, 8, 8], "nothing is computed twice"


class Ends(LogitsProcessor):  # type: ignore[misc]  # transformers is not type-checked here
    """Ends the first row after so many tokens."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, 1] = -torch.inf
        if input_ids.shape[1] >= self.length:
            scores[0] = torch.where(torch.arange(scores.shape[1]) == 1, 0.0, -torch.inf)
        return scores


@pytest.mark.parametrize("sample", [False, True])
def test_a_row_that_has_ended_is_not_fed_with_padding(place: Place, sample: bool) -> None:
    inputs = place.inputs()
    length = inputs["input_ids"].shape[1]
    cache = place.model.new_cache(64)
    found = []
    for model, given in ((place.model, {"cache": cache}), (place.local, {})):
        torch.manual_seed(3)
        ends = LogitsProcessorList([Ends(length + 3)])
        found.append(model.generate(**inputs, **given, do_sample=sample, max_new_tokens=12, logits_processor=ends))
    assert torch.equal(*found)
    assert found[0][0, length + 3 :].tolist() == [1] * 9
    assert [row.held for row in cache.rows] == [5 + 3, length + 11]
    assert torch.equal(*goes_on(place, found[0], cache)), "what it was not fed it is fed when somebody reads on"


def test_a_streamer_in_another_thread(place: Place) -> None:
    streamer = TextIteratorStreamer(place.tokenizer, skip_prompt=True, timeout=60.0)
    asked = {"max_new_tokens": 24, "do_sample": False, **place.inputs("hello")}
    thread = threading.Thread(target=place.model.generate, kwargs={**asked, "streamer": streamer})
    thread.start()
    text = "".join(streamer)
    thread.join()
    answer = place.local.generate(**asked)[0, 5:]
    assert text == place.tokenizer.decode(answer)


def test_several_generations_at_once(place: Place) -> None:
    wanted = {prompt: place.local.generate(**place.inputs(prompt), max_new_tokens=8).tolist() for prompt in PROMPTS}
    found: dict[str, Any] = {}

    def ask(prompt: str) -> None:
        found[prompt] = place.model.generate(**place.inputs(prompt), max_new_tokens=8).tolist()

    threads = [threading.Thread(target=ask, args=(prompt,)) for prompt in PROMPTS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == wanted


def test_a_pipeline_takes_it_without_a_word(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    asked = {"max_new_tokens": 8, "do_sample": False}
    transformers_logging.enable_propagation()
    try:
        ours = pipeline("text-generation", model=place.model, tokenizer=place.tokenizer)(PROMPTS, **asked)
    finally:
        transformers_logging.disable_propagation()
    assert ours == pipeline("text-generation", model=place.local, tokenizer=place.tokenizer)(PROMPTS, **asked)
    assert "not supported" not in caplog.text
    [chat] = pipeline("text-generation", model=place.model, tokenizer=place.tokenizer)(
        [{"role": "user", "content": "hi"}], **asked
    )
    assert chat["generated_text"][-1]["role"] == "assistant"


@pytest.mark.parametrize(
    "options",
    [
        {"assistant_model": None},
        {"prompt_lookup_num_tokens": 3},
        {"penalty_alpha": 0.6, "top_k": 4},
        {"dola_layers": "low"},
        {"num_beams": 4, "num_beam_groups": 2},
        {"force_words_ids": [[5]]},
        {"cache_implementation": "static"},
        {"output_attentions": True, "return_dict_in_generate": True},
        {"output_hidden_states": True},
        {"inputs_embeds": torch.zeros(1, 2, 32)},
        {"past_key_values": "a DynamicCache"},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_a_swarm_cannot_do_is_refused_by_name(place: Place, options: dict[str, Any]) -> None:
    if "assistant_model" in options:
        options = {"assistant_model": place.local}
    if "past_key_values" in options:
        options = {"cache": DynamicCache()}
    named = "DynamicCache" if "cache" in options else next(iter(options))
    with pytest.raises(ConfigError, match=named if named != "num_beams" else "num_beam_groups"):
        place.model.generate(**place.inputs("x"), max_new_tokens=4, **options)


# -- trouble ----------------------------------------------------------------------------------------------------


@pytest.fixture
def own(make: Maker) -> Iterator[Place]:
    """A swarm with a second server for every span, to be harmed."""
    built = make(*SPANS, *SPANS, heal_timeout_s=1.0)
    yield built
    built.end()


def servers(place: Place, cache: SwarmCache, row: int = 0) -> list[Node]:
    """Who serves a row, in order."""
    nodes = {str(node.peer): node for node in place.swarm.nodes}
    return [nodes[stage.peer] for stage in cache.rows[row].session.chain]  # type: ignore[attr-defined]


def test_a_server_dies_in_the_middle_and_the_tokens_are_the_same(own: Place) -> None:
    inputs = own.inputs()
    cache = own.model.new_cache()

    def kill() -> None:
        own.loop.run(own.swarm.crash(servers(own, cache)[1]))

    asked = {"max_new_tokens": 16, "min_new_tokens": 16, "do_sample": False}
    criteria = StoppingCriteriaList([After(2 * (inputs["input_ids"].shape[1] + 6), kill)])
    ours = own.model.generate(**inputs, **asked, cache=cache, stopping_criteria=criteria)
    assert torch.equal(ours, own.local.generate(**inputs, **asked))
    [heal] = cache.rows[0].session.heals  # type: ignore[attr-defined]
    assert (heal.lost[0].start, heal.lost[0].end) == (1, 3)
    assert heal.replaced_by


def test_nobody_takes_over_an_error_of_ours_and_nothing_stays_reserved(own: Place) -> None:
    def kill() -> None:
        for node in own.swarm.nodes[1:2] + own.swarm.nodes[4:5]:
            own.loop.run(own.swarm.crash(node))

    criteria = StoppingCriteriaList([After(14, kill)])
    with pytest.raises(PeerLostError, match="1:3") as caught:
        own.model.generate(**own.inputs("hello"), max_new_tokens=16, min_new_tokens=16, stopping_criteria=criteria)
    assert caught.value.hint
    assert own.idle(), "although the traceback still has the cache"


def test_a_model_that_is_closed(make: Maker) -> None:
    built = make("0:5")
    with built.model as model:
        cache = model(**built.inputs("hello")).cache
        built.down()
    with pytest.raises(MisuseError, match="closed"):
        step(built, cache, [5])


def test_a_model_without_a_head_here(place: Place) -> None:
    async def connect() -> SwarmModel:
        return SwarmModel(place.swarm.client("remote"), place.loop)

    with pytest.raises(ConfigError, match='head="local"'):
        SwarmForCausalLM.of(place.loop.run(connect()))


@pytest.mark.parametrize(
    "options", [{"device_map": "cuda:0"}, {"torch_dtype": torch.bfloat16}, {"head": "remote"}, {"nonsense": 1}], ids=str
)
def test_arguments_of_from_pretrained_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(SwarmError, match=next(iter(options))):
        SwarmForCausalLM.from_pretrained("demo", initial_peers=["/ip4/127.0.0.1/tcp/1/p2p/x"], **options)


def test_arguments_that_ask_for_nothing_are_taken() -> None:
    with pytest.raises(ConfigError, match="initial peers"):
        SwarmForCausalLM.from_pretrained("demo", device_map="auto", torch_dtype="auto", trust_remote_code=False)
