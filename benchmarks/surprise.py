"""How likely the model itself finds a text: what any server could compute that keeps a whole small model beside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from swarm.models.files import ModelFiles

UNLIKELY = -8.0
"""A token of a lower log probability is a stray one."""


class Reader:
    """transformers' model on the same files, one thread, float32."""

    def __init__(self, files: ModelFiles) -> None:
        torch.set_num_threads(1)
        self._model: Any = AutoModelForCausalLM.from_pretrained(files.tokenizer_path.parent, dtype=torch.float32)
        self._model.eval()

    def surprise(self, ids: Sequence[int], first: int, end: int) -> dict[str, float]:
        """Statistics of the log probabilities of tokens ``[first, end)`` after those before them."""
        with torch.no_grad():
            logits = self._model(torch.tensor([list(ids[:end])]), use_cache=False).logits[0]
        chosen = torch.log_softmax(logits[first - 1 : end - 1].float(), dim=-1)
        picked = chosen.gather(1, torch.tensor(list(ids[first:end]))[:, None])[:, 0].numpy()
        found = np.asarray(picked, np.float64)
        low, middle = np.quantile(found, [0.1, 0.5])
        return {
            "mean": float(found.mean()),
            "spread": float(found.std()),
            "least": float(found.min()),
            "low": float(low),
            "middle": float(middle),
            "first": float(found[:3].mean()),
            "last": float(found[-3:].mean()),
            "stray": float((found < UNLIKELY).mean()),
        }
