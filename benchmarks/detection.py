"""How surely audits find each cheater, and that they find nobody else: real processes, ordinary sessions.

Every cheater is a process of its own in a chain of honest ones. A client asks with challenge texts, fetches what the
server kept, and has a replica of its own compute it again: every window is audited. ``d`` is the share of windows
cheated on that fail hard. How long such a server lasts is then played by ``lives`` under the default policy.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count, groupby
from pathlib import Path
from typing import Any

from benchmarks.inspector import Inspected, Inspector, Request, calibration_of
from benchmarks.lives import Seen, live, windows_until_ejection
from benchmarks.nursery import Nursery
from benchmarks.processes import Node, Processes
from benchmarks.setup import demo_files, say
from benchmarks.trials import HEAD, MIDDLE, TAIL, Trial, chosen_trials, honest_request, honest_trials, teams_of
from swarm.client.auditing.audit import AuditedWindow
from swarm.client.blocking import SwarmModel
from swarm.core.spans import Span
from swarm.verification.verdicts.verdict import Outcome

SPANS = (HEAD, MIDDLE, TAIL)
PATIENT: dict[str, Any] = {
    "host": "127.0.0.1",
    "reputation": ":memory:",
    "busy_timeout_s": 600.0,
    "step_timeout_s": 300.0,
    "heal_timeout_s": 300.0,
}
"""A client that remembers nothing, and waits for slow servers: quantized weights on a CPU are."""
HARD_ERROR = float("inf")
LIVES_SESSION_WINDOWS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kinds", nargs="*", metavar="KIND", help="cheaters to measure, like nf4 or skip:13; skip for "
                        "all positions, nothing after it for none (default: all)")  # fmt: skip
    parser.add_argument("--windows", type=int, default=64, help="audited per cheater, at least (default: 64)")
    parser.add_argument("--honest-windows", type=int, default=2000, help="of honest servers in all (default: 2000; 0 "
                        "for none)")  # fmt: skip
    parser.add_argument("--lives", type=int, default=60, help="played for each mean (default: 60)")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """The figures of each cheater, and of honest servers."""
    calibration_of(demo_files())
    wanted = chosen_trials(options.kinds or []) if options.kinds is None or options.kinds else {}
    cheaters: dict[str, Any] = {}
    for (numerics, spans), teams in groupby(sorted(teams_of(wanted), key=_base_name), _base):
        with swarm(numerics, spans) as bench:
            for team in teams:
                cheaters |= _cheaters(bench, team, options)
    figures: dict[str, Any] = {"cheaters": cheaters} if cheaters else {}
    return figures | ({"honest": _honest(options.honest_windows)} if options.honest_windows else {})


class Bench:
    """A swarm of honest servers and a client that audits. Nobody else holds a cheater's layers, or who is slow would be
    left in the middle of an answer."""

    def __init__(self, nodes: Sequence[Node], inspector: Inspector, processes: Processes) -> None:
        self.nodes = nodes
        self.processes = processes
        self._inspector = inspector
        self._numbers = count()

    @property
    def addresses(self) -> list[str]:
        return [node.address for node in self.nodes]

    def sessions(self, trial: Trial, sessions: int, spans: Sequence[Span]) -> list[Inspected]:
        """At least ``sessions`` of them, the stages of ``spans`` audited."""
        found: list[Inspected] = []
        for _ in range(-(-sessions // trial.together)):
            requests = [
                Request(next(self._numbers), trial.prompt_tokens, trial.new_tokens, trial.temperature)
                for _ in range(trial.together)
            ]
            for record in self._inspector.ask(requests):
                found += [self._inspector.audit(record, span, trial.prompt_tokens) for span in spans]
        return found

    def warm_up(self, trial: Trial) -> None:
        if trial.warm_up:
            self._inspector.ask(
                [
                    Request(next(self._numbers), trial.prompt_tokens, trial.new_tokens, trial.temperature)
                    for _ in range(trial.warm_up)
                ]
            )


@contextmanager
def swarm(options: Sequence[str], spans: Sequence[Span] = SPANS) -> Iterator[Bench]:
    """Honest servers of ``spans`` with ``options``, and a client.

    For no spans one that no chain can use, for others to join through.
    """
    with tempfile.TemporaryDirectory(prefix="swarm-detection-") as name, ExitStack() as stack:
        processes, nodes = Processes(stack.enter_context(Nursery()), Path(name)), list[Node]()
        for span in spans or [Span(0, 1)]:
            join = [node.address for node in nodes[:1]]
            how = options if spans else (*options, "--no-head")
            nodes.append(stack.enter_context(processes.serving(span, join, options=how)))
        addresses = [node.address for node in nodes]
        joining = SwarmModel.connect("demo", initial_peers=addresses, **PATIENT)
        model = stack.enter_context(joining)
        yield Bench(nodes, Inspector(model, calibration_of(demo_files())), processes)


def _base(team: Mapping[str, Trial]) -> tuple[tuple[str, ...], tuple[Span, ...]]:
    """The numerics of a chain with these cheaters, and the spans that honest servers hold in it."""
    taken = {trial.span for trial in team.values()}
    numerics = next(iter(team.values())).numerics
    return numerics, tuple(span for span in SPANS if span not in taken)


def _base_name(team: Mapping[str, Trial]) -> str:
    return str(_base(team))


def _cheaters(bench: Bench, team: Mapping[str, Trial], options: argparse.Namespace) -> dict[str, Any]:
    """Start them, ask through them, audit them; the figures of each."""
    trial = max(team.values(), key=lambda trial: trial.at_least)
    sessions = -(-round(options.windows * trial.at_least) // trial.session_windows)
    with ExitStack() as stack:
        for each in team.values():
            serving = bench.processes.serving(each.span, bench.addresses, cheat=each.kind, options=each.numerics)
            stack.enter_context(serving)
        bench.warm_up(trial)
        found = bench.sessions(trial, sessions, [each.span for each in team.values()])
    figures = {}
    for place, (name, each) in enumerate(team.items()):
        mine = found[place :: len(team)]
        figures[name] = figures_of(mine, each) | _lives(mine, each, options.lives) | {"live": live(mine)}
        say(f"{name}: {figures[name]}")
    return figures


def figures_of(found: Sequence[Inspected], trial: Trial) -> dict[str, Any]:
    """What the audits saw: counts of windows by outcome, e, and d."""
    windows = [(inspected, window) for inspected in found for window in inspected.windows]
    counted = [(whole, window) for whole, window in windows if window.outcome is not Outcome.UNCOUNTED]
    cheated = [window for whole, window in counted if trial.cheated(whole, window)]
    hard = sum(window.outcome is Outcome.HARD for window in cheated)
    outcomes = Counter(str(window.outcome) for _, window in windows)
    tokens = Counter(
        {name: sum(getattr(window.tokens, name) for _, window in windows) for name in ("passed", "soft", "hard")}
    )
    return {
        "windows": len(windows),
        "decode_windows": sum(whole.is_decode(window) for whole, window in windows),
        "cheated_windows": len(cheated),
        "d": hard / len(cheated) if cheated else 0.0,
        **{f"{outcome}_windows": outcomes[outcome] for outcome in ("pass", "soft", "hard", "uncounted")},
        **errors_of(cheated),
        **{f"{name}_tokens": number for name, number in tokens.items()},
        "failures": dict(Counter(whole.audit.failure.kind for whole in found if whole.audit.failure is not None)),
    }


def errors_of(windows: Sequence[AuditedWindow]) -> dict[str, float]:
    """e, smallest, median and largest; nothing for no windows."""
    errors = [window.found.error for window in windows]
    if not errors:
        return {}
    return {"e_min": min(errors), "e_median": statistics.median(errors), "e_max": max(errors)}


def _lives(found: Sequence[Inspected], trial: Trial, lives: int) -> dict[str, Any]:
    """Windows until ejection of a server whose windows look like these."""
    counted = [
        (trial.cheated(whole, window), HARD_ERROR if window.outcome is Outcome.HARD else window.found.error)
        for whole in found
        for window in whole.windows
        if window.outcome is not Outcome.UNCOUNTED
    ]
    cheated = [error for cheats, error in counted if cheats]
    if not cheated:
        return {}
    seen = Seen(
        cheated,
        [error for cheats, error in counted if not cheats],
        ceiling=found[0].audit.ceiling,
        share=len(cheated) / len(counted),
        honest_first=50 if trial.kind.startswith("late") else 0,
        session_windows=LIVES_SESSION_WINDOWS,
    )
    return windows_until_ejection(seen, lives)


def _honest(windows: int) -> dict[str, Any]:
    """All stages of chains of honest servers: by configuration, and all together."""
    configurations = honest_trials()
    parts: dict[str, Any] = {}
    for honest in configurations:
        trial = honest_request(honest)
        sessions = -(-windows // (len(configurations) * len(SPANS) * trial.session_windows))
        with swarm(honest.options) as bench:
            parts[honest.name] = figures_of(bench.sessions(trial, sessions, SPANS), trial)
        say(f"{honest.name}: {parts[honest.name]}")
    totals = Counter[str]()
    for part in parts.values():
        totals.update({name: number for name, number in part.items() if name.endswith(("windows", "tokens"))})
    return {**totals, "largest_e": max(part["e_max"] for part in parts.values()), **parts}


__all__ = ["add_arguments", "measure"]
