"""The cheaters of ``benchmarks.cheaters`` in whole swarms: challenged at rate 1 they are ejected, nobody else is."""

from __future__ import annotations

import asyncio
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import reduce
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from archives import calibrated
from harness import Engines, Node, Swarm

from benchmarks.cheaters.catalogue import find
from benchmarks.cheaters.cheat import installed
from swarm.client.auditing.audit import AuditMeans
from swarm.client.auditing.challenges import Finding, ask, challenge_server, standings_after
from swarm.client.auditing.reference import OwnReference
from swarm.client.auditing.suspects import Suspect
from swarm.client.model import AsyncSwarmModel
from swarm.core.errors import NoRouteError, SwarmError
from swarm.core.sampling import SamplingParams
from swarm.core.spans import Span
from swarm.engine.replica import Replica, ReplicaRequest
from swarm.models.folder import open_folder
from swarm.models.progress import silent
from swarm.verification.challenges.challenge import Challenge
from swarm.verification.standings.answering import Requests
from swarm.verification.standings.strikes import Policy, Standing, traffic_asked
from swarm.verification.verdicts.calibration import Calibration
from swarm.verification.verdicts.verdict import Outcome

POLICY = Policy()
LAYERS = 5
PROMPT_TOKENS, NEW_TOKENS = 180, 14
MOST_CHALLENGES = 5
SETTLE_S = 10.0
"""Virtual."""


@pytest.fixture(scope="module")
def replica(folder: Path) -> Replica:
    return Replica.load(open_folder(folder), ReplicaRequest(span=Span(0, LAYERS), threads=1), silent)


@pytest.fixture(scope="module")
def calibration(replica: Replica, folder: Path) -> Calibration:
    return calibrated(replica, open_folder(folder).model_id)


@pytest.fixture
def engines(folder: Path) -> Engines:
    """Of one test alone: an engine that cheats is lent to nobody else."""
    return Engines(open_folder(folder))


def challenge(number: int, *, tokens: int = PROMPT_TOKENS, temperature: float = 0.0) -> Challenge:
    prompt = tuple(int(token) for token in np.random.default_rng(number).integers(4, 250, tokens))
    sampling = SamplingParams(temperature=temperature, seed=number)
    return Challenge(number.to_bytes(32, "big"), prompt, NEW_TOKENS, sampling, 0.0)


def suspect(node: Node) -> Suspect:
    span = node.engine.info.span
    return Suspect(node.peer, span, span, "")


async def cheating(swarm: Swarm, kind: str, span: str) -> Node:
    """A server of ``span`` whose engine cheats so, started last: nothing else is loaded while it is."""
    with installed(find(kind)):
        [node] = await swarm.serve(span)
    return node


class Verifier:
    """Challenges servers one after the other, with a replica of everything, and keeps their standings."""

    def __init__(self, swarm: Swarm, replica: Replica, calibration: Calibration) -> None:
        self.model: AsyncSwarmModel = swarm.client()
        self.standings: dict[str, Standing] = {}
        self._reference = OwnReference(replica)
        self._means = AuditMeans(transport=self.model.parts.transport, calibration=calibration)
        self._number = 0

    async def challenge(self, node: Node, **how: float) -> Finding:
        self._number += 1
        asked = challenge(self._number, **how)  # type: ignore[arg-type]
        found = await challenge_server(self.model, asked, suspect(node), self._reference, self._means)
        for peer, transition in standings_after(found, POLICY).items():
            self.standings[peer] = transition(self.standings.get(peer, Standing()))
        return found

    async def until_ejected(self, node: Node) -> str:
        """Challenge it until it is; the reason, or nothing after ``MOST_CHALLENGES``."""
        for _ in range(MOST_CHALLENGES):
            await self.challenge(node)
            if reason := self.standings[node.peer].ejected:
                return reason
        return ""


@pytest.fixture
def verifier(swarm: Swarm, replica: Replica, calibration: Calibration) -> Verifier:
    return Verifier(swarm, replica, calibration)


