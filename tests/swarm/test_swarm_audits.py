"""Audits of closed sessions by an own replica: cheaters fail, honest servers pass, and nobody is failed by a feeder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from archives import SPANS, Archive, KeptStage, Library, Tale

from swarm.client.auditing.audit import AuditMeans, StageAudit, audit_stage
from swarm.client.auditing.reference import OwnReference
from swarm.client.auditing.trial import Trial, consequences
from swarm.client.evidence.records import SessionRecord
from swarm.core.errors import MisuseError
from swarm.core.sampling import SamplingParams
from swarm.engine.replica import Replica
from swarm.models.folder import open_folder
from swarm.transport.framing import FrameStream
from swarm.verification.standings.strikes import TRUSTED, Policy, Standing
from swarm.verification.verdicts.calibration import Calibration, Floats
from swarm.verification.verdicts.verdict import Outcome, Ruling
from swarm.wire.evidence import FetchRows
from swarm.wire.messages import Busy, Refused

PROMPT = [int(token) for token in np.random.default_rng(8).integers(4, 250, 90)]
HEAD, MIDDLE, TAIL = range(3)


@pytest_asyncio.fixture
async def library(replica: Replica, calibration: Calibration, folder: Path) -> AsyncIterator[Library]:
    built = await Library(replica, calibration, open_folder(folder).model_id).start()
    yield built
    await built.close()


async def audit(library: Library, record: SessionRecord, place: int, **options: float) -> StageAudit:
    async def feed(ids: object) -> bytes:
        return library.embedded(list(ids))  # type: ignore[call-overload]

    means = AuditMeans(transport=library.transport, calibration=library.calibration, feed=feed)
    return await audit_stage(record, record.stages[place], OwnReference(library.replica), means, **options)


def outcomes(found: StageAudit) -> list[str]:
    assert found.failure is None, found.failure
    return [window.outcome.value for window in found.windows]


def skipped(inputs: Floats, outputs: Floats) -> Floats:
    return inputs


# -- verdicts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [HEAD, MIDDLE, TAIL])
@pytest.mark.parametrize("codec", ["raw", "int8"])
async def test_an_honest_server_passes(library: Library, place: int, codec: str) -> None:
    record = library.session(Tale(prompt=PROMPT, codec=codec))
    found = await audit(library, record, place)
    assert outcomes(found) == ["pass"] * 4
    assert (found.reference, found.attested, found.ceiling) == (TRUSTED, True, 0.001)
    assert all(window.found.error < 1e-4 and window.sketches for window in found.windows)
    if place == TAIL:
        assert [window.tokens.passed for window in found.windows] == [0, 0, 7, 5]


@pytest.mark.parametrize("place", [HEAD, MIDDLE, TAIL])
async def test_whoever_returns_its_input_fails_and_nobody_else(library: Library, place: int) -> None:
    record = library.session(Tale(prompt=PROMPT, cheats={place: skipped}))
    for stage in (HEAD, MIDDLE, TAIL):
        found = outcomes(await audit(library, record, stage))
        # Behind the cheater rows may be such as no text leads to: then a window is not counted.
        assert set(found) == {"hard"} if stage == place else set(found) <= {"pass", "uncounted"}, stage


async def test_a_cheat_in_one_window_fails_that_window(library: Library) -> None:
    def now_and_then(inputs: Floats, outputs: Floats) -> Floats:
        mixed = outputs.copy()
        mixed[32:64] = inputs[32:64]
        return mixed

    record = library.session(Tale(prompt=PROMPT, cheats={MIDDLE: now_and_then}))
    found = await audit(library, record, MIDDLE)
    assert outcomes(found) == ["pass", "hard", "pass", "pass"]
    assert [window.window for window in found.hard] == [1]


async def test_sixteen_bits_are_judged_as_sixteen_bits(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT, numerics="bfloat16"))
    for place in (HEAD, MIDDLE, TAIL):
        found = await audit(library, record, place)
        assert set(outcomes(found)) == {"pass"}
        assert found.ceiling == 0.025


async def test_a_local_heads_rows_are_those_it_sent(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT, remote_head=False, cheats={MIDDLE: skipped}))
    assert outcomes(await audit(library, record, HEAD)) == ["pass"] * 3
    assert outcomes(await audit(library, record, MIDDLE)) == ["hard"] * 3
    means = AuditMeans(transport=library.transport, calibration=library.calibration)
    with pytest.raises(MisuseError, match="feed"):
        await audit_stage(record, record.stages[HEAD], OwnReference(library.replica), means)


async def test_a_head_server_that_embeds_other_ids_fails(library: Library) -> None:
    other = library.replica.outputs(PROMPT[::-1] + PROMPT, span=SPANS[HEAD])
    record = library.session(Tale(prompt=PROMPT, cheats={HEAD: lambda inputs, outputs: other[: len(outputs)]}))
    assert outcomes(await audit(library, record, HEAD)) == ["hard"] * 4


async def test_only_drawn_windows_and_those_on_the_way_are_asked_for(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT))
    assert (await audit(library, record, MIDDLE, rate=0.0)).plan is None
    assert not library.archives[MIDDLE].asked
    plans = []
    for number in range(12):
        record = library.session(Tale(prompt=PROMPT, answers=1, secret=bytes([number]) * 32))
        found = await audit(library, record, MIDDLE, rate=0.3)
        plans.append(found.plan)
        if found.plan is None:
            assert not library.archives[MIDDLE].asked
            continue
        last = max(found.plan.drawn)
        assert [window.window for window in found.windows] == list(range(last + 1))
        assert max(asked.last for asked in library.archives[MIDDLE].asked) == found.plan.rows
        library.archives[MIDDLE].asked.clear()
    assert None in plans
    assert len({plan.drawn for plan in plans if plan is not None}) > 1


async def test_a_reference_of_another_quantization_is_refused_before_anything_is_asked(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT, numerics="float32+int8"))
    with pytest.raises(MisuseError, match="int8"):
        await audit(library, record, MIDDLE)
    assert not library.archives[MIDDLE].asked


# -- tokens ---------------------------------------------------------------------------------------------------

SAMPLED = SamplingParams(temperature=1.0, top_p=0.9, top_k=40, seed=5, repetition_penalty=1.2, presence_penalty=0.3)


@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED, SamplingParams(temperature=0.8, seed=2)])
async def test_a_tail_that_replaces_a_token_fails_there(library: Library, params: SamplingParams) -> None:
    def lie(position: int, token: int) -> int:
        return (token + 7) % 250 + 4 if position == 96 else token

    honest = await audit(library, library.session(Tale(prompt=PROMPT, params=params, answers=20)), TAIL)
    assert [window.tokens.passed for window in honest.windows] == [0, 0, 7, 13]
    found = await audit(library, library.session(Tale(prompt=PROMPT, params=params, answers=20, lie=lie)), TAIL)
    assert [window.tokens.hard for window in found.windows] == [0, 0, 0, 1]
    assert outcomes(found) == ["pass", "pass", "pass", "hard"]
    assert found.windows[3].rows is Outcome.PASS


async def test_a_tail_that_tells_the_client_another_token_than_it_signed_fails(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT))
    told = tuple((at, token ^ 1 if at == 92 else token) for at, token in record.answers)
    found = await audit(library, replace(record, answers=told), TAIL)
    assert [window.tokens.hard for window in found.windows] == [0, 0, 1, 0]


# -- what servers refuse, and what they forge -----------------------------------------------------------------


async def test_a_suspect_that_refuses_fails_its_asker_alone(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT))
    suspect = library.archives[MIDDLE]
    suspect.answer = lambda fetch, asked: fetch.send(Refused("none of your business"))
    found = await audit(library, record, MIDDLE)
    assert found.failure is not None
    assert not found.windows
    assert (found.failure.kind, found.failure.peer) == ("refused", suspect.peer)


async def test_a_suspect_that_is_busy_or_gone_is_unreachable(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT))
    suspect = library.archives[MIDDLE]
    suspect.answer = lambda fetch, asked: fetch.send(Busy(3.0, "later"))
    assert (await audit(library, record, MIDDLE)).failure.kind == "unreachable"  # type: ignore[union-attr]
    suspect.answer = lambda fetch, asked: asyncio.sleep(1e4)
    assert (await audit(library, record, MIDDLE)).failure.kind == "unreachable"  # type: ignore[union-attr]
    await library.network.kill(suspect.peer)
    assert (await audit(library, record, MIDDLE)).failure.kind == "unreachable"  # type: ignore[union-attr]


def showing(suspect: Archive, want: str, change: object) -> None:
    """From now on it changes what it shows."""
    honest = suspect.payload

    def payload(kept: KeptStage, asked: FetchRows, first: int, last: int) -> list[bytes | memoryview]:
        parts = honest(kept, asked, first, last)
        return change(parts) if asked.want == want else parts  # type: ignore[operator]

    suspect.payload = payload  # type: ignore[method-assign]


def bit_flipped(parts: list[bytes | memoryview]) -> list[bytes]:
    data = bytearray(b"".join(parts))
    data[-1] ^= 1
    return [bytes(data)]


@pytest.mark.parametrize("want", ["leaves", "outputs"])
@pytest.mark.parametrize("change", [bit_flipped, lambda parts: [b"".join(parts)[:-1]], lambda parts: [*parts, b"x"]])
async def test_a_suspect_that_shows_something_else_than_it_signed(library: Library, want: str, change: object) -> None:
    record = library.session(Tale(prompt=PROMPT, cheats={MIDDLE: skipped}))
    showing(library.archives[MIDDLE], want, change)
    found = await audit(library, record, MIDDLE)
    assert found.failure is not None
    assert (found.failure.kind, found.failure.peer) == ("refused", library.archives[MIDDLE].peer)


@pytest.mark.parametrize("change", [bit_flipped, lambda parts: [b"".join(parts)[:-1]], lambda parts: [*parts, b"x"]])
async def test_a_feeder_that_shows_other_rows_harms_nobody(library: Library, change: object) -> None:
    record = library.session(Tale(prompt=PROMPT))
    showing(library.archives[HEAD], "sent", change)
    found = await audit(library, record, MIDDLE)
    assert found.failure is not None
    assert not found.windows
    assert (found.failure.kind, found.failure.peer) == ("no inputs", library.archives[HEAD].peer)


async def test_a_feeder_that_refuses_harms_nobody(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT))
    library.archives[HEAD].answer = lambda fetch, asked: fetch.send(Refused("no"))
    found = await audit(library, record, MIDDLE)
    assert found.failure is not None
    assert (found.failure.kind, found.failure.peer) == ("no inputs", library.archives[HEAD].peer)


async def test_rows_from_before_a_heal_are_computed_from_and_blame_nobody(library: Library) -> None:
    """Who fed the first rows is gone; what its replacement shows of them is not what the suspect received."""
    record = library.session(Tale(prompt=PROMPT, cheats={MIDDLE: skipped}))
    replacement = library.session(Tale(prompt=[9, *PROMPT[1:]], cheats={MIDDLE: skipped}))
    kept = library.archives[HEAD].kept
    old, new = kept[(record.session, HEAD)], kept[(replacement.session, HEAD)]
    size = 50 * 4 * old.hidden
    kept[(record.session, HEAD)] = replace(old, sent=(new.sent or b"")[:size] + (old.sent or b"")[size:])
    healed = replace(record.stages[MIDDLE], linked_from=50)
    record = replace(record, stages=(record.stages[HEAD], healed, record.stages[TAIL]))
    found = await audit(library, record, MIDDLE)
    assert [window.window for window in found.windows] == [2, 3]
    assert (set(outcomes(found)), found.attested) == ({"hard"}, False)
    peer = library.archives[MIDDLE].peer
    trial = Trial(found, tuple((window.window, Ruling(struck=peer)) for window in found.hard))
    standing = consequences(record, trial, Policy())[peer](Standing())
    assert (standing.strikes, standing.audited, standing.evidence, standing.voided) == ((), 0, (), 2)


async def test_a_newcomer_is_judged_by_the_windows_that_it_signed(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT, cheats={MIDDLE: skipped}))
    newcomer = replace(record.stages[MIDDLE], receipts=record.stages[MIDDLE].receipts[2:])
    record = replace(record, stages=(record.stages[HEAD], newcomer, record.stages[TAIL]))
    found = await audit(library, record, MIDDLE)
    assert [window.window for window in found.windows] == [2, 3]
    assert not found.attested


async def test_a_stage_without_its_feeder_cannot_be_judged(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT))
    alone = replace(record, stages=(record.stages[MIDDLE],))
    found = await audit(library, alone, 0)
    assert found.failure is not None
    assert found.failure.kind == "no inputs"


async def test_a_stage_that_signed_for_other_rows_than_the_client_sent_contradicts_it(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT))
    found = await audit(library, replace(record, token_ids=(5, *record.token_ids[1:])), HEAD)
    assert found.failure is not None
    assert (found.failure.kind, found.failure.peer) == ("contradiction", library.archives[HEAD].peer)


async def test_frames_of_other_rows_than_asked(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT))
    suspect = library.archives[MIDDLE]

    async def shifted(fetch: FrameStream, asked: FetchRows) -> None:
        moved = FetchRows(asked.session, asked.stage, asked.secret, asked.first + 1, asked.last + 1, asked.want)
        await suspect.give(fetch, moved)

    suspect.answer = shifted
    found = await audit(library, record, MIDDLE)
    assert found.failure is not None
    assert found.failure.kind == "refused"


async def test_sketches_that_are_not_those_of_the_rows_are_noted(library: Library) -> None:
    record = library.session(Tale(prompt=PROMPT, calibrated=False))
    found = await audit(library, record, MIDDLE)
    assert [window.sketches for window in found.windows] == [None] * 4
    opening = record.stages[MIDDLE].opening
    assert opening.calibration != library.calibration.digest()
