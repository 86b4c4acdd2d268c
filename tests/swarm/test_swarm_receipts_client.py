"""What a client keeps of receipts: every window of every answer, whatever happened on the way, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest
from fakes import FakeServer
from harness import SPANS, Node, Swarm
from trouble import NEW_TOKENS, PROMPT, Moment, ask, chain_of, greedy

from swarm.client.chains.settling import COUNTERSIGN_S, SETTLE_S
from swarm.client.evidence.records import SessionRecord
from swarm.client.model import AsyncSwarmModel
from swarm.core.ids import PeerId
from swarm.server.config import ServerConfig
from swarm.verification.challenges.commitment import check_opening
from swarm.verification.signed.coverage import Known, by_signer, verify_coverage
from swarm.verification.signed.leaves import id_hashes
from swarm.verification.signed.merkle import merkle_root
from swarm.verification.signed.receipts import NO_HASH

LONG = "The swarm signs for every row that it computes, and for none that was taken back. " * 2
HEADS = pytest.mark.parametrize("head", ["remote", "local"])


async def record_of(swarm: Swarm, model: AsyncSwarmModel) -> SessionRecord:
    """The last session's, which has just ended."""
    await model.endings.wait(SETTLE_S + COUNTERSIGN_S)
    return swarm.records[-1]


def check_whole(record: SessionRecord, *, healed: bool = False) -> None:
    """What anybody finds who looks at the record: each window covered, each stage's chain of receipts in order."""
    rows = len(record.token_ids)
    assert (record.covered_rows, record.problems) == (rows, ())
    current = [stage for stage in record.stages if stage.receipts and stage.receipts[-1].receipt.last == rows]
    assert next(stage.opening.span.start for stage in current) == 0
    for stage in record.stages:
        check_opening(stage.opening.commitment, record.secret)
        for one, other in pairwise(stage.receipts):
            assert other.receipt.first == one.receipt.last
            follows = other.receipt.counter == one.receipt.counter + 1
            assert not follows or other.receipt.previous == one.receipt.digest()
    openings = by_signer(stage.opening for stage in record.stages)
    everything = [signed for stage in record.stages for signed in stage.receipts]
    for first in range(0, rows, 32):
        last = min(first + 32, rows)
        window = [signed for signed in everything if signed.receipt.first == first]
        entry = merkle_root(id_hashes(record.token_ids[first:last])) if record.remote_head else None
        numbers = [one.receipt.opening.stage for one in sorted(window, key=lambda one: one.receipt.opening.start)]
        seams = frozenset(pairwise(numbers)) if healed else frozenset()
        known = Known((first, last), entry, _exits(record, first, last), seams)
        verify_coverage(window, record.layer_count, openings, now_s=1.8e9, known=known)


def _exits(record: SessionRecord, first: int, last: int) -> bytes | None:
    """The root over the tail's answers, from what the record says of them."""
    answers = dict(record.answers)
    return merkle_root(id_hashes([answers.get(row) for row in range(first, last)])) if record.remote_head else None


@HEADS
@pytest.mark.parametrize("codec", ["raw", "int8"])
async def test_an_answer_is_covered_from_its_first_row_to_its_last(swarm: Swarm, head: str, codec: str) -> None:
    await swarm.serve()
    model = swarm.client(head, codec=codec)
    result = await model.generate(LONG, max_new_tokens=40, ignore_eos=True)
    record = await record_of(swarm, model)
    check_whole(record)
    prompt = model.parts.tokenizer.encode(LONG)
    assert list(record.token_ids) == [*prompt, *result.token_ids[:-1]]
    assert (record.codec, record.remote_head, record.horizon) == (codec, head == "remote", len(record.token_ids))
    if head == "remote":
        assert record.answers == tuple(enumerate(result.token_ids, len(prompt) - 1))
        [(start, params)] = record.params
        assert (start, params.seed) == (len(prompt), result.seed)
    stages = [(stage.peer, stage.opening.start, stage.opening.end) for stage in record.stages]
    assert stages == [(stage.peer, stage.start, stage.end) for stage in result.chain]
    assert {stage.opening.calibration for stage in record.stages} == {NO_HASH}


async def test_the_result_says_how_far_receipts_have_come(swarm: Swarm) -> None:
    await swarm.serve()
    result = await swarm.client().generate(LONG, max_new_tokens=40, ignore_eos=True)
    rows = len(LONG) + 39
    found = result.verification
    assert found.rows // 32 == found.windows
    assert rows - 64 <= found.rows <= rows
    assert found.signers == tuple(stage.peer for stage in result.chain)
    assert found.problems == ()


