"""Who comes when and asks what: people, and a verifier's identities that ask as people do."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import msgspec

from swarm.core.sampling import SamplingParams
from swarm.verification.challenges.challenge import Challenge, Manner, Table, Traffic, make_challenge, one_client

PEOPLE = "people"
HOURS_S = 4 * 3600.0
"""In which all come, by a schedule that is not waited for."""
GAP_S = 40.0
MEASURED = 60
"""Clients from whom a verifier knows what traffic looks like."""
MANNERS = (
    (Manner(6), 6),
    (Manner(3), 2),
    (Manner(4, SamplingParams(temperature=0.7, top_p=0.9)), 3),
    (Manner(10, SamplingParams(temperature=1.0, repetition_penalty=1.1)), 1),
)
"""Some ways to ask and how many ask so; short, since every token of an answer takes a tenth of a second of one core."""
SESSIONS = (1, 1, 1, 1, 2, 3)
"""Of one client: one that runs ``generate`` has a new key each time."""


@dataclass(frozen=True, slots=True)
class Visit:
    """One session of one client: ``arrival`` says how long ago it, the client's first and anybody's last one was."""

    kind: str
    client: str
    at_s: float
    challenge: Challenge
    text: str = ""
    arrival: tuple[float, ...] = ()


Ask = Callable[[Traffic], Challenge]
"""The next request of somebody whose traffic this is."""


def measured(random: Random, lengths: Sequence[int], around: tuple[Sequence[int], Sequence[int]]) -> Traffic:
    """What a verifier has seen of ``MEASURED`` clients and of prompts of these ``lengths``; ``around`` each prompt."""
    return Traffic(
        gaps_s=tuple(random.expovariate(1 / GAP_S) for _ in range(MEASURED)),
        manners=tuple(_manner(random) for _ in range(MEASURED)),
        sessions=tuple(random.choice(SESSIONS) for _ in range(MEASURED)),
        prompt_tokens=tuple(lengths),
        prefix=tuple(around[0]),
        suffix=tuple(around[1]),
    )


def people(random: Random, prompts: Sequence[str], encode: Callable[[str], Sequence[int]], count: int) -> list[Visit]:
    """``count`` sessions of people, each asking in his own manner, none the same as another."""
    visits: list[Visit] = []
    waiting = list(prompts[:count])
    while waiting:
        client, at_s, manner = f"{PEOPLE} {len(visits)}", random.uniform(0, HOURS_S), _manner(random)
        for _ in range(min(random.choice(SESSIONS), len(waiting))):
            text = waiting.pop()
            sampling = msgspec.structs.replace(manner.sampling, seed=random.getrandbits(53))
            asked = Challenge(b"", tuple(encode(text)), manner.max_new_tokens, sampling, 0.0)
            visits.append(Visit(PEOPLE, client, at_s, asked, text))
            at_s += random.expovariate(1 / GAP_S)
    return visits


def verifier(kind: str, random: Random, table: Table, traffic: Traffic, count: int) -> list[Visit]:
    """``count`` challenges by identities that come as often and ask in such manners as clients; no prompt twice."""
    visits: list[Visit] = []
    sent: set[tuple[int, ...]] = set()
    while len(visits) < count:
        client, at_s = f"{kind} {len(visits)}", random.uniform(0, HOURS_S)
        narrow, sessions = one_client(random.randbytes(32), traffic)
        for _ in range(min(sessions, count - len(visits))):
            made = make_challenge(random.randbytes(32), table, narrow)
            while made.prompt in sent:
                made = make_challenge(random.randbytes(32), table, narrow)
            sent.add(made.prompt)
            visits.append(Visit(kind, client, at_s, made))
            at_s += made.wait_s
    return visits


def naive(random: Random, vocabulary: int, traffic: Traffic, count: int) -> list[Visit]:
    """Challenges of ids drawn at random, in every other respect like the others: what must be found out."""
    table = Table(tuple(random.randrange(vocabulary) for _ in range(20_000)), order=1)
    return verifier("random ids", random, table, traffic, count)


def in_order(visits: Sequence[Visit]) -> list[Visit]:
    """All visits by time, each with its ``arrival``."""
    firsts: dict[str, float] = {}
    lasts: dict[str, float] = {}
    before_s = 0.0
    found = []
    for visit in sorted(visits, key=lambda visit: (visit.at_s, visit.client)):
        first_s = firsts.setdefault(visit.client, visit.at_s)
        arrival = visit.at_s - lasts.get(visit.client, visit.at_s), visit.at_s - first_s, visit.at_s - before_s
        found.append(replace(visit, arrival=arrival))
        lasts[visit.client] = before_s = visit.at_s
    return found


def key_of(name: str) -> Random:
    """A generator of its own for everything of one name."""
    return Random(hashlib.sha256(name.encode()).digest())


def _manner(random: Random) -> Manner:
    return random.choices([manner for manner, _ in MANNERS], [weight for _, weight in MANNERS])[0]
