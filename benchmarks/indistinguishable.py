"""Can a server tell a verifier's challenges from traffic? A classifier is trained on everything that a server sees.

Three real servers of the demo model, real clients and the verifier's own way of sending a challenge, in one process.
Prompts are a stand-in for people's (``benchmarks.prompts``), arrival times those of a schedule that is not waited
for, times within sessions are real. For each kind of challenge and each group of features: the AUC of the better of
two classifiers on clients they were not trained on. 0.5 is a guess. Two checks of the classifiers themselves: shuffled
labels must give about 0.5, challenges of random ids nearly 1.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.crowd import PEOPLE, Visit, in_order, key_of, measured, naive, people, verifier
from benchmarks.descriptions import GROUPS, WATCHED, Described, describe, stacked
from benchmarks.one_process import Place, place_of
from benchmarks.onlooker import Onlooker, Seen
from benchmarks.prompts import dealt, of_packages
from benchmarks.setup import demo_files, say
from benchmarks.telling_apart import Auc, auc, directions, linear, phrases, shuffled, trees
from swarm.client.auditing.challenges import ask
from swarm.client.auditing.suspects import Suspect
from swarm.client.auditing.traffic import everyday
from swarm.client.request import Options
from swarm.client.tokenizer import Tokenizer
from swarm.verification.challenges.challenge import Table
from swarm.verification.challenges.challenge_prompts import as_long_as, table_of
from swarm.verification.challenges.challenge_text import TEXT

SERVERS = 3
CLOSE_S = 10.0
GOAL = 0.6
FEWEST, MOST = 60, 340
ALIKE = "prompts such as people send"
ELSEWHERE = "such prompts about other pages"
PACKAGES = "prompts about packages"
WALK = "walk through such prompts"
PACKAGE_WALK = "walk through the package's text"
MAKERS = {"numbers": (linear, trees), "vector": (directions,), "words": (phrases,)}
SHUFFLES = 3


@dataclass(frozen=True, slots=True)
class Sight:
    """One session, and what each of those ``WATCHED`` saw of it."""

    visit: Visit
    seen: Mapping[str, Seen]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--sessions",
        type=_sessions,
        default=160,
        metavar="N",
        help="of people and of each kind of prompts, half as many of the others (default: 160)",
    )
    parser.add_argument("--seed", type=int, default=1, help="of the schedule and the choice of prompts (default: 1)")


def _sessions(text: str) -> int:
    count = int(text)
    if not FEWEST <= count <= MOST:
        raise argparse.ArgumentTypeError(f"from {FEWEST}, so that classifiers learn, to {MOST}, as prompts go")
    return count


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures, by name."""
    files = demo_files()
    visits = crowd(Tokenizer.of(files), files.context_tokens, files.vocab_size, options.sessions, options.seed)
    sights = asyncio.run(_run(visits))
    say("what the servers saw is being described")
    return figures(describe([(sight.visit, sight.seen) for sight in sights], files))


