"""transformers' own ``generate`` over a running swarm: the model class is another one, the rest of the program is not.

python examples/with_transformers.py demo /ip4/127.0.0.1/tcp/31337/p2p/12D3KooW...
"""

from __future__ import annotations

import sys

from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList, TextStreamer

from swarm import SwarmForCausalLM


class NoLetter(LogitsProcessor):
    """No token with this letter in it."""

    def __init__(self, letter: str, tokenizer) -> None:
        texts = [tokenizer.decode([token]) for token in range(len(tokenizer))]
        self.banned = [token for token, text in enumerate(texts) if letter in text.lower()]

    def __call__(self, input_ids, scores):
        scores[:, self.banned] = -float("inf")
        return scores


def main(model_name: str, *initial_peers: str) -> None:
    with SwarmForCausalLM.from_pretrained(model_name, initial_peers=initial_peers) as model:
        tokenizer = AutoTokenizer.from_pretrained(model.name_or_path, padding_side="left")
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token

        print("one letter is missing, as it comes:")
        inputs = tokenizer("Once upon a time", return_tensors="pt")
        no_u = LogitsProcessorList([NoLetter("u", tokenizer)])
        model.generate(
            **inputs, max_new_tokens=24, do_sample=False, logits_processor=no_u, streamer=TextStreamer(tokenizer)
        )

        print("two prompts at once, the best of three beams each:")
        inputs = tokenizer(["The capital of France is", "1 2 3 5 8"], return_tensors="pt", padding=True)
        output = model.generate(**inputs, max_new_tokens=8, num_beams=3, do_sample=False)
        for text in tokenizer.batch_decode(output, skip_special_tokens=True):
            print(text.strip())


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python examples/with_transformers.py MODEL ADDRESS [ADDRESS ...]")
    main(*sys.argv[1:])
