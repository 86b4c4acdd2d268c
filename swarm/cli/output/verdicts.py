"""Challenges and what they come to, as people and programs read them."""

from __future__ import annotations

from swarm.cli.output.tables import table
from swarm.client.auditing.audit import AuditedWindow
from swarm.client.auditing.challenges import Finding
from swarm.client.auditing.suspects import Suspect
from swarm.verification.challenges.challenge import Challenge

SAID = {
    "passed": "PASSED",
    "soft": "SOFT",
    "failed": "FAILED",
    "equivocated": "FAILED",
    "unanswered": "UNANSWERED",
    "undecided": "UNDECIDED",
}


def name_of(name: str, peer: str) -> str:
    """A server for people: its own name, if it has one, and the end of its peer id."""
    return f"{name} ({peer[-8:]})" if name else peer[-8:]


def named(suspect: Suspect) -> str:
    """A server and the layers in question."""
    return f"{name_of(suspect.name, suspect.peer)} layers {suspect.span}"


def figures(found: Finding) -> str:
    """The verdict in a line."""
    worst = "" if found.worst is None else f", e up to {found.worst:.4f}"
    return f"{SAID[found.kind]}: {found.what}{worst}"


def windows_text(found: Finding) -> str:
    """A line for each window."""
    windows = () if found.audit is None else found.audit.windows
    rows = [[str(window.window), *_compared(window), _tokens(window), str(window.outcome)] for window in windows]
    return table(["window", "rows", "e", "cosine", "tokens", "outcome"], rows) if rows else ""


def challenge_json(challenge: Challenge) -> dict[str, object]:
    """What was asked; the seed is told once it has been revealed."""
    return {
        "prompt_tokens": len(challenge.prompt),
        "max_new_tokens": challenge.max_new_tokens,
        "temperature": challenge.sampling.temperature,
    }


def finding_json(found: Finding) -> dict[str, object]:
    """Everything about a finding."""
    audit, suspect = found.audit, found.suspect
    return {
        "peer": suspect.peer,
        "span": [suspect.span.start, suspect.span.end],
        "public_name": suspect.name,
        "seed": found.challenge.seed.hex(),
        **challenge_json(found.challenge),
        "verdict": found.kind,
        "what": found.what,
        "worst_e": found.worst,
        "session": None if found.record is None else found.record.session.hex(),
        "fetched_bytes": 0 if audit is None else audit.fetched_bytes,
        "windows": [] if audit is None else [_window_json(window) for window in audit.windows],
    }


def _window_json(window: AuditedWindow) -> dict[str, object]:
    found, tokens = window.found, window.tokens
    return {
        "window": window.window,
        "rows": found.rows,
        "e": _finite(found.error),
        "cosine": found.cosine,
        "norm_difference": _finite(found.norm_difference),
        "tokens": {
            "pass": tokens.passed,
            "soft": tokens.soft,
            "hard": tokens.hard,
            "uncounted": tokens.uncounted,
        },
        "outcome": str(window.outcome),
    }


def _finite(value: float) -> float | None:
    """JSON has no infinity: None for what cannot be compared at all."""
    return value if abs(value) < float("inf") else None


def _compared(window: AuditedWindow) -> list[str]:
    found = window.found
    return [str(found.rows), f"{found.error:.4f}", f"{found.cosine:.4f}"]


def _tokens(window: AuditedWindow) -> str:
    tokens = window.tokens
    judged = tokens.passed + tokens.soft + tokens.hard
    if not judged:
        return "-"
    wrong = f", {tokens.hard} wrong" if tokens.hard else ""
    return f"{tokens.passed}/{judged}{wrong}"