async def test_several_answers_and_steps_back_in_one_session(swarm: Swarm) -> None:
    await swarm.serve()
    model = swarm.client()
    session = model.session(max_tokens=400)
    first = await session.generate(LONG, max_new_tokens=10, ignore_eos=True, temperature=1.0, seed=1)
    await session.generate("What else? " * 4, max_new_tokens=30, ignore_eos=True)
    session.truncate(len(LONG) + 5)
    second = await session.generate("And then? " * 4, max_new_tokens=30, ignore_eos=True, temperature=0.5, seed=2)
    session.truncate(len(session.token_ids) - 8)  # nobody hears of it but at the end
    await session.close()
    record = await record_of(swarm, model)
    check_whole(record)
    assert record.token_ids == session.token_ids
    assert [params.seed for _, params in record.params] == [1, 2]
    tokens = dict(record.answers)
    for start, answer in ((len(LONG), first.token_ids[:5]), (len(LONG) + 45, second.token_ids[:22])):
        assert [tokens[start - 1 + place] for place in range(len(answer))] == list(answer)


async def test_an_answer_that_is_cancelled_is_settled_as_far_as_it_came(swarm: Swarm) -> None:
    await swarm.serve()
    model, moment = swarm.client(), Moment("decode", 20)
    swarm.delay(0.005)
    task = asyncio.create_task(model.generate(LONG, max_new_tokens=60, ignore_eos=True, progress=moment))
    await moment.come()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    record = await record_of(swarm, model)
    check_whole(record)
    assert len(LONG) + 18 <= len(record.token_ids) <= len(LONG) + 21
    await swarm.check_free()


# -- heals ------------------------------------------------------------------------------------------------------


async def crash_middle(swarm: Swarm, chain: list[Node]) -> None:
    await swarm.crash(chain[1])


async def crash_head(swarm: Swarm, chain: list[Node]) -> None:
    await swarm.crash(chain[0])


async def crash_tail(swarm: Swarm, chain: list[Node]) -> None:
    await swarm.crash(chain[2])


async def crash_all(swarm: Swarm, chain: list[Node]) -> None:
    await asyncio.gather(*(swarm.crash(node) for node in chain))


async def cut_link(swarm: Swarm, chain: list[Node]) -> None:
    swarm.network.cut(chain[0].peer, chain[1].peer)


Trouble = Callable[[Swarm, list[Node]], Awaitable[None]]


@pytest.mark.parametrize(("logs", "head"), [(True, "remote"), (False, "local")])
@pytest.mark.parametrize("trouble", [crash_head, crash_middle, crash_tail, crash_all, cut_link])
async def test_whatever_heals_all_rows_are_covered(swarm: Swarm, trouble: Trouble, logs: bool, head: str) -> None:
    await swarm.serve(*SPANS, *SPANS, config=ServerConfig(replay_mb=None if logs else 0.0))
    model = swarm.client(head)
    moment = Moment("decode", 20)
    result = await ask(swarm, model, lambda chain: trouble(swarm, chain), moment=moment, max_new_tokens=50)
    assert list(result.token_ids) == greedy(swarm, new_tokens=50)
    assert result.heals
    record = await record_of(swarm, model)
    check_whole(record, healed=True)
    seats = {stage.peer: stage for stage in record.stages}
    assert [seats[PeerId(stage.peer)].opening.start for stage in result.chain] == [0, 1, 3]


async def test_back_before_a_heal(swarm: Swarm) -> None:
    """Rows that were computed twice, once by the dead, once by the newcomer, and then taken back into."""
    await swarm.serve(*SPANS, *SPANS, config=ServerConfig(replay_mb=0.0))
    model = swarm.client()
    session = model.session(max_tokens=400)
    await session.generate(LONG, max_new_tokens=10, ignore_eos=True)
    await swarm.crash(chain_of(swarm, session)[2])
    await session.generate("more", max_new_tokens=4, ignore_eos=True)
    session.truncate(70)
    last = await session.generate("and on" * 10, max_new_tokens=40, ignore_eos=True)
    await session.close()
    record = await record_of(swarm, model)
    check_whole(record, healed=True)
    ids = record.token_ids[: 70 + 60]
    assert list(last.token_ids) == swarm.reference.greedy(list(ids), 40, eos_token_id=None)


async def test_who_died_unhealed_owes_nothing(swarm: Swarm) -> None:
    """What it had signed is covered; of the rest the others sign, and nobody is to blame."""
    await swarm.serve()
    model = swarm.client(heal_timeout_s=0.5)
    session = model.session(max_tokens=400)
    await session.generate(LONG, max_new_tokens=10, ignore_eos=True)
    dead = chain_of(swarm, session)[1]
    await swarm.crash(dead)
    await session.close()
    record = await record_of(swarm, model)
    assert record.problems == ()
    assert 96 <= record.covered_rows < len(record.token_ids)
    ends = [stage.receipts[-1].receipt.last for stage in record.stages]
    assert ends == [len(record.token_ids), record.covered_rows, len(record.token_ids)]


