"""Challenges: from a seed of 32 bytes a request that looks like traffic and that anyone can make again.

The seed is the secret r that OPEN commits to, so a challenge opens with the same 32 bytes as any session; revealed
afterwards, it shows that the rows of a fraud proof are nobody's conversation. Everything drawn comes from SHA-256
over a tag, the purpose, the seed and a counter: no generator whose stream may change with a version.

What a server can see of a session: its lengths, its times, its sampling, the client, and the text itself, if it cares
to recover it. Lengths, times, sampling and how often one client comes are drawn from what the verifier saw of real
traffic. The text is one of the verifier's prompts as it stands, or, for whoever has none, a walk through a text: the
last words lead on as they did somewhere in it. A walk reads like text for a few words only, which a server that looks
for it sees (docs/verification.md has figures).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec

from swarm.core.errors import ConfigError, ProtocolViolation
from swarm.core.limits import MAX_CONTEXT_TOKENS
from swarm.core.sampling import SamplingParams
from swarm.verification.challenges.challenge_text import TEXT
from swarm.verification.challenges.commitment import AUDIT_SECRET_BYTES, check_opening, commit

_DOMAIN = b"swarm/challenge/1\0"
_TABLE_DOMAIN = b"swarm/challenge-table/1\0"
_PROMPTS_DOMAIN = b"swarm/challenge-prompts/1\0"
MAX_ORDER = 8
STRAY = 0.2
"""How often a step of the walk follows from the last token alone, which keeps walks apart."""


class Draws:
    """Uniform numbers of one ``purpose`` from a seed: SHA-256 in counter mode, 8 bytes for each."""

    def __init__(self, seed: bytes, purpose: str) -> None:
        if len(seed) != AUDIT_SECRET_BYTES:
            raise ConfigError(f"a challenge's seed has {AUDIT_SECRET_BYTES} bytes, not {len(seed)}")
        self._key = _DOMAIN + purpose.encode() + b"\0" + seed
        self._words = self._stream()

    def uniform(self) -> float:
        """The next number in [0, 1), a multiple of 2**-53."""
        return (next(self._words) >> 11) * 2.0**-53

    def below(self, count: int) -> int:
        """The next whole number in [0, ``count``), for a count far below 2**53."""
        return int(self.uniform() * count)

    def _stream(self) -> Iterator[int]:
        counter = 0
        while True:
            block = hashlib.sha256(self._key + counter.to_bytes(8, "big")).digest()
            yield from (int.from_bytes(block[start : start + 8], "big") for start in range(0, len(block), 8))
            counter += 1


@dataclass(frozen=True)
class Table:
    """A verifier's text: its tokens as ids (a tokenizer's, or numbers of words).

    ``prompts`` says that the ids are whole prompts, one behind the other, of these lengths: a challenge is one of them.
    Without, it is a walk by what follows what. ``order`` tokens decide the next one. With 1 the walk goes astray
    within a few words, with 3 it copies whole sentences of a short text; so every step forgets all but the last token
    with probability ``STRAY``. ``starts`` are ids to begin with, empty for any.
    """

    ids: tuple[int, ...]
    order: int = 2
    starts: tuple[int, ...] = ()
    prompts: tuple[int, ...] = ()
    _after: dict[tuple[int, ...], list[int]] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if not (len(self.ids) >= 2 and all(0 <= token < 2**32 for token in (*self.ids, *self.starts))):
            raise ConfigError("a table of what follows what needs two ids or more, each below 2**32")
        if not 1 <= self.order <= MAX_ORDER:
            raise ConfigError(f"a table of order {self.order}", hint=f"choose 1 to {MAX_ORDER}")
        if self.prompts:
            if min(self.prompts) < 1 or max(self.prompts) > MAX_CONTEXT_TOKENS or sum(self.prompts) != len(self.ids):
                raise ConfigError(f"{len(self.prompts)} prompts that are not the table's {len(self.ids)} ids")
            return
        for end in range(1, len(self.ids)):
            for length in range(1, min(self.order, end) + 1):
                self._after.setdefault(self.ids[end - length : end], []).append(self.ids[end])

    def digest(self) -> bytes:
        """SHA-256 of all of it: what a proof names, so that whoever makes the challenge again has the same table."""
        counts = self.order.to_bytes(1, "big") + len(self.starts).to_bytes(8, "big")
        packed = b"".join(token.to_bytes(4, "big") for token in (*self.starts, *self.ids))
        if self.prompts:
            lengths = b"".join(length.to_bytes(4, "big") for length in self.prompts)
            packed = _PROMPTS_DOMAIN + len(self.prompts).to_bytes(8, "big") + lengths + counts + packed
            return hashlib.sha256(packed).digest()
        return hashlib.sha256(_TABLE_DOMAIN + counts + packed).digest()

    def prompt(self, number: int) -> tuple[int, ...]:
        """The ids of one of the prompts. O(number)."""
        start = sum(self.prompts[:number])
        return self.ids[start : start + self.prompts[number]]

    def followers(self, last: Sequence[int]) -> list[int]:
        """The ids that follow the longest end of ``last`` that somewhere is followed by any, as often as they do."""
        for length in range(min(self.order, len(last)), 0, -1):
            if found := self._after.get(tuple(last[len(last) - length :])):
                return found
        return list(self.starts or self.ids)


def walk(seed: bytes, count: int, table: Table) -> tuple[int, ...]:
    """``count`` ids from ``seed``: a shorter walk is the beginning of a longer one. O(count)."""
    if not 0 <= count <= MAX_CONTEXT_TOKENS:
        raise ConfigError(f"no challenge of {count} tokens")
    draws, found = Draws(seed, "text"), list[int]()
    while len(found) < count:
        known = 1 if draws.uniform() < STRAY else table.order
        followers = table.followers(found[-known:])
        found.append(followers[draws.below(len(followers))])
    return tuple(found)


def body(seed: bytes, count: int, table: Table) -> tuple[int, ...]:
    """What the challenge of ``seed`` says: one of the table's prompts, as long as it is, or a walk of ``count`` ids."""
    if not table.prompts:
        return walk(seed, count, table)
    return table.prompt(Draws(seed, "prompt").below(len(table.prompts)))


