"""What a server counts, told by its own clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.ids import chain_label
from swarm.server.reports.figures import PAUSE_S, SLOT_S, Figures, Window
from swarm.wire.frames import PREFIX_BYTES, encode_head, parse_message
from swarm.wire.messages import Open, Upstream
from swarm.wire.status import MAX_CHAINS, MAX_LINKS, WINDOW_S, LinkFigures, StageFigures, StatusReport, Totals


def opened(session: bytes = b"s" * 16, stage: int = 0, generation: int = 0) -> Open:
    return Open(
        1, "m@r#0123456789abcdef", session, stage, 3, 7, False, False, 100, "", "raw", Upstream("up", b"i" * 16), None,
        b"n" * 16, b"c" * 32, generation=generation,
    )  # fmt: skip


def report(figures: Figures, now_s: float) -> StatusReport:
    """What is told, as it comes out of a frame."""
    made = figures.report(now_s, receipts=0, sent_bytes=0, links=())
    assert parse_message(encode_head(made)[PREFIX_BYTES:]) == made
    return made


def chain(figures: Figures, now_s: float) -> StageFigures:
    [only] = report(figures, now_s).chains
    return only


def stepped(figures: Figures, at_s: float, *, rows: int = 1, answers: int = 0, session: object = "s") -> float:
    """A decode step that comes at ``at_s``, waits 10 ms, is computed for 20 and sent in 5; when it has left."""
    figures.began(at_s + 0.01)
    figures.ended(at_s + 0.03, decode=True)
    figures.computed(session, at_s + 0.03, rows=rows, decode=True, answers=answers)
    figures.left(session, at_s + 0.035, arrived_s=at_s, compute_s=0.02, computed_s=at_s + 0.03)
    return at_s + 0.035


@given(
    st.lists(st.tuples(st.floats(0, 40), st.integers(1, 9)), max_size=40),
    st.floats(0, 200),
)
def test_a_window_holds_the_last_minute_but_for_a_slot(gaps: list[tuple[float, int]], later_s: float) -> None:
    window, now_s, added = Window(1), 1000.0, []
    for gap_s, amount in gaps:
        now_s += gap_s
        window.at(now_s)[0] += amount
        added.append((now_s, amount))
    now_s += later_s
    [found] = window.sums(now_s)
    surely = sum(amount for at_s, amount in added if now_s - at_s < WINDOW_S - SLOT_S)
    at_most = sum(amount for at_s, amount in added if now_s - at_s <= WINDOW_S)
    assert surely <= found <= at_most


def test_where_the_time_of_a_step_goes() -> None:
    figures = Figures(100.0)
    figures.opened("s", opened(stage=5), 100.0)
    for step in range(4):
        stepped(figures, 101.0 + 0.1 * step, answers=1)
    found = chain(figures, 102.0)
    assert (found.label, found.stage, found.start, found.end) == (chain_label(b"s" * 16), 5, 3, 7)
    assert (found.wait_s, found.compute_s, found.send_s) == pytest.approx((0.01, 0.02, 0.005))
    assert found.period_s == pytest.approx(0.1)
    assert (found.decode_rows, found.prefill_rows) == (4, 0)
    assert (found.age_s, found.open_s) == pytest.approx((102.0 - 101.33, 2.0))
    told = report(figures, 102.0)
    assert (told.forward_s.total, told.step_s.total) == (4, 4)
    assert told.step_s.sum_s == pytest.approx(4 * 0.035)
    assert (told.decode_rows, told.answers) == (4, 4)


def test_a_prefill_is_counted_in_rows_and_measures_no_step() -> None:
    figures = Figures(0.0)
    figures.opened("s", opened(), 0.0)
    figures.began(0.0)
    figures.ended(3.0, decode=False)
    figures.computed("s", 3.0, rows=512, decode=False, answers=1)
    figures.passed("s")
    found, told = chain(figures, 3.0), report(figures, 3.0)
    assert (found.prefill_rows, found.decode_rows, found.wait_s, found.period_s) == (512, 0, None, None)
    assert (told.prefill_rows, told.answers, told.forward_s.total, told.step_s.total) == (512, 1, 0, 0)
    assert told.totals == Totals(sessions=1, prefill_rows=512, answers=1, forwards=1)


def test_the_time_between_two_answers_is_nobodys_step() -> None:
    """Neither a prompt that is typed, nor a long silence, is part of a period."""
    figures = Figures(0.0)
    figures.opened("s", opened(), 0.0)
    stepped(figures, 1.0)
    stepped(figures, 1.2)
    figures.passed("s")
    stepped(figures, 9.0)
    stepped(figures, 9.2)
    stepped(figures, 9.3 + PAUSE_S)
    assert chain(figures, 10.0 + PAUSE_S).period_s == pytest.approx(0.2)


def test_how_busy_the_engine_is() -> None:
    figures = Figures(0.0)
    assert report(figures, 0.0).busy_share == 0.0
    figures.began(1.0)
    figures.ended(2.0, decode=True)
    assert report(figures, 4.0).busy_share == pytest.approx(0.25)
    figures.began(4.0)
    assert report(figures, 8.0).busy_share == pytest.approx(5 / 8), "what is under way counts as far as it has got"
    assert report(figures, 500.0).busy_share == 1.0
    figures.stopped()
    assert report(figures, 500.0).busy_share == 0.0


def test_old_figures_go_and_totals_stay() -> None:
    figures = Figures(0.0)
    figures.opened("s", opened(), 0.0)
    left_s = stepped(figures, 1.0, answers=1)
    later = report(figures, left_s + WINDOW_S + SLOT_S)
    assert (later.decode_rows, later.answers, later.step_s.total, later.forward_s.sum_s) == (0, 0, 0, 0.0)
    assert later.totals == Totals(sessions=1, decode_rows=1, answers=1, forwards=1)
    assert later.uptime_s == left_s + WINDOW_S + SLOT_S
    [silent] = later.chains
    assert (silent.decode_rows, silent.wait_s, silent.period_s) == (0, None, None)
    assert silent.age_s > WINDOW_S, "it is still open"


def test_a_session_that_ended_is_told_of_for_a_minute() -> None:
    figures = Figures(0.0)
    figures.opened("s", opened(), 0.0)
    stepped(figures, 1.0)
    figures.closed("s", 5.0)
    stepped(figures, 6.0)
    assert chain(figures, 5.0 + WINDOW_S - SLOT_S).decode_rows <= 1, "what comes out later is not its any more"
    assert report(figures, 5.1 + WINDOW_S).chains == ()
    figures.closed("s", 7.0)


def test_of_many_chains_the_latest_are_told() -> None:
    figures = Figures(0.0)
    for number in range(3 * MAX_CHAINS):
        figures.opened(number, opened(number.to_bytes(16, "big")), float(number) / 100)
        stepped(figures, 10.0 + number, session=number)
        if number % 2:
            figures.closed(number, 10.0 + number)
    told = report(figures, 20.0 + 3 * MAX_CHAINS).chains
    assert len(told) == MAX_CHAINS
    assert [stage.age_s for stage in told] == sorted(stage.age_s for stage in told)
    assert told[0].label == chain_label((3 * MAX_CHAINS - 1).to_bytes(16, "big"))
    for number in range(5 * MAX_CHAINS):
        figures.opened(("short", number), opened(), 500.0)
        figures.closed(("short", number), 500.0)
    assert len(figures._ended) == MAX_CHAINS, "sessions that come and go by the thousand leave no more than this"


def test_who_takes_over_has_healed() -> None:
    figures = Figures(0.0)
    figures.opened("first", opened(), 0.0)
    figures.opened("newcomer", opened(stage=3, generation=1), 1.0)
    figures.refused += 1
    totals = report(figures, 2.0).totals
    assert (totals.sessions, totals.heals, totals.refused) == (2, 1, 1)
    assert len({stage.label for stage in report(figures, 2.0).chains}) == 1


def test_of_a_client_nothing_is_told() -> None:
    figures, session = Figures(0.0), bytes(range(16))
    figures.opened("s", opened(session), 0.0)
    stepped(figures, 1.0)
    packed = encode_head(figures.report(2.0, receipts=7, sent_bytes=9, links=()))
    assert session not in packed
    assert chain_label(session) in packed


def test_the_links_that_are_told_are_not_more_than_fit() -> None:
    links = [LinkFigures(f"peer {number}", 0.1, None, None) for number in range(2 * MAX_LINKS)]
    told = Figures(0.0).report(1.0, receipts=7, sent_bytes=9, links=links)
    assert told.links == tuple(links[:MAX_LINKS])
    assert (told.totals.receipts, told.totals.sent_bytes) == (7, 9)
