"""A client's receipts: honest servers are never accused whatever happens."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from paper_chain import NAMES, PARAMS, SECRET, PaperChain

from swarm.client.evidence.receipts import Mended
from swarm.client.evidence.records import SessionRecord
from swarm.verification.signed.coverage import Known, by_signer, verify_coverage
from swarm.verification.signed.leaves import id_hashes
from swarm.verification.signed.merkle import merkle_root


def check_cover(chain: PaperChain, record: SessionRecord) -> None:
    """Every window's receipts cover the model, as anybody finds who has the record and the ids."""
    windows: dict[int, list[object]] = {}
    for stage in record.stages:
        for signed in stage.receipts:
            windows.setdefault(signed.receipt.window, []).append((stage, signed))
    for window, found in windows.items():
        first, last = 32 * window, min(32 * window + 32, len(record.token_ids))
        stages = [stage for stage, _ in found]  # type: ignore[misc]
        numbers = [stage.opening.stage for stage in sorted(stages, key=lambda stage: stage.opening.start)]
        seams = frozenset(pairwise(numbers))
        covered = verify_coverage(
            [signed for _, signed in found],  # type: ignore[misc]
            record.layer_count,
            by_signer(stage.opening for stage in stages),
            now_s=chain.now_s,
            known=Known((first, last), merkle_root(id_hashes(record.token_ids[first:last])), seams=seams),
        )
        assert len(covered.receipts) == 3


