"""How an answer is told: what its receipts show, for people and as JSON."""

from __future__ import annotations

import dataclasses
import json

from swarm.cli.asking import attribution, result_json
from swarm.client.records import ReceiptProblem, Verification
from swarm.client.results import GenerationResult
from swarm.core.ids import PeerId

ONE, OTHER = PeerId("12D3KooWone"), PeerId("12D3KooWother")
RESULT = GenerationResult("hi", (1, 2), "stop", 60, 0.5, 10.0, (), exact=True, seed=7)
FOUND = Verification(2, 61, (ONE, OTHER), (ReceiptProblem("equivocation", (OTHER,), "one counter twice", b"\x01\xff"),))


def test_one_line_says_who_answered_and_what_is_wrong() -> None:
    line = "[attributed: 61 rows in 2 windows, by 2 servers; equivocation: one counter twice]"
    assert attribution(FOUND) == line
    assert attribution(RESULT.verification) == "[attributed: 0 rows in 0 windows, by 0 servers]"


def test_as_json_with_the_proof() -> None:
    told = json.loads(result_json(dataclasses.replace(RESULT, verification=FOUND)))["verification"]
    assert (told["windows"], told["rows"], told["signers"]) == (2, 61, [ONE, OTHER])
    [problem] = told["problems"]
    assert problem == {"kind": "equivocation", "peers": [OTHER], "what": "one counter twice", "proof": "01ff"}
