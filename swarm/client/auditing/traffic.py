"""What a verifier's challenges are made of: prompts in the model's own tokens, lengths, sampling and gaps."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from swarm.client.request import DEFAULT_NEW_TOKENS
from swarm.client.tokenizer import Tokenizer
from swarm.core.errors import ConfigError
from swarm.core.sampling import SamplingParams
from swarm.runtime.installed_text import installed_descriptions
from swarm.verification.challenges.challenge import Challenge, Manner, Table, Traffic, make_challenge
from swarm.verification.challenges.challenge_prompts import prose, questions_about
from swarm.verification.challenges.challenge_text import TEXT
from swarm.verification.challenges.commitment import AUDIT_SECRET_BYTES
from swarm.verification.proofs import MIN_SEEDED_TOKENS, ChallengeText

_SEED_DOMAIN = b"swarm/challenge-seed/1\0"
WALK_TOKENS = (12, 20, 35, 60, 100, 170, 290)
"""Lengths of walks, a chat template's tokens not counted."""
MANNERS = (
    *(Manner(DEFAULT_NEW_TOKENS),) * 6,
    Manner(DEFAULT_NEW_TOKENS, SamplingParams(temperature=0.7)),
    Manner(512),
    Manner(128, SamplingParams(temperature=1.0, top_p=0.95)),
)
"""Most clients leave everything at its default."""
GAPS = 16
MIN_ROOM = 2


def seed_of(text: str) -> bytes:
    """The 32 bytes that ``text`` names: 64 hex digits as they are, or of a whole number a hash.

    A server that expects a small number finds it by trying: challenges that are to pass for traffic need all 32 bytes.
    """
    if len(text) == 2 * AUDIT_SECRET_BYTES:
        try:
            return bytes.fromhex(text)
        except ValueError:
            pass
    if not (text.isascii() and text.isdecimal() and len(text) < 2 * AUDIT_SECRET_BYTES):
        raise ConfigError(f"{text[:80]!r} is no seed", hint="give a whole number, or 64 hexadecimal digits")
    return hashlib.sha256(_SEED_DOMAIN + str(int(text)).encode()).digest()


@dataclass(frozen=True, slots=True)
class Script:
    """Everything that a seed needs to become a challenge of one model."""

    table: Table
    traffic: Traffic
    context_tokens: int

    def challenge(self, seed: bytes) -> Challenge:
        """The challenge of ``seed``: the same on every machine with the model's tokenizer and this text.

        The answer is as long as the model's context allows. Raises ``ConfigError`` for a prompt that leaves no room.
        """
        made = make_challenge(seed, self.table, self.traffic)
        room = self.context_tokens - len(made.prompt)
        if room < MIN_ROOM:
            hint = f"leave out prompts of more than {self.context_tokens - MIN_ROOM} tokens"
            raise ConfigError(f"a prompt of {len(made.prompt)} tokens leaves the model no room to answer", hint=hint)
        shorter = min(made.max_new_tokens, room)
        return Challenge(seed, made.prompt, shorter, made.sampling, made.wait_s)

    def text(self, challenge: Challenge) -> ChallengeText:
        """What a proof says of where the prompt came from."""
        around = len(self.traffic.prefix), len(self.traffic.suffix)
        return ChallengeText(self.table, len(challenge.prompt), around)


def everyday(tokenizer: Tokenizer, context_tokens: int, *, interval_s: float, prompts: Sequence[str] = ()) -> Script:
    """The script of whoever has not measured any traffic.

    ``prompts`` are what people ask of this model, those too short to prove anything by left out; without, prompts are
    walks through the package's own text, which a server that looks for it can tell from people's. Put into the model's
    chat template, if it has one. Requests come ``interval_s`` apart on average, as independent people's do.
    """
    prefix, suffix = _template(tokenizer)
    table = _of_prompts(tokenizer, prompts) if prompts else _of_text(tokenizer)
    longest = context_tokens - MIN_ROOM
    traffic = Traffic(
        gaps_s=gaps_s(interval_s),
        manners=MANNERS,
        prompt_tokens=tuple(min(len(prefix) + tokens + len(suffix), longest) for tokens in WALK_TOKENS),
        prefix=prefix,
        suffix=suffix,
    )
    return Script(table, traffic, context_tokens)


def installed_prompts() -> tuple[str, ...]:
    """Requests about paragraphs in which the packages on this machine describe themselves: whole sentences of people.

    Not what people ask of a model, and not the same on another machine, but no walk.
    """
    found = [paragraph for _, text in installed_descriptions() for paragraph in prose(text)]
    return tuple(questions_about(list(dict.fromkeys(found))))


def gaps_s(mean_s: float) -> tuple[float, ...]:
    """Quantiles of exponential gaps with this mean, ``GAPS`` of them."""
    quantiles = [-math.log(1 - (number + 0.5) / GAPS) for number in range(GAPS)]
    return tuple(mean_s * GAPS * value / sum(quantiles) for value in quantiles)


def read_prompts(text: str) -> tuple[str, ...]:
    """Prompts, one a line; a line that is a JSON string may hold line ends. ``ConfigError`` if there are none."""
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        try:
            value = json.loads(line) if line.startswith('"') else line
        except ValueError:
            value = line
        found.append(str(value))
    if not found:
        raise ConfigError("no prompts in it", hint="write one a line")
    return tuple(found)


def _template(tokenizer: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens that the chat template puts before and after what somebody asks; without one, those of a text."""
    one, other = (_asked(tokenizer, text) for text in ("Why?", "42 is"))
    before = _common(one, other)
    after = _common(one[len(before) :][::-1], other[len(before) :][::-1])[::-1]
    return tuple(before), tuple(after)


def _asked(tokenizer: Tokenizer, text: str) -> list[int]:
    if not tokenizer.has_chat_template:
        return tokenizer.encode(text)
    return tokenizer.chat([{"role": "user", "content": text}])


def _common(one: Sequence[int], other: Sequence[int]) -> list[int]:
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return list(one[:length])


def _of_prompts(tokenizer: Tokenizer, prompts: Sequence[str]) -> Table:
    encoded = [tokenizer.encode(text, add_special_tokens=False) for text in prompts]
    encoded = [ids for ids in encoded if len(ids) >= MIN_SEEDED_TOKENS]
    if not encoded:
        hint = "give longer ones: shorter prompts prove nothing to others"
        raise ConfigError(f"none of the prompts has {MIN_SEEDED_TOKENS} tokens", hint=hint)
    return Table(tuple(token for ids in encoded for token in ids), prompts=tuple(map(len, encoded)))


def _of_text(tokenizer: Tokenizer) -> Table:
    """The package's text in tokens, a sentence on each line, so that what begins one is a token as prompts begin."""
    sentences = re.split(r"(?<=[.?!])\s+", TEXT.strip())
    ids = tokenizer.encode("\n".join(" ".join(sentence.split()) for sentence in sentences), add_special_tokens=False)
    known = set(ids[:-1])
    firsts = [tokenizer.encode(sentence, add_special_tokens=False)[0] for sentence in sentences]
    return Table(tuple(ids), starts=tuple(dict.fromkeys(first for first in firsts if first in known)))
