"""The demo model through three real server processes says what transformers says: token for token in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, LlamaForCausalLM

from swarm.client.blocking import SwarmModel
from swarm.client.results import GenerationResult
from swarm.models import ModelFiles

NEW_TOKENS = 128
LONG_TOKENS = 500

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n    ",
    "Once upon a time, in a village between two rivers, there lived",
    "1 2 3 5 8 13",
    # Over 500 tokens: several prefill chunks, in several stages at once.
    "Notes of the harbour master. "
    + " ".join(
        f"Day {day}: {5 + day % 7} ships came in, the {('wheat', 'salt', 'cloth')[day % 3]} was weighed "
        f"and the wind blew from the {('north', 'east', 'south', 'west')[day % 4]}."
        for day in range(1, 26)
    )
    + " In short:",
)


@dataclass(frozen=True, slots=True)
class Reference:
    """A prompt as transformers tokenizes it, and its greedy continuation."""

    prompt: str
    ids: tuple[int, ...]
    tokens: tuple[int, ...]


@pytest.fixture(scope="module")
def references(demo_files: ModelFiles) -> list[Reference]:
    folder = demo_files.tokenizer_path.parent
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    found = []
    for prompt in PROMPTS:
        ids = tokenizer(prompt, return_tensors="pt")
        with torch.inference_mode():
            whole = model.generate(**ids, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)[0].tolist()
        start = ids["input_ids"].shape[1]
        found.append(Reference(prompt, tuple(whole[:start]), tuple(whole[start:])))
    assert max(len(reference.ids) for reference in found) > LONG_TOKENS
    assert all(len(reference.tokens) == NEW_TOKENS for reference in found)
    return found


def check(results: Sequence[GenerationResult], references: Sequence[Reference]) -> None:
    for result, reference in zip(results, references, strict=True):
        assert result.prompt_tokens == len(reference.ids)
        assert result.token_ids == reference.tokens, f"another text for {reference.prompt[:40]!r}"
        assert result.finish_reason == "length"
        assert result.exact
        assert [(stage.start, stage.end) for stage in result.chain] == [(0, 10), (10, 20), (20, 30)]


def test_greedy_equals_transformers_with_the_remote_head(model30: SwarmModel, references: list[Reference]) -> None:
    """A session by itself, for the shortest and the longest prompt; those between them are in the next test too."""
    asked: dict[str, Any] = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True}
    alone = [references[0], references[-1]]
    check([model30.generate(reference.prompt, **asked) for reference in alone], alone)


@pytest.mark.parametrize("head", ["local", "remote"])
def test_sessions_at_once_equal_transformers(
    head: str, model30: SwarmModel, local30: SwarmModel, references: list[Reference]
) -> None:
    """Batched raggedly with one another at every server, the long prompt's prefill among the others' decode steps."""
    model = local30 if head == "local" else model30
    results = model.generate(list(PROMPTS), max_new_tokens=NEW_TOKENS, ignore_eos=True)
    check(results, references)


@pytest.mark.parametrize("seed", [1, 2**62])
def test_seeded_sampling_says_the_same_with_either_head(model30: SwarmModel, local30: SwarmModel, seed: int) -> None:
    asked: dict[str, Any] = {
        "max_new_tokens": 32,
        "temperature": 0.9,
        "top_k": 50,
        "top_p": 0.95,
        "repetition_penalty": 1.1,
        "seed": seed,
    }
    messages = [{"role": "user", "content": "Tell me something about the sea."}]
    remote = model30.generate(messages=messages, **asked)
    local = local30.generate(messages=messages, **asked)
    assert remote.token_ids == local.token_ids
    assert remote.text == local.text
    assert remote.seed == local.seed == seed


def test_seeds_differ_and_greedy_is_another_text(model30: SwarmModel) -> None:
    texts = {
        model30.generate(PROMPTS[2], max_new_tokens=16, temperature=temperature, seed=seed).text
        for temperature, seed in ((0.0, 1), (0.0, 2), (1.0, 1), (1.0, 2))
    }
    assert len(texts) == 3, "greedy twice, and two seeds"
