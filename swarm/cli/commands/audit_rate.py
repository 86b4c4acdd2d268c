"""``swarm audit-rate``: how often to audit so that cheating does not pay, and what that costs the honest."""

from __future__ import annotations

import argparse
import json
import math

from swarm.core.errors import ConfigError
from swarm.verification.standings.economics import (
    Stakes,
    cheated_windows,
    deterring_rate,
    deterring_rate_escalated,
    honest_ejection,
    honest_ejection_bound,
)

MOST_AUDITS = 1_000_000

EXAMPLES = """\
examples:
  python -m swarm audit-rate --saving 0.6 --loss 300 --detection 0.95 --strikes 2
  python -m swarm audit-rate --strikes 3 --false-rate 0.01 --audits 200     # how many honest servers would go?
  python -m swarm audit-rate --loss 50 --json

A window is 32 positions of one stage. Cheating does not pay once q > saving * strikes / (detection * loss). The loss is
what ejection costs, in windows: for volunteers mostly the work without credit of a new identity on probation. Exit
code: 0, or 1 if not even auditing every window deters.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Say how many windows to audit so that cheating does not pay, and how the honest fare."
    parser.epilog = EXAMPLES
    parser.add_argument("--saving", type=float, default=0.6, metavar="G",
                        help="part of a window's cost that cheating on it saves (default: 0.6)")  # fmt: skip
    parser.add_argument("--loss", type=float, default=300.0, metavar="WINDOWS",
                        help="what ejection costs the cheater, in windows (default: 300)")  # fmt: skip
    parser.add_argument("--detection", type=float, default=0.95, metavar="D",
                        help="probability that auditing a cheated window strikes (default: 0.95)")  # fmt: skip
    parser.add_argument("--strikes", type=int, default=2, metavar="K", help="strikes that eject (default: 2)")
    parser.add_argument("--false-rate", type=float, default=1e-4, metavar="F",
                        help="probability that an audit strikes an honest server (default: 1e-4)")  # fmt: skip
    parser.add_argument("--audits", type=int, default=500, metavar="M",
                        help="over how many audits an honest server should last (default: 500)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(options: argparse.Namespace) -> int:
    if not 1 <= options.audits <= MOST_AUDITS:
        raise ConfigError(f"--audits is {options.audits}", hint=f"it must be 1 to {MOST_AUDITS}")
    if not 0 <= options.false_rate <= 1:
        raise ConfigError(f"--false-rate is {options.false_rate:g}", hint="it must be 0 to 1")
    stakes = Stakes(options.saving, options.loss, options.detection, options.strikes)
    found = answer(stakes, false_rate=options.false_rate, audits=options.audits)
    print(json.dumps(found) if options.json else text(found))
    return 0 if found["deterred"] else 1


def answer(stakes: Stakes, *, false_rate: float, audits: int) -> dict[str, object]:
    """Everything the command says. At the rate itself a cheater comes out even; above it he loses."""
    rate, strikes, detection = deterring_rate(stakes), stakes.strikes, stakes.detection
    return {
        "saving": stakes.saving, "loss_windows": stakes.loss, "detection": detection, "strikes": strikes,
        "false_rate": false_rate, "audits": audits,
        "q": rate, "q_if_he_goes_on": deterring_rate_escalated(stakes), "deterred": rate < 1,
        "cheated_windows": cheated_windows(strikes, rate, detection) if rate < 1 else None,
        "honest_ejection": honest_ejection(audits, false_rate, strikes),
        "honest_ejection_bound": honest_ejection_bound(audits, false_rate, strikes),
        "assumptions": list(ASSUMPTIONS),
    }  # fmt: skip


ASSUMPTIONS = (
    "the loss is real: whoever is ejected loses that many windows, because a new identity works them off on probation",
    "which windows are audited is neither known nor chosen by the server, and audits are independent of each other",
    "the cheater weighs means: neither a gambler nor one who cheats for its own sake is deterred, only caught",
    "false strikes of an honest server are independent; a fault that repeats itself is not covered",
)


def text(found: dict[str, object]) -> str:
    """The same for people."""
    rate, strikes = _number(found, "q"), found["strikes"]
    if not found["deterred"]:
        lines = [f"no audit rate deters: q would be {rate:.4g}; fewer strikes or a larger loss would help"]
    else:
        lines = [
            f"q = {rate:.4%}: audit more of the windows than that, and cheating does not pay",
            "  for a cheater who pauses after each strike; at that rate he lasts"
            f" {_number(found, 'cheated_windows'):.0f} windows on average",
            f"  ({_number(found, 'q_if_he_goes_on'):.4%} is enough for one who goes on while every window is audited)",
        ]
    lines += [
        f"an honest server is ejected within {found['audits']} audits with probability"
        f" {_number(found, 'honest_ejection'):.2g} ({strikes} strikes, each falsely with"
        f" {_number(found, 'false_rate'):g}; bound {_number(found, 'honest_ejection_bound'):.2g})",
        "this rests on:",
        *(f"  - {assumption}" for assumption in ASSUMPTIONS),
    ]
    return "\n".join(lines)


def _number(found: dict[str, object], name: str) -> float:
    value = found[name]
    return value if isinstance(value, float) else math.nan
