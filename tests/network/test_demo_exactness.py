"""The demo model through three real server processes says what transformers says: token for token in float32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from transformers import AutoTokenizer

from benchmarks.oracle import Oracle
from benchmarks.questions import Answered
from swarm.client.blocking import SwarmModel
from swarm.client.request import Options, read_options
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


@dataclass
class Judge:
    """Says of an answer to one of the prompts whether it is transformers' greedy one; of each prompt it asks once."""

    oracle: Oracle
    contexts: dict[str, tuple[int, ...]]
    """The prompts' tokens, as transformers tokenizes them."""
    right: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def check(self, prompts: Sequence[str], results: Sequence[GenerationResult]) -> None:
        for prompt, result in zip(prompts, results, strict=True):
            if prompt not in self.right:
                assert self.verdict(prompt, result) == "", prompt[:40]
                self.right[prompt] = result.token_ids
            assert result.token_ids == self.right[prompt], f"another text for {prompt[:40]!r}"
            assert len(result.token_ids) == NEW_TOKENS
            assert result.prompt_tokens == len(self.contexts[prompt])
            assert result.finish_reason == "length"
            assert result.exact
            assert [(stage.start, stage.end) for stage in result.chain] == [(0, 10), (10, 20), (20, 30)]

    def verdict(self, prompt: str, result: GenerationResult) -> str:
        count = len(result.token_ids)
        params = read_options(Options(max_new_tokens=count)).params
        return self.oracle.verdict(Answered("greedy", self.contexts[prompt], params, count, True, result))


@pytest.fixture(scope="module")
def judge(demo_files: ModelFiles) -> Judge:
    tokenizer = AutoTokenizer.from_pretrained(demo_files.tokenizer_path.parent)
    contexts = {prompt: tuple(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS}
    assert max(map(len, contexts.values())) > LONG_TOKENS
    return Judge(Oracle(demo_files), contexts)


def test_greedy_equals_transformers_with_the_remote_head(model30: SwarmModel, judge: Judge) -> None:
    """A session by itself, for the shortest and the longest prompt; those between them are in the next test too."""
    alone = [PROMPTS[0], PROMPTS[-1]]
    results = [model30.generate(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True) for prompt in alone]
    judge.check(alone, results)

    *kept, last = results[0].token_ids[:4]
    assert judge.verdict(alone[0], replace(results[0], token_ids=(*kept, last))) == ""
    wrong = replace(results[0], token_ids=(*kept, (last + 1) % 1000))
    assert judge.verdict(alone[0], wrong).startswith("token 3 of 4 is "), "the judge would say so"


@pytest.mark.parametrize("head", ["local", "remote"])
def test_sessions_at_once_equal_transformers(head: str, model30: SwarmModel, local30: SwarmModel, judge: Judge) -> None:
    """Batched raggedly with one another at every server, the long prompt's prefill among the others' decode steps."""
    model = local30 if head == "local" else model30
    judge.check(PROMPTS, model.generate(list(PROMPTS), max_new_tokens=NEW_TOKENS, ignore_eos=True))


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
