"""What ``verifier`` and ``challenge`` refuse before anything is loaded, whom they choose, and what they say."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from swarm.cli.commands.challenge import EXIT_CODES, choose
from swarm.cli.commands.verifier import Teller
from swarm.cli.main import main
from swarm.cli.output.console import HumanConsole, JsonConsole
from swarm.cli.output.verdicts import finding_json, windows_text
from swarm.client.auditing.audit import AuditedWindow, StageAudit, TokenTally
from swarm.client.auditing.challenges import Finding, judged
from swarm.client.auditing.suspects import Suspect, Unchecked
from swarm.client.auditing.verifier import Judged
from swarm.core.announcement import Announcement, State
from swarm.core.errors import CapacityError, ConfigError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.numerics import Numerics
from swarm.core.sampling import SamplingParams
from swarm.core.spans import Span
from swarm.verification.challenges.audits import AuditPlan
from swarm.verification.challenges.challenge import Challenge
from swarm.verification.standings.strikes import Standing
from swarm.verification.verdicts.verdict import Outcome
from swarm.verification.verdicts.whitening import Comparison

PEERS = [Identity(bytes([number]) * 32).peer_id for number in (1, 2)]
ADDRESS = f"/ip4/192.0.2.1/tcp/31337/p2p/{PEERS[0]}"
CHALLENGE = Challenge(b"s" * 32, (1, 2, 3), 64, SamplingParams(), 1.0)
SUSPECT = Suspect(PEERS[0], Span(10, 20), Span(10, 20), "alpha\x1b")
WHERE = ["--initial-peers", ADDRESS]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verifier", "--initial-peers", "nonsense", "--blocks", "0:1"], "is not an address"),
        (["verifier", *WHERE, "--blocks", "5"], "cannot read the span '5'"),
        (["verifier", *WHERE, "--blocks", "0:5", "--rate", "0"], "--rate is 0"),
        (["verifier", *WHERE, "--blocks", "0:5", "--rate", "nan"], "--rate is nan"),
        (["verifier", *WHERE, "--blocks", "0:5", "--interval", "-1"], "--interval is -1"),
        (["verifier", *WHERE, "--blocks", "0:5", "--interval", "inf"], "--interval is inf"),
        (["verifier", *WHERE, "--blocks", "0:5", "--audit-mb", "0"], "--audit-mb is 0"),
        (["verifier", *WHERE, "--blocks", "0:5", "--threads", "0"], "--threads is 0"),
        (["challenge", *WHERE, "--peer", "x", "--seed", "minus"], "'minus' is no seed"),
        (["challenge", *WHERE, "--peer", "x", "--blocks", "3:2"], "span 3:2"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["verifier", "challenge"])
def test_the_help_teaches(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out


def listing(peer: PeerId, start: int = 0, end: int = 10, **changes: Any) -> Listing:
    record: dict[str, Any] = {"model": "demo@1#0123456789abcdef", "peer": peer, "instance": 1, "expires_s": 60.0}
    told: dict[str, Any] = {"sequence": 0, "layer_count": 30, "numerics": Numerics("float32"), "started_s": 0.0}
    announced = Announcement(**(record | told | {"start": start, "end": end} | changes))
    return Listing(announced, b"", Metrics(**record, sequence=1, tau_s=0.001, fixed_s=0.0, kv_free_tokens=9))


def test_a_server_is_named_by_the_end_of_its_id() -> None:
    listings = [listing(PEERS[0]), listing(PEERS[1], 5, 15)]
    assert choose(listings, PEERS[1][-8:], None, Numerics("float32")).span == Span(5, 15)
    assert choose(listings, PEERS[1], Span(7, 9), Numerics("float32")).span == Span(7, 9)
    with pytest.raises(ConfigError, match="no servers of this model"):
        choose(listings, "nobody", None, Numerics("float32"))
    with pytest.raises(ConfigError, match="no servers of this model"):
        choose(listings, "", None, Numerics("float32"))
    both = [listing(PeerId("one-ab")), listing(PeerId("two-ab"))]
    with pytest.raises(ConfigError, match="2 servers of this model"):
        choose(both, "-ab", None, Numerics("float32"))


def test_why_a_server_cannot_be_checked_is_said() -> None:
    quantized = [listing(PEERS[0], numerics=Numerics("float32", "int8"))]
    with pytest.raises(CapacityError, match=r"declares float32\+int8.*it is not spot-checkable"):
        choose(quantized, PEERS[0], None, Numerics("float32"))
    with pytest.raises(CapacityError, match="takes no sessions at present"):
        choose([listing(PEERS[0], state=State.DRAINING)], PEERS[0], None, Numerics("float32"))


def window(number: int, error: float, outcome: Outcome, tokens: TokenTally | None = None) -> AuditedWindow:
    return AuditedWindow(number, Comparison(0.9, 0.1, error, 32), outcome, tokens or TokenTally(), None)


def finding(*windows: AuditedWindow, **changes: Any) -> Finding:
    stage: Any = None  # nothing here looks at it
    plan = AuditPlan((0,), (0,), 32)
    fields: dict[str, Any] = {"plan": plan, "windows": windows, "fetched_bytes": 1000}
    return judged(Finding(SUSPECT, CHALLENGE, "undecided", ""), StageAudit(stage, **(fields | changes)))


PASS, SOFT, HARD = (window(0, e, o) for e, o in ((0.01, Outcome.PASS), (0.06, Outcome.SOFT), (0.4, Outcome.HARD)))
UNCOUNTED = window(1, float("inf"), Outcome.UNCOUNTED)
WRONG_TOKEN = window(0, 0.01, Outcome.PASS, TokenTally(passed=3, hard=1))


@pytest.mark.parametrize(
    ("windows", "changes", "kind", "code", "worst"),
    [
        ([PASS, UNCOUNTED], {}, "passed", 0, 0.01),
        ([PASS, SOFT], {}, "soft", 0, 0.06),
        ([PASS, SOFT, HARD], {}, "failed", 1, 0.4),
        ([WRONG_TOKEN], {}, "failed", 1, 0.01),
        ([HARD], {"attested": False}, "undecided", 3, 0.4),
        ([UNCOUNTED], {}, "undecided", 3, None),
        ([], {"plan": None}, "undecided", 3, None),
    ],
)
def test_what_windows_come_to(
    windows: list[AuditedWindow], changes: dict[str, Any], kind: str, code: int, worst: float | None
) -> None:
    found = finding(*windows, **changes)
    assert (found.kind, EXIT_CODES[found.kind], found.worst) == (kind, code, worst)
    told = json.loads(json.dumps(finding_json(found)))
    assert told["verdict"] == kind
    assert told["seed"] == CHALLENGE.seed.hex()
    assert len(told["windows"]) == len(windows)
    assert len(windows_text(found).splitlines()) == (len(windows) + 1 if windows else 0)


def test_people_and_programs_are_told_the_same() -> None:
    found = finding(HARD)
    event = Judged(found, Standing(), Standing(audited=1, strikes=(b"a", b"b"), ejected="2 confirmed failures"), True)
    for_people, for_programs = io.StringIO(), io.StringIO()
    for console in (HumanConsole(for_people), JsonConsole(for_programs)):
        teller = Teller(console)
        teller.sending(SUSPECT, CHALLENGE)
        teller.judged(event)
        teller.uncheckable(Unchecked(PEERS[1], Span(0, 5), "", "this verifier holds layers 10:20 only", False))
        teller.trouble("the directory does not answer")
    said = for_people.getvalue()
    assert "FAILED: 1 of 1 windows are wrong, e up to 0.4000" in said
    assert "EJECTED, 2 confirmed failures; others are shown the proof" in said
    assert "NOT SPOT-CHECKABLE" in said
    assert "\x1b" not in said
    events = [json.loads(line) for line in for_programs.getvalue().splitlines()]
    assert [one["event"] for one in events] == ["challenge", "verdict", "ejected", "unchecked", "trouble"]
    assert "seed" not in events[0], "not before it is revealed"
    assert events[1]["strikes"] == 2
    assert events[2]["accused"] is True