def words(seed: bytes, count: int, *, text: str = TEXT, order: int = 2) -> str:
    """The same with the words of ``text``, from the beginning of a sentence on: for whoever tokenizes afterwards."""
    known = text.split()
    numbers = {word: number for number, word in enumerate(dict.fromkeys(known))}
    spelled = list(numbers)
    starts = tuple(numbers[word] for before, word in pairwise([".", *known]) if before.endswith((".", "?", "!")))
    table = Table(tuple(numbers[word] for word in known), order, starts)
    return " ".join(spelled[number] for number in walk(seed, count, table))


@dataclass(frozen=True, slots=True)
class Manner:
    """How a client asks: for how many tokens at most (the model may end the answer before), and with what sampling."""

    max_new_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)


@dataclass(frozen=True, slots=True)
class Traffic:
    """What real requests look like, as samples: any number of each, in any order, drawn independently.

    ``gaps_s``: seconds between one request and the next. ``manners`` of clients. ``sessions``: how many a client opens
    before it is not seen again. ``prompt_tokens``: lengths for a table without prompts, ``prefix`` and ``suffix`` (a
    chat template's, around each prompt) included.
    """

    gaps_s: tuple[float, ...]
    manners: tuple[Manner, ...]
    sessions: tuple[int, ...] = (1,)
    prompt_tokens: tuple[int, ...] = ()
    prefix: tuple[int, ...] = ()
    suffix: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not (self.gaps_s and self.manners and self.sessions):
            raise ConfigError("traffic without any sample of something", hint="give gaps, manners and sessions")
        lengths = (1, *self.prompt_tokens, *(manner.max_new_tokens for manner in self.manners))
        possible = min(lengths) >= 1 and max(lengths) <= MAX_CONTEXT_TOKENS and min(self.sessions) >= 1
        if not (possible and all(0 <= gap < float("inf") for gap in self.gaps_s)):
            raise ConfigError("traffic with a length, a gap or a number of sessions that cannot be")


def one_client(seed: bytes, traffic: Traffic) -> tuple[Traffic, int]:
    """What traffic of one client looks like, which asks in one manner, and how many sessions it opens.

    A verifier draws ``seed`` for each of its identities: one that asked in another manner each time, or came more
    often than others do, could be told from a client.
    """
    draws = Draws(seed, "client")
    manner = traffic.manners[draws.below(len(traffic.manners))]
    return replace(traffic, manners=(manner,)), traffic.sessions[draws.below(len(traffic.sessions))]


@dataclass(frozen=True, slots=True)
class Challenge:
    """A request to send as an ordinary session, ``wait_s`` seconds after the last. OPEN carries ``commitment``."""

    seed: bytes
    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingParams
    wait_s: float

    @property
    def commitment(self) -> bytes:
        return commit(self.seed)


def make_challenge(seed: bytes, table: Table, traffic: Traffic) -> Challenge:
    """The challenge of ``seed``. The secret must be as random as any session's: 32 bytes drawn uniformly.

    With a table of prompts, a verifier passes over seeds whose prompt it has sent before: nobody asks the same again.
    """
    draws = Draws(seed, "shape")
    if not (table.prompts or traffic.prompt_tokens):
        raise ConfigError("neither prompts nor lengths of prompts", hint="give the traffic prompt_tokens")
    length = 0 if table.prompts else round(_between(sorted(traffic.prompt_tokens), draws.uniform()))
    wait_s = _between(sorted(traffic.gaps_s), draws.uniform())
    manner = traffic.manners[draws.below(len(traffic.manners))]
    sampling = msgspec.structs.replace(manner.sampling, seed=draws.below(2**53))
    text = body(seed, max(length - len(traffic.prefix) - len(traffic.suffix), 1), table)
    return Challenge(seed, (*traffic.prefix, *text, *traffic.suffix), manner.max_new_tokens, sampling, wait_s)


def check_challenge(
    commitment: bytes, seed: bytes, prompt: Sequence[int], table: Table, around: tuple[int, int] = (0, 0)
) -> None:
    """Check that a ``prompt`` is what a revealed ``seed`` leads to: all that a proof has to show, with the table.

    ``around`` says how many tokens at its beginning and end are a chat template's; those are not compared. Raises
    ``BadSignatureError`` if ``commitment`` was not made from the seed, ``ProtocolViolation`` if the prompt is
    another. A table made for the purpose can still hold what nobody would write: rows that no text leads to are for
    ``whitening.inputs_count``.
    """
    check_opening(commitment, seed)
    text = tuple(prompt[around[0] : max(len(prompt) - around[1], 0)])
    if not text or min(around) < 0 or body(seed, len(text), table) != text:
        raise ProtocolViolation("the prompt is not the challenge of the revealed seed")


def _between(samples: Sequence[float], uniform: float) -> float:
    """The quantile at ``uniform`` of sorted samples, linear between neighbours: none outside what traffic has."""
    place = uniform * (len(samples) - 1)
    low = int(place)
    return samples[low] + (place - low) * (samples[min(low + 1, len(samples) - 1)] - samples[low])
