"""Servers that do not compute in float32: what they declare, what mixes, and how far a 16-bit answer may stray."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from swarm.core.errors import NoRouteError
from swarm.models import ModelFiles

PROMPTS = ("The capital of France is", "Once upon a time, in a village between two rivers, there lived")
NEW_TOKENS = 32
BFLOAT16_BITS = 8
"""Significand bits of bfloat16, the hidden one included."""
ULPS = 4
"""How far below the largest the chosen token's reference logit may lie: two roundings on either side."""


def ulps_below_maximum(logits: torch.Tensor, chosen: int) -> float:
    """Distance of the chosen logit from the largest, in units of the last place of the row's largest magnitude.

    Of the magnitude, since the error comes from sums as large as that, however small the largest logit itself is.
    """
    exponent = math.floor(math.log2(float(logits.abs().max())))
    return float(logits.max() - logits[chosen]) / 2.0 ** (exponent - (BFLOAT16_BITS - 1))


def test_bfloat16_stays_within_ulps_of_the_reference(
    module_launcher: Any, connect: Any, demo_files: ModelFiles
) -> None:
    """Teacher-forced: 16-bit arithmetic cannot promise the same text, but each token must be a (near) maximum."""
    servers = module_launcher.chain("0:15", "15:30", options=["--dtype", "bfloat16"])
    assert [server.event("banner")["numerics"] for server in servers] == ["bfloat16", "bfloat16"]
    remote, local = connect(servers[0]), connect(servers[0], head="local")
    reference = LlamaForCausalLM.from_pretrained(demo_files.tokenizer_path.parent, dtype=torch.bfloat16).eval()
    worst, judged = 0.0, set[tuple[int, ...]]()
    for model in (remote, local):
        for prompt in PROMPTS:
            result = model.generate(prompt, max_new_tokens=NEW_TOKENS, ignore_eos=True)
            assert result.exact
            ids = model._inner.parts.tokenizer.encode(prompt, add_special_tokens=True)
            if (whole := (*ids, *result.token_ids)) in judged:
                continue
            judged.add(whole)
            with torch.inference_mode():
                logits = reference(torch.tensor([whole])).logits[0].float()
            for index, token in enumerate(result.token_ids):
                worst = max(worst, ulps_below_maximum(logits[len(ids) - 1 + index], token))
    assert worst <= ULPS, f"{worst:.1f} units in the last place"
    for server in servers:
        server.end()


def test_quantized_servers_answer_and_say_so(module_launcher: Any, connect: Any) -> None:
    first = module_launcher.server("0:15", "--quantization", "int8").ready()
    second = module_launcher.server("15:30", "--quantization", "nf4", join=first.address).ready()
    declared = ["float32+int8", "float32+nf4"]
    assert [server.event("banner")["numerics"] for server in (first, second)] == declared

    model = connect(first)
    parts = model._inner.parts
    announced = model._loop.run(parts.directory.servers(parts.files.model_id))
    assert {listing.peer: str(listing.announcement.numerics) for listing in announced} == dict(
        zip((first.peer, second.peer), declared, strict=True)
    )
    with pytest.raises(NoRouteError) as caught:
        model.generate(PROMPTS[0], max_new_tokens=8)
    assert "float32+int8 lacks layers 15 to 29" in str(caught.value)
    assert "float32+nf4 lacks layers 0 to 14" in str(caught.value)
    assert 'numerics="any"' in str(caught.value)

    result = connect(first, numerics="any").generate(PROMPTS[0], max_new_tokens=8)
    assert "Paris" in result.text
    assert not result.exact
