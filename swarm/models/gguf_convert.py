"""One llama-architecture GGUF file into the folder form the rest of the house reads: safetensors, JSON, tokenizer.

The weights are dequantized to float32 with gguf's own numpy functions, one tensor in memory at a time; the result is
the same, bit for bit, on every machine with IEEE arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from swarm.core.errors import ModelError
from swarm.models.progress import Progress
from swarm.models.safetensors_file import write_file

CONTROL_TOKEN = 3
"""``token_type`` of a special token in GGUF."""

_GLOBAL_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def convert_gguf(source: Path, folder: Path, progress: Progress) -> str:
    """Write config, generation config, tokenizer and ``model.safetensors`` into ``folder``; return the latter's sha256.

    Raises ``ModelError`` if the file is no GGUF, no llama, or its tokenizer is not byte-level BPE with the SmolLM
    pre-tokenizer.
    """
    import gguf

    try:
        reader = gguf.GGUFReader(str(source))
    except (ValueError, OSError, IndexError) as error:
        raise ModelError(f"{source.name} is not a GGUF file: {error}") from error
    fields = {name: field.contents() for name, field in reader.fields.items()}
    kinds = tuple(fields.get(key) for key in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre"))
    if kinds != ("llama", "gpt2", "smollm"):
        raise ModelError(f"{source.name} holds {kinds}, which this conversion does not know")
    tensors = {_hf_name(tensor.name): tensor for tensor in reader.tensors}
    config = _config(fields, tied="lm_head.weight" not in tensors)
    _write_json(folder / "config.json", config)
    _write_json(folder / "generation_config.json", _generation_config(fields))
    _write_json(folder / "tokenizer_config.json", _tokenizer_config(fields))
    (folder / "tokenizer.json").write_text(_tokenizer_json(fields), encoding="utf-8")

    layout = {name: ("F32", tuple(int(n) for n in reversed(tensors[name].shape))) for name in sorted(tensors)}
    total = sum(4 * int(np.prod(shape)) for _, shape in layout.values())

    def floats() -> Iterator[tuple[str, memoryview]]:
        for name in layout:
            values = gguf.dequantize(tensors[name].data, tensors[name].tensor_type).astype("<f4", copy=False)
            yield name, np.ascontiguousarray(_reorder(name, values, config)).reshape(-1).view(np.uint8).data

    return write_file(
        folder / "model.safetensors", layout, floats(), lambda done: progress("converting weights", done, total)
    )


def _hf_name(name: str) -> str:
    stem, _, suffix = name.rpartition(".")
    if stem in _GLOBAL_NAMES:
        return f"{_GLOBAL_NAMES[stem]}.{suffix}"
    block, _, rest = stem.removeprefix("blk.").partition(".")
    if not (stem.startswith("blk.") and block.isdecimal() and rest in _LAYER_NAMES):
        raise ModelError(f"unknown tensor {name} in the GGUF file")
    return f"model.layers.{block}.{_LAYER_NAMES[rest]}.{suffix}"


def _reorder(name: str, rows: np.ndarray[Any, Any], config: dict[str, Any]) -> np.ndarray[Any, Any]:
    """Rows of query and key projections: GGUF keeps the two rows of a rotated pair adjacent, transformers keeps each
    head's first halves before its second halves.

    rows: [heads * head_dim, hidden] -> the same shape.
    """
    if "q_proj" in name:
        heads = config["num_attention_heads"]
    elif "k_proj" in name:
        heads = config["num_key_value_heads"]
    else:
        return rows
    pairs = rows.reshape(heads, -1, 2, rows.shape[-1])  # [heads, head_dim / 2, 2, hidden]
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _config(fields: dict[str, Any], *, tied: bool) -> dict[str, Any]:
    hidden, heads = int(fields["llama.embedding_length"]), int(fields["llama.attention.head_count"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "dtype": "float32",
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "initializer_range": 0.02,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "max_position_embeddings": int(fields["llama.context_length"]),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
        # GGUF stores a float32; its shortest decimal form is what the original says.
        "rms_norm_eps": float(str(np.float32(fields["llama.attention.layer_norm_rms_epsilon"]))),
        "rope_parameters": {"rope_theta": float(fields["llama.rope.freq_base"]), "rope_type": "default"},
        "tie_word_embeddings": tied,
        "use_cache": True,
        "vocab_size": int(fields["llama.vocab_size"]),
    }


def _generation_config(fields: dict[str, Any]) -> dict[str, Any]:
    keys = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {key: int(fields[f"tokenizer.ggml.{name}_token_id"]) for key, name in keys.items()}


def _tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    return {
        "add_prefix_space": False,
        "chat_template": fields["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(fields["llama.context_length"]),
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{key: tokens[int(fields[f"tokenizer.ggml.{name}_token_id"])] for key, name in names.items()},
    }


def _tokenizer_json(fields: dict[str, Any]) -> str:
    """Byte-level BPE; SmolLM splits digits one by one before GPT-2's own pattern."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in fields["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [
        token for token, kind in zip(tokens, fields["tokenizer.ggml.token_type"], strict=True) if kind == CONTROL_TOKEN
    ]
    tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    return str(tokenizer.to_str(pretty=False))


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
