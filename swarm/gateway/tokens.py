"""Tokens as the OpenAI API shows them beside their log probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from swarm.client.results import TokenLogprob
from swarm.client.tokenizer import Tokenizer

CACHED = 65536
"""Tokens whose text is remembered: each step shows up to 21, most of them again and again."""
UNLIKELY = -9999.0
"""What the OpenAI API says of a token that cannot come."""
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class TokenTexts:
    """Shows tokens of one model."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self.text = lru_cache(CACHED)(self._text)
        """What a token adds in the middle of a text; U+FFFD where it is but a part of a character."""

    def _text(self, token_id: int) -> str:
        """A decoder may strip the first token's leading space, so the token is decoded after itself."""
        once = self._tokenizer.decode([token_id], skip_special_tokens=False)
        twice = self._tokenizer.decode([token_id, token_id], skip_special_tokens=False)
        return twice[len(once) :] if twice.startswith(once) else once

    def chat(self, tokens: Sequence[TokenLogprob]) -> dict[str, object]:
        """``logprobs`` of a chat's choice."""
        content = [
            {
                **self._entry(token.token_id, token.logprob),
                "top_logprobs": [self._entry(token_id, logprob) for token_id, logprob in token.top],
            }
            for token in tokens
        ]
        return {"content": content, "refusal": None}

    def legacy(self, tokens: Sequence[TokenLogprob], offset_chars: int) -> dict[str, object]:
        """``logprobs`` of a text completion's choice; the first token begins ``offset_chars`` into the answer."""
        texts = [self.text(token.token_id) for token in tokens]
        offsets = [offset_chars + sum(map(len, texts[:place])) for place in range(len(texts))]
        return {
            "tokens": texts,
            "token_logprobs": [_shown(token.logprob) for token in tokens],
            "top_logprobs": [
                {self.text(token_id): _shown(logprob) for token_id, logprob in reversed(token.top)} for token in tokens
            ],
            "text_offset": offsets,
        }

    def _entry(self, token_id: int, logprob: float) -> dict[str, object]:
        text = self.text(token_id)
        whole = None if _REPLACEMENT in text else list(text.encode())
        return {"token": text, "logprob": _shown(logprob), "bytes": whole}


def _shown(logprob: float) -> float:
    """JSON has no infinity."""
    return max(logprob, UNLIKELY)
