"""Busy for audits only: exact chances, and honest servers that are just busy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.verification.standings.answering import FIRST_LOOK, Requests, refusals_by_chance, shuns_audits

ALARM = 1e-6


@given(st.integers(1, 12), st.integers(0, 12), st.data())
def test_the_chance_is_the_hypergeometric_tail(asked: int, others: int, data: st.DataObject) -> None:
    refused = data.draw(st.integers(0, asked))
    others_refused = data.draw(st.integers(0, others))
    total = refused + others_refused
    exact = sum(
        math.comb(total, count) * math.comb(asked + others - total, asked - count)
        for count in range(refused, min(asked, total) + 1)
    ) / math.comb(asked + others, asked)
    found = refusals_by_chance(Requests(asked, refused), Requests(others, others_refused))
    assert found == pytest.approx(exact, rel=1e-9)


@pytest.mark.parametrize("busy", [0.0, 0.1, 0.5])
def test_honest_servers_that_are_busy_are_not_accused(busy: float) -> None:
    """At a bound that a simulation can see: 400 servers, 128 audits each among five times as many other requests."""
    rng = np.random.default_rng(1)
    accused = 0
    for _ in range(400):
        audits = traffic = Requests()
        refuses = rng.random((128, 6)) < busy
        for first, *rest in refuses.tolist():
            traffic = Requests(traffic.asked + 5, traffic.refused + sum(rest))
            audits = audits.one_more(answered=not first)
            if shuns_audits(audits, traffic, false_alarm=0.02):
                accused += 1
                break
    assert accused <= 400 * 0.02 + 3 * math.sqrt(400 * 0.02)


def asked_until_accused(refuses_audits: float, refuses_traffic: float) -> int:
    rng = np.random.default_rng(2)
    audits = traffic = Requests()
    while not shuns_audits(audits, traffic, false_alarm=ALARM):
        for _ in range(20):
            traffic = traffic.one_more(answered=rng.random() >= refuses_traffic)
        audits = audits.one_more(answered=rng.random() >= refuses_audits)
        assert audits.asked < 1000
    return audits.asked


def test_a_server_that_shuns_audits_is_found() -> None:
    assert asked_until_accused(1.0, 0.02) == FIRST_LOOK
    assert asked_until_accused(0.5, 0.02) <= 32
    assert asked_until_accused(0.5, 0.2) <= 128


def test_whoever_refuses_everybody_is_just_busy() -> None:
    assert not shuns_audits(Requests(64, 64), Requests(500, 500), false_alarm=ALARM)
    assert not shuns_audits(Requests(64, 64), Requests(), false_alarm=ALARM)
    assert not shuns_audits(Requests(), Requests(10, 0), false_alarm=ALARM)


def test_it_looks_only_when_the_number_has_doubled() -> None:
    looks = [n for n in range(1, 200) if shuns_audits(Requests(n, n), Requests(10_000, 0), false_alarm=ALARM)]
    assert looks == [8, 16, 32, 64, 128]