WRONG_ROWS = {
    "identity": "1:3",
    "skip:1": "1:3",
    "skip:2": "1:3",
    "nf4": "1:3",
    "surrogate": "1:3",
    "short-window": "1:3",
    "stale": "1:3",
    "other-ids": "0:1",
    "late:2": "1:3",
}


@pytest.mark.parametrize("kind", WRONG_ROWS)
async def test_wrong_rows_eject_whoever_answered_them(swarm: Swarm, verifier: Verifier, kind: str) -> None:
    spans = ["0:1", "1:3", "3:5"]
    spans.remove(WRONG_ROWS[kind])
    honest = await swarm.serve(*spans)
    with patch("benchmarks.cheaters.rows.HONEST_WINDOWS", 10):
        cheater = await cheating(swarm, kind, WRONG_ROWS[kind])
        reason = await verifier.until_ejected(cheater)
    assert reason == "2 confirmed failures" or "above what honest servers reach" in reason
    for node in honest:  # in the same chain, and fed by the cheater
        found = await verifier.challenge(node)
        assert (found.kind, verifier.standings[node.peer].strikes) == ("passed", ()), found.what


async def test_another_requests_rows(swarm: Swarm, verifier: Verifier) -> None:
    """Where two sessions run side by side, each gets the other's."""
    await swarm.serve("0:1", "3:5")
    cheater = await cheating(swarm, "another", "1:3")
    for number in range(2):
        other = swarm.client()
        session = other.session(max_tokens=120)
        await session.generate(input_ids=list(challenge(100 + number).prompt[:100]), max_new_tokens=4, ignore_eos=True)
        assert (await verifier.challenge(cheater)).kind == "failed"
        await session.close()
    assert verifier.standings[cheater.peer].ejected == "2 confirmed failures"


async def test_small_errors_in_every_window_eject(swarm: Swarm, verifier: Verifier) -> None:
    """Weights with 1 % of noise pass every window, and are found by the sequential test."""
    await swarm.serve("0:1", "3:5")
    cheater = await cheating(swarm, "noise", "1:3")
    assert "window after window" in await verifier.until_ejected(cheater)
    assert verifier.standings[cheater.peer].strikes == ()


async def test_cheating_now_and_then_fails_there(swarm: Swarm, verifier: Verifier) -> None:
    await swarm.serve("0:1", "3:5")
    with patch("benchmarks.cheaters.rows.RARE", 0.3):
        cheater = await cheating(swarm, "rarely:2", "1:3")
        findings = [await verifier.challenge(cheater) for _ in range(3)]
    outcomes = [window.outcome for found in findings if found.audit is not None for window in found.audit.windows]
    assert outcomes.count(Outcome.HARD) >= 2
    assert outcomes.count(Outcome.PASS) >= 2
    assert verifier.standings[cheater.peer].ejected


@contextmanager
def lying(kind: str, *, only: Callable[[object], bool]) -> Iterator[None]:
    """Inside, objects of the patched class that are ``only`` the cheater's lie as ``kind`` says; others are honest."""
    with pytest.MonkeyPatch.context() as patching:
        for name, make in find(kind).server:
            owner, _, method = name.rpartition(".")
            honest = getattr(_resolve(owner), method)
            patching.setattr(name, _chosen(honest, make(honest), only))
        yield


def _chosen(honest: Callable[..., object], lie: Callable[..., object], only: Callable[[object], bool]) -> object:
    def either(whose: object, *arguments: object, **options: object) -> object:
        return (lie if only(whose) else honest)(whose, *arguments, **options)

    return either


