"""The bodies of answers, whole and in pieces, as the OpenAI API defines them, with a ``swarm`` field of our own."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from swarm.client.evidence.records import Verification
from swarm.client.results import ChainStage, GenerationResult, TokenLogprob
from swarm.gateway.tokens import TokenTexts

Json = dict[str, object]

MAX_ROUTE_CHARS = 4000
"""Many clients take no header over 8190 bytes. The body names every chain in full."""


@dataclass(frozen=True, slots=True)
class Heading:
    """What every body of one answer begins with. ``created_s`` counts from 1970."""

    created_s: float
    model: str
    fingerprint: str
    logprobs: bool

    def body(self, reply_id: str, kind: str, choices: Sequence[Json]) -> Json:
        """A body with these choices."""
        return {
            "id": reply_id,
            "object": kind,
            "created": int(self.created_s),
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": list(choices),
        }


class Reply(Protocol):
    """One request's bodies."""

    def opening(self, index: int) -> Json | None:
        """The chunk that begins choice ``index``, if there is one."""
        ...

    def chunk(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> Json:
        """A chunk with more text."""
        ...

    def closing(self, index: int, result: GenerationResult, tokens: Sequence[TokenLogprob]) -> Json:
        """The chunk that says why the choice ended; ``tokens`` have not been told yet."""
        ...

    def usage(self, results: Sequence[GenerationResult], prompt_tokens: int) -> Json:
        """The last chunk, if asked for: no choices, but what was used."""
        ...

    def whole(
        self, results: Sequence[GenerationResult], tokens: Sequence[Sequence[TokenLogprob]], prompt_tokens: int
    ) -> Json:
        """Everything at once."""
        ...


class ChatReply:
    """``/v1/chat/completions``."""

    def __init__(self, heading: Heading, texts: TokenTexts) -> None:
        self._heading = heading
        self._texts = texts
        self._id = f"chatcmpl-{secrets.token_hex(12)}"

    def opening(self, index: int) -> Json | None:
        return self._chunk(index, {"role": "assistant", "content": ""}, (), None)

    def chunk(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> Json:
        return self._chunk(index, {"content": text}, tokens, None)

    def closing(self, index: int, result: GenerationResult, tokens: Sequence[TokenLogprob]) -> Json:
        return self._chunk(index, {}, tokens, result.finish_reason) | {"swarm": provenance([result], first=index)}

    def usage(self, results: Sequence[GenerationResult], prompt_tokens: int) -> Json:
        return self._heading.body(self._id, "chat.completion.chunk", ()) | {"usage": used(results, prompt_tokens)}

    def whole(
        self, results: Sequence[GenerationResult], tokens: Sequence[Sequence[TokenLogprob]], prompt_tokens: int
    ) -> Json:
        choices: list[Json] = [
            {
                "index": index,
                "message": {"role": "assistant", "content": result.text, "refusal": None},
                "logprobs": self._logprobs(said),
                "finish_reason": result.finish_reason,
            }
            for index, (result, said) in enumerate(zip(results, tokens, strict=True))
        ]
        body = self._heading.body(self._id, "chat.completion", choices)
        return body | {"usage": used(results, prompt_tokens), "swarm": provenance(results)}

    def _chunk(self, index: int, delta: Json, tokens: Sequence[TokenLogprob], finish: str | None) -> Json:
        logprobs = self._logprobs(tokens) if tokens else None
        choice: Json = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return self._heading.body(self._id, "chat.completion.chunk", [choice])

    def _logprobs(self, tokens: Sequence[TokenLogprob]) -> Json | None:
        return self._texts.chat(tokens) if self._heading.logprobs else None


class TextReply:
    """``/v1/completions``. Remembers how far each choice's text has come, for the tokens' offsets."""

    def __init__(self, heading: Heading, texts: TokenTexts) -> None:
        self._heading = heading
        self._texts = texts
        self._id = f"cmpl-{secrets.token_hex(12)}"
        self._chars: dict[int, int] = {}

    def opening(self, index: int) -> Json | None:
        return None

    def chunk(self, index: int, text: str, tokens: Sequence[TokenLogprob]) -> Json:
        body = self._body([self._choice(index, text, tokens, None)])
        self._chars[index] = self._chars.get(index, 0) + len(text)
        return body

    def closing(self, index: int, result: GenerationResult, tokens: Sequence[TokenLogprob]) -> Json:
        choice = self._choice(index, "", tokens, result.finish_reason)
        return self._body([choice]) | {"swarm": provenance([result], first=index)}

    def usage(self, results: Sequence[GenerationResult], prompt_tokens: int) -> Json:
        return self._body(()) | {"usage": used(results, prompt_tokens)}

    def whole(
        self, results: Sequence[GenerationResult], tokens: Sequence[Sequence[TokenLogprob]], prompt_tokens: int
    ) -> Json:
        choices = [
            self._choice(index, result.text, said, result.finish_reason)
            for index, (result, said) in enumerate(zip(results, tokens, strict=True))
        ]
        return self._body(choices) | {"usage": used(results, prompt_tokens), "swarm": provenance(results)}

    def _body(self, choices: Sequence[Json]) -> Json:
        return self._heading.body(self._id, "text_completion", choices)

    def _choice(self, index: int, text: str, tokens: Sequence[TokenLogprob], finish: str | None) -> Json:
        offset = self._chars.get(index, 0)
        logprobs = self._texts.legacy(tokens, offset) if self._heading.logprobs and tokens else None
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}


def used(results: Sequence[GenerationResult], prompt_tokens: int) -> Json:
    """``usage``: every token that was sampled counts, also one that ended an answer; each prompt counts once."""
    answer = sum(len(result.token_ids) for result in results)
    return {"prompt_tokens": prompt_tokens, "completion_tokens": answer, "total_tokens": prompt_tokens + answer}


def provenance(results: Sequence[GenerationResult], first: int = 0) -> Json:
    """The ``swarm`` field: who computed these answers, and how it went. ``first`` is the first one's index."""
    return {"answers": [{"index": index, **_provenance(result)} for index, result in enumerate(results, start=first)]}


def _provenance(result: GenerationResult) -> Json:
    return {
        "chain": [_stage(stage) for stage in result.chain],
        "heals": [
            {
                "lost": [_stage(stage) for stage in heal.lost],
                "replaced_by": [_stage(stage) for stage in heal.replaced_by],
                "pause_s": round(heal.pause_s, 4),
                "replayed_rows": heal.replayed_rows,
                "reason": heal.reason,
            }
            for heal in result.heals
        ],
        "exact": result.exact,
        "tokens_per_s": round(result.tokens_per_s, 3),
        "ttft_s": round(result.ttft_s, 4),
        "seed": result.seed,
        "verification": _verification(result.verification),
    }


def _verification(found: Verification) -> Json:
    problems = [{"kind": problem.kind, "peers": problem.peers, "what": problem.what} for problem in found.problems]
    return {"windows": found.windows, "rows": found.rows, "signers": found.signers, "problems": problems}


def _stage(stage: ChainStage) -> Json:
    return {"peer": stage.peer, "public_name": stage.public_name, "span": [stage.start, stage.end]}


def routes(chains: Iterable[Sequence[ChainStage]]) -> str:
    """The chains of several answers, each once, as far as a header may be long.

    Peer ids, which their owners cannot choose, and spans; no names, which they can.
    """
    text = ", ".join(dict.fromkeys(" ".join(f"{s.peer}[{s.start}:{s.end}]" for s in chain) for chain in chains))
    return text if len(text) <= MAX_ROUTE_CHARS else text[:MAX_ROUTE_CHARS].rpartition(" ")[0] + " ..."


def verified(found: Verification) -> str:
    """What receipts show of an answer, as a header has it."""
    counts = {
        "windows": found.windows,
        "rows": found.rows,
        "signers": len(found.signers),
        "problems": len(found.problems),
    }
    return ";".join(f"{name}={count}" for name, count in counts.items())