# -- the end ----------------------------------------------------------------------------------------------------


async def test_every_server_gets_the_client_s_signature(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    from swarm.server.record.notary import Notary

    signed: list[bytes] = []
    honest = Notary.countersigned

    def countersigned(self: Notary, message: object) -> None:
        honest(self, message)  # type: ignore[arg-type]
        signed.append(self.countersignature)

    monkeypatch.setattr(Notary, "countersigned", countersigned)
    await swarm.serve()
    model = swarm.client()
    await model.generate(LONG, max_new_tokens=4, ignore_eos=True)
    await record_of(swarm, model)
    await swarm.quiet()
    assert len(set(signed)) == 3


async def test_nobody_who_asked_waits_for_the_end(swarm: Swarm) -> None:
    """Servers that freeze hold up the settlement, for so long and no longer, and never the answer."""
    nodes = await swarm.serve()
    model = swarm.client()
    session = model.session(max_tokens=400)
    await session.generate(LONG, max_new_tokens=10, ignore_eos=True)
    swarm.network.freeze(nodes[1].peer)
    began_s = swarm.clock.monotonic_s()
    await session.close()
    assert swarm.clock.monotonic_s() == began_s
    record = await record_of(swarm, model)
    assert swarm.clock.monotonic_s() - began_s <= SETTLE_S + COUNTERSIGN_S
    assert {problem.kind for problem in record.problems} <= {"missing"}
    swarm.liars = True  # it did not sign the rest, that much is true
    await model.close()
    assert swarm.clock.monotonic_s() - began_s <= 2 * (SETTLE_S + COUNTERSIGN_S)
    swarm.network.thaw(nodes[1].peer)


async def test_a_server_that_does_not_sign_says_so(swarm: Swarm) -> None:
    await swarm.serve("0:1", "3:5")
    [silent] = await swarm.serve("1:3", config=ServerConfig(receipts=False))
    model = swarm.client()
    result = await model.generate(LONG, max_new_tokens=4, ignore_eos=True)
    assert (result.verification.windows, result.verification.signers) == (0, ())
    [problem] = result.verification.problems
    assert (problem.kind, problem.peers) == ("unwilling", (silent.peer,))
    record = await record_of(swarm, model)
    assert [bool(stage.receipts) for stage in record.stages] == [True, False, True]


async def test_a_session_that_computed_nothing_leaves_nothing(swarm: Swarm) -> None:
    await swarm.serve("0:3")
    tail = await FakeServer(swarm, "3:5").start()
    model = swarm.client(step_timeout_s=1.0, heal_timeout_s=1.0)
    task = asyncio.create_task(model.generate("hello", max_new_tokens=4))
    await asyncio.gather(task, return_exceptions=True)
    await model.close()
    assert swarm.records == []
    await tail.transport.close()


async def test_answers_to_open_are_told(swarm: Swarm) -> None:
    """BUSY and silence are none; newcomers of a heal are asked as well."""
    nodes = await swarm.serve(*SPANS)
    [full] = await swarm.serve("1:3", config=ServerConfig(max_sessions=0))
    standby = (await swarm.serve("3:5"))[0]
    model = swarm.client()
    told: list[tuple[PeerId, bool]] = []
    model.witness.on_asked.append(lambda peer, answered: told.append((peer, answered)))
    for _ in range(6):
        await model.generate("hi", max_new_tokens=1)
    await ask(swarm, model, lambda chain: swarm.crash(chain[2]))
    asked = {peer: {answered for other, answered in told if other == peer} for peer, _ in told}
    assert asked.pop(full.peer, {False}) == {False}
    assert asked == {node.peer: {True} for node in (*nodes, standby)}


async def test_two_prompts_with_different_ends_share_nothing(swarm: Swarm) -> None:
    """Side by side over the same servers: each session's receipts are its own."""
    await swarm.serve()
    model = swarm.client()
    await model.generate_many([PROMPT, LONG], max_new_tokens=NEW_TOKENS, ignore_eos=True)
    await record_of(swarm, model)
    assert len(swarm.records) == 2
    for record in swarm.records:
        check_whole(record)
    sessions = {stage.opening.session for record in swarm.records for stage in record.stages}
    assert len(sessions) == len({record.secret for record in swarm.records}) == 2