def _resolve(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


async def ordinary(model: AsyncSwarmModel, number: int) -> None:
    """One ordinary answer, as far as it comes, and what follows from it noted."""
    with suppress(SwarmError):  # who is caught in the middle of an answer is lost to it, and nobody else is there
        await model.generate(input_ids=list(challenge(number).prompt), max_new_tokens=NEW_TOKENS, ignore_eos=True)
    await asyncio.sleep(SETTLE_S)


@pytest.mark.parametrize(("kind", "reason"), [
    ("equivocates", "it signed two different receipts with one counter"),
    ("claims-rows", "2 confirmed failures"),
    ("claims-layers", "2 confirmed failures"),
])  # fmt: skip
async def test_an_ordinary_client_ejects_who_lies_in_receipts(swarm: Swarm, kind: str, reason: str) -> None:
    nodes = await swarm.serve("0:1", "1:3", "3:5")
    liar, swarm.liars = nodes[1], True
    desk = liar.server._serving.reception._desk
    model = swarm.client(heal_timeout_s=1.0)
    with lying(kind, only=lambda whose: getattr(whose, "_desk", whose) is desk):
        for number in range(2):
            if liar.peer not in model.reputation.ejected():
                await ordinary(model, number)
    assert model.reputation.standing(liar.peer).ejected == reason
    assert model.reputation.ejected() == {liar.peer}
    with pytest.raises(NoRouteError, match="ejected"):
        await model.generate("over whom?", max_new_tokens=2)
    [other] = await swarm.serve("1:3")
    result = await model.generate("over whom?", max_new_tokens=2)
    assert other.peer in {stage.peer for stage in result.chain}


async def test_busy_to_audits_and_to_nothing_else(swarm: Swarm, verifier: Verifier) -> None:
    """Two strikes, at the looks after 8 and 16 audits: traffic was always answered."""
    nodes = await swarm.serve("0:1", "1:3", "3:5")
    fetching = nodes[1].server._serving.fetching
    ((_, busy), _) = find("busy-to-audits").server
    fetching._answer_all = types.MethodType(busy(None), fetching)  # type: ignore[method-assign]
    traffic = reduce(lambda before, _: traffic_asked(before, answered=True), range(40), Standing())
    verifier.standings[nodes[1].peer] = traffic
    for asked in range(1, 17):
        assert (await verifier.challenge(nodes[1], tokens=33)).kind == "unanswered"
        standing = verifier.standings[nodes[1].peer]
        assert (len(standing.strikes), bool(standing.ejected)) == (asked // 8, asked == 16)


async def test_a_colluding_neighbour_withholds_what_it_sent(swarm: Swarm, verifier: Verifier) -> None:
    """The server behind it cannot be judged then, and is not. Who withholds is counted as not answering, there too."""
    nodes = await swarm.serve("0:1", "1:3", "3:5")
    fetching = nodes[0].server._serving.fetching
    [(_, refuse)] = find("withholds").server
    fetching._answer_all = types.MethodType(refuse(None), fetching)  # type: ignore[method-assign]
    shielded = await verifier.challenge(nodes[1], tokens=40)
    assert (shielded.kind, verifier.standings[nodes[1].peer].audits) == ("undecided", Requests(1, 0))
    assert verifier.standings[nodes[0].peer].audits == Requests(1, 1)
    withholding = await verifier.challenge(nodes[0], tokens=40)
    assert (withholding.kind, verifier.standings[nodes[0].peer].audits) == ("unanswered", Requests(2, 2))


async def test_two_neighbours_who_agree_on_false_rows(swarm: Swarm, verifier: Verifier) -> None:
    """Their link holds and every window is covered: both are found by what they made of what they received."""
    await swarm.serve("0:1")
    first = await cheating(swarm, "identity", "1:3")
    second = await cheating(swarm, "skip:3", "3:5")
    record = await ask(verifier.model, challenge(50), suspect(first))
    assert (record.covered_rows, record.problems) == (len(record.token_ids), ())
    for node in (first, second):
        assert await verifier.until_ejected(node) == "2 confirmed failures"


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_a_tail_that_replaces_tokens(swarm: Swarm, verifier: Verifier, temperature: float) -> None:
    nodes = await swarm.serve("0:1", "1:3", "3:5")
    [(name, make)] = find("tokens").server
    with patch("benchmarks.cheaters.tokens.REPLACED", 0.3), pytest.MonkeyPatch.context() as patching:
        owner, _, function = name.rpartition(".")
        module = __import__(owner, fromlist=[function])
        patching.setattr(name, make(getattr(module, function)))  # there is one tail
        for _ in range(3):
            found = await verifier.challenge(nodes[2], temperature=temperature)
            assert found.audit is not None
            assert all(window.rows is Outcome.PASS for window in found.audit.windows)
    assert verifier.standings[nodes[2].peer].ejected == "2 confirmed failures"
