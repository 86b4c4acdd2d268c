"""A model of five layers, written to a folder, and what transformers alone makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from transformers import AutoModelForCausalLM, LlamaConfig

from swarm.client.tokenizer import Tokenizer
from swarm.models.folder import open_folder

LAYERS = 5
CONTEXT = 640
SPECIAL = ("<s>", "</s>", "<|user|>", "<|assistant|>")
TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_model(folder: Path, seed: int = 0, family: type[Any] = LlamaConfig, **changes: Any) -> None:
    """A tiny random model, a llama unless told otherwise, as ``save_pretrained`` leaves it.

    With a byte tokenizer and a chat template.
    """
    vocabulary = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Backend(models.BPE({token: index for index, token in enumerate(vocabulary)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    fields: dict[str, Any] = {
        "vocab_size": len(vocabulary),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 1,
    }
    config = family(**(fields | changes))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 0.25)
            else:
                parameter.uniform_(0.3, 1.0)
    model.save_pretrained(folder)
    backend.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


class Reference:
    """The whole model by transformers alone."""

    def __init__(self, folder: Path) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.tokenizer = Tokenizer.of(open_folder(folder))

    def greedy(self, prompt: str | Sequence[int], new_tokens: int, **options: Any) -> list[int]:
        """transformers' own greedy ids after ``prompt``; the end token, if it comes, included."""
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        with torch.no_grad():
            out = self.model.generate(
                torch.tensor([ids]),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long),
                do_sample=False,
                max_new_tokens=new_tokens,
                **options,
            )
        return out[0, len(ids) :].tolist()

    def logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Float64 ``[n, vocab]``."""
        with torch.no_grad():
            return self.model(torch.tensor([list(ids)]), use_cache=False).logits[0].double()
