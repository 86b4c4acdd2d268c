"""How an answer is told: what its receipts show, for people and as JSON."""

from __future__ import annotations

import dataclasses
import json

import pytest

from swarm.cli.asking import attribution, progress_text, result_json, summary
from swarm.client.evidence.records import ReceiptProblem, Verification
from swarm.client.results import GenerationResult, Heal, Progress
from swarm.core.ids import PeerId

ONE, OTHER = PeerId("12D3KooWone"), PeerId("12D3KooWother")
RESULT = GenerationResult("hi", (1, 2), "stop", 60, 0.5, 10.0, (), exact=True, seed=7)
FOUND = Verification(2, 61, (ONE, OTHER), (ReceiptProblem("equivocation", (OTHER,), "one counter twice", b"\x01\xff"),))


def test_one_line_says_who_answered_and_what_is_wrong() -> None:
    line = "[attributed: 61 rows in 2 windows, by 2 servers; equivocation: one counter twice]"
    assert attribution(FOUND) == line
    assert attribution(RESULT.verification) == "[attributed: 0 rows in 0 windows, by 0 servers]"


@pytest.mark.parametrize(("heals", "told"), [(0, "stop; ]"), (1, ", healed once]"), (3, ", healed 3 times]")])
def test_how_it_went_in_one_line(heals: int, told: str) -> None:
    heal = Heal(lost=(), replaced_by=(), pause_s=0.4, replayed_rows=40, reason="gone")
    line = summary(dataclasses.replace(RESULT, heals=(heal,) * heals))
    assert line.startswith("[2 tokens, 10.0 tok/s, first after 0.50 s, ")
    assert line.endswith(told)


def test_as_json_with_the_proof() -> None:
    told = json.loads(result_json(dataclasses.replace(RESULT, verification=FOUND)))["verification"]
    assert (told["windows"], told["rows"], told["signers"]) == (2, 61, [ONE, OTHER])
    [problem] = told["problems"]
    assert problem == {"kind": "equivocation", "peers": [OTHER], "what": "one counter twice", "proof": "01ff"}


@pytest.mark.parametrize(
    ("progress", "had", "took_s", "later_s", "text"),
    [
        (Progress("routing"), 0, 0.2, 0.3, "looking for servers"),
        (Progress("waiting", detail="everybody is busy"), 0, 0.0, 75.0, "waiting everybody is busy, 1 min 15 s"),
        (Progress("prefill", 512, 4096), 0, 2.0, 0.0, "reading 512/4096 tokens (12 %), 256 tok/s, 14 s left"),
        (Progress("prefill", 512, 4096), 0, 2.0, 4.0, "reading 512/4096 tokens (12 %), 256 tok/s, 10 s left"),
        (Progress("prefill", 1000, 2000), 900, 1.0, 0.0, "reading 1000/2000 tokens (50 %), 100 tok/s, 10 s left"),
        (Progress("prefill", 0, 4096), 0, 0.0, 3.0, "reading 0/4096 tokens (0 %), 3 s"),
        (Progress("prefill", 4096, 4096), 0, 9.0, 0.0, "reading 4096/4096 tokens (100 %), 9 s"),
    ],
)
def test_what_a_question_waits_for(progress: Progress, had: int, took_s: float, later_s: float, text: str) -> None:
    assert progress_text(progress, had, took_s, later_s) == text