class Life:
    """One session, drawn: steps, rollbacks and heals, with receipts that arrive whenever they do."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.chain = PaperChain()

    def draw(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def live(self) -> None:
        for _ in range(self.draw(1, 12)):
            deed = self.data.draw(st.sampled_from([self.step, self.step, self.roll_back, self.heal, self.arrive]))
            deed()

    def step(self) -> None:
        rows = self.draw(1, 70)
        self.chain.step(rows, want=self.draw(0, min(rows, 3)))

    def roll_back(self) -> None:
        self.chain.step(self.draw(1, 40), keep=self.draw(0, len(self.chain.ids)))

    def heal(self) -> None:
        places = self.data.draw(st.sets(st.integers(0, 2), max_size=3))
        for place in places:
            self.chain.deliver(place, self.draw(0, 3))

        def meanwhile() -> None:
            for place in {0, 1, 2} - places:
                self.chain.deliver(place, self.draw(0, 2))

        self.chain.heal(*places, logs=self.data.draw(st.booleans()), fails=self.draw(0, 2), meanwhile=meanwhile)

    def arrive(self) -> None:
        self.chain.deliver(self.draw(0, 2), self.draw(1, 4))


@settings(max_examples=100)
@given(st.data())
def test_honest_servers_are_never_accused_and_cover_all_in_the_end(data: st.DataObject) -> None:
    life = Life(data)
    life.chain.step(5)
    life.live()
    chain = life.chain
    chain.settle(data.draw(st.integers(1, len(chain.ids))) if data.draw(st.booleans()) else None)
    chain.deliver_all()
    receipts = chain.receipts
    receipts.missing([0, 1, 2, *(stage.number for stage in chain.stages)])
    record = receipts.record(tuple(chain.ids), len(chain.ids))
    assert record.problems == ()
    assert record.covered_rows == len(chain.ids) == receipts.verification.rows
    check_cover(chain, record)
    ends = {stage.opening.stage: [one.receipt for one in stage.receipts[-1:]] for stage in record.stages[:3]}
    assert all([receipt] == ends[number] for number, receipt in receipts.linked().items())


def test_a_session_and_its_record() -> None:
    chain = PaperChain()
    chain.step(40)
    chain.step(1)
    chain.step(30, keep=41)
    chain.deliver_all()
    found = chain.receipts.verification
    assert (found.windows, found.rows, found.problems) == (1, 32, ())
    assert found.signers == tuple(stage.identity.peer_id for stage in chain.stages)
    chain.settle()
    chain.deliver_all()
    record = chain.receipts.record(tuple(chain.ids), 71)
    assert (record.session, record.secret, record.layer_count) == (NAMES.session, SECRET, 5)
    assert record.answers == tuple((row, (chain.ids[row] + 1) % 1000) for row in (39, 40, 70))
    assert record.params == ((40, PARAMS), (41, PARAMS), (71, PARAMS))
    assert [stage.upstream for stage in record.stages] == [None, 0, 1]
    assert [[one.receipt.last for one in stage.receipts] for stage in record.stages] == [[32, 64, 71]] * 3
    assert record.stage(1) is record.stages[1]
    assert record.stage(9) is None
    assert {number: receipt.last for number, receipt in chain.receipts.linked().items()} == {0: 71, 1: 71, 2: 71}


def test_a_rollback_takes_windows_back_at_once() -> None:
    chain = PaperChain()
    chain.step(100)
    chain.step(1)
    chain.deliver_all()
    assert chain.receipts.verification.rows == 96
    chain.step(1, keep=40)
    assert chain.receipts.verification.rows == 32
    chain.step(30)
    chain.step(1)
    chain.deliver_all()
    assert chain.receipts.verification.rows == 64


def test_where_rows_can_be_compared_after_a_heal_from_the_tokens() -> None:
    chain = PaperChain()
    chain.step(70)
    chain.step(10)
    chain.deliver_all()
    chain.heal(1, logs=False)
    chain.step(20)
    chain.settle()
    chain.deliver_all()
    record = chain.receipts.record(tuple(chain.ids), 100)
    head, middle, tail, lost = record.stages
    assert [stage.opening.stage for stage in record.stages] == [0, 3, 2, 1]
    assert (head.judged_from, middle.judged_from, tail.judged_from) == (64, 0, 0)
    assert (head.linked_from, middle.linked_from, tail.linked_from) == (0, 0, 80)
    assert [one.receipt.first for one in lost.receipts] == [0, 32]
    assert [one.receipt.first for one in middle.receipts] == [64, 96]
    assert (tail.upstream, lost.upstream) == (3, 0)
    assert record.covered_rows == 100


@pytest.mark.parametrize("lacking", [(), (2,), (0, 1)])
@pytest.mark.parametrize("places", [(0,), (1,), (2,)])
def test_back_into_windows_from_before_a_heal(places: tuple[int, ...], lacking: tuple[int, ...]) -> None:
    """Who computed the rows again signs for what it took in and gave out then; who did not, for what was before."""
    chain = PaperChain()
    chain.step(36, want=3)
    chain.step(44, want=2)
    chain.step(1)
    chain.deliver_all()
    chain.heal(*places, logs=False, fails=1, lacking=[place for place in lacking if place not in places])
    chain.step(1, keep=40)
    chain.step(30)
    chain.step(1)
    chain.settle()
    chain.deliver_all()
    record = chain.receipts.record(tuple(chain.ids), 72)
    assert (record.covered_rows, record.problems) == (72, ())


@pytest.mark.parametrize("fails", [0, 1])
def test_servers_that_sign_all_again_after_every_heal_are_not_too_busy(fails: int) -> None:
    chain = PaperChain(willing=(0, 2))
    chain.step(320)
    for _ in range(12):
        chain.step(1)
        chain.deliver_all()
        chain.heal(1, fails=fails)
    chain.step(1)
    chain.deliver_all()
    assert {problem.kind for problem in chain.receipts.verification.problems} == {"unwilling"}


def test_a_stage_that_began_to_compute_again_in_vain_holds_nothing_for_sure() -> None:
    chain = PaperChain()
    chain.step(70)
    chain.step(1)
    chain.deliver_all()
    chain.receipts.heal_failed(Mended(1, 71, 64, frozenset({0})))
    chain.settle()
    record = chain.receipts.record(tuple(chain.ids), 71)
    assert [stage.judged_from for stage in record.stages] == [71, 0, 0]
    assert [stage.linked_from for stage in record.stages] == [0, 71, 0]


def test_many_rollbacks_into_one_window() -> None:
    chain = PaperChain()
    chain.step(33)
    for _ in range(50):
        chain.step(2, keep=31)
        chain.step(1)
        chain.deliver_all()
    assert chain.receipts.verification.problems == ()


def test_a_window_that_becomes_whole_when_its_servers_were_told_to_sign_it_again() -> None:
    """It is theirs to sign once more: what they signed before is void."""
    chain = PaperChain()
    chain.step(70)
    chain.step(1)
    chain.deliver(0)
    chain.deliver(1)
    chain.deliver(2, 1)
    tail = chain.stages[2]
    chain.heal(1, fails=1, meanwhile=lambda: chain.deliver(2))
    assert tail is chain.stages[2]
    chain.step(1)
    assert [len(stage.queue) for stage in chain.stages] == [1, 1, 1]
    chain.deliver_all()
    assert chain.receipts.verification.rows == 64


def test_an_unwilling_server_is_named_and_nothing_is_covered() -> None:
    chain = PaperChain(willing=(0, 2))
    chain.step(70)
    chain.step(1)
    chain.deliver_all()
    assert chain.receipts.verification.windows == 0
    [problem] = chain.receipts.verification.problems
    assert (problem.kind, problem.peers) == ("unwilling", (chain.stages[1].identity.peer_id,))
    assert [signer.number for signer in chain.receipts.willing] == [0, 2]
    assert chain.receipts.whole_rows(71) == 0


def test_what_is_kept_back_is_noted_for_whoever_was_asked() -> None:
    chain = PaperChain()
    chain.step(40)
    chain.settle()
    chain.deliver(0)
    chain.deliver(1, 1)
    chain.receipts.missing([0, 1])
    [problem] = chain.receipts.verification.problems
    assert (problem.kind, problem.peers) == ("missing", (chain.stages[1].identity.peer_id,))
    assert problem.what.endswith("32:40")
    assert chain.receipts.linked() == {}