def crowd(tokenizer: Tokenizer, context: int, vocabulary: int, count: int, seed: int) -> list[Visit]:
    """All sessions in the order of their coming: people's, and as many challenges of each kind."""

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    def key(name: str) -> Any:
        return key_of(f"{seed} {name}")

    script, sides, others = everyday(tokenizer, context, interval_s=1.0), dealt(seed), of_packages(seed)
    around = script.traffic.prefix, script.traffic.suffix
    extra = len(around[0]) + len(around[1])
    known = [len(encode(text)) + extra for text in sides.alike[:count]]
    traffic = measured(key("traffic"), known, around)

    def similar(prompts: Sequence[str]) -> list[str]:
        lengths = [length - extra for length in known]
        return as_long_as(lengths, prompts, lambda text: len(encode(text)), min(count, len(prompts)))

    def kind(name: str, table: Table, most: int = count) -> list[Visit]:
        return verifier(name, key(name), table, traffic, min(most, len(table.prompts) or most))

    own, few = table_of(sides.alike, encode), max(count // 2, 1)
    return in_order(
        [
            *people(key("people"), sides.people, tokenizer.encode, count),
            *kind(ALIKE, own),
            *kind(ELSEWHERE, table_of(sides.elsewhere, encode)),
            *kind(PACKAGES, table_of(similar(others), encode)),
            *kind(WALK, Table(own.ids), few),
            *kind(PACKAGE_WALK, Table(tuple(encode(" ".join(TEXT.split())))), few),
            *naive(key("random"), vocabulary, traffic, few),
        ]
    )


async def _run(visits: Sequence[Visit]) -> list[Sight]:
    """Every visit paid, one after the other."""
    sights = []
    async with place_of(demo_files(), SERVERS) as place:
        lookers = [Onlooker(server, place.files.hidden_size) for server in place.servers[: len(WATCHED)]]
        for looker in lookers:
            place.network.tap(looker.hook)
        for number, visit in enumerate(visits):
            await _pay(place, visit)
            await _left(lookers)
            sights.append(Sight(visit, {name: looker.latest for name, looker in zip(WATCHED, lookers, strict=True)}))
            if (number + 1) % 50 == 0:
                say(f"{number + 1} of {len(visits)} sessions")
    return sights


async def _pay(place: Place, visit: Visit) -> None:
    """The session as this client would have it: people through ``generate``, challenges as the verifier sends them."""
    asked = visit.challenge
    async with place.client(visit.client) as model:
        if visit.text:
            how = asked.sampling
            await model.generate(
                **Options(
                    messages=[{"role": "user", "content": visit.text}],
                    max_new_tokens=asked.max_new_tokens,
                    temperature=how.temperature,
                    top_p=how.top_p,
                    repetition_penalty=how.repetition_penalty,
                    seed=how.seed,
                )
            )
        else:
            middle = len(place.servers) // 2
            span = place.spans[middle]
            await ask(model, asked, Suspect(place.servers[middle], span, span, "middle"))


async def _left(lookers: Sequence[Onlooker]) -> None:
    """Until every server has heard that the session is over."""
    async with asyncio.timeout(CLOSE_S):
        for looker in lookers:
            await looker.closed.wait()
            looker.closed.clear()


def figures(described: Sequence[Described]) -> dict[str, Any]:
    """AUC of every kind against people, by server and group, and of what checks the classifiers."""
    kinds = list(dict.fromkeys(item.kind for item in described if item.kind != PEOPLE))
    traffic = [item for item in described if item.kind == PEOPLE]
    found: dict[str, Any] = {"sessions": len(traffic), "goal": GOAL}
    for kind in kinds:
        both = [*traffic, *(item for item in described if item.kind == kind)]
        labels = [int(item.kind == kind) for item in both]
        clients = [item.client for item in both]
        found[kind] = {"sessions": sum(labels), **_by_server(both, labels, clients)}
        say(f"{kind}: {found[kind]}")
    both = [*traffic, *(item for item in described if item.kind == ALIKE)]
    found["shuffled labels"] = _shuffled(both)
    return found


def _by_server(both: Sequence[Described], labels: Sequence[int], clients: Sequence[str]) -> dict[str, Any]:
    return {
        server: {group: _told(both, server, group, labels, clients).figures() for group in groups}
        for server, groups in GROUPS.items()
    }


def _told(both: Sequence[Described], server: str, group: str, labels: Sequence[int], clients: Sequence[str]) -> Auc:
    """What the classifiers for such data come to."""
    data, sort = stacked(both, server, group)
    return auc(MAKERS[sort], data, labels, clients)


def _shuffled(both: Sequence[Described]) -> dict[str, float]:
    """The mean over a few shuffles, all numbers of the head server together."""
    labels, clients = [int(item.kind != PEOPLE) for item in both], [item.client for item in both]
    dealt = [shuffled(labels, clients, seed) for seed in range(SHUFFLES)]
    found = [_told(both, WATCHED[0], "all numbers", labels, clients).value for labels in dealt]
    return {"auc": round(sum(found) / len(found), 3)}
