"""Which cheater is measured how: the span it serves, what it is asked, and which of its windows are cheated on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.cheaters.rows import is_rare
from benchmarks.inspector import Inspected
from swarm.client.auditing.audit import AuditedWindow
from swarm.core.spans import Span
from swarm.verification.signed.receipts import WINDOW_ROWS

HEAD, MIDDLE, TAIL = Span(0, 10), Span(10, 20), Span(20, 30)
FLOAT32, BFLOAT16 = ("--dtype", "float32"), ("--dtype", "bfloat16")

Cheated = Callable[[Inspected, AuditedWindow], bool]


def every_window(_: Inspected, __: AuditedWindow) -> bool:
    return True


def rare_window(inspected: Inspected, window: AuditedWindow) -> bool:
    """The cheater's own rule, by the row that it received first."""
    material = inspected.audit.material
    received = None if material is None else material.received()
    return received is not None and is_rare(received[window.window * WINDOW_ROWS].tobytes())


@dataclass(frozen=True, slots=True)
class Trial:
    """One cheater. ``numerics`` are options of every server of its chain, its own too.

    Sessions of ``prompt_tokens`` and ``new_tokens``, ``together`` at once, after ``warm_up`` ones that are not audited.
    ``cheated`` says which audited windows were cheated on. Those of one ``team`` stand in one chain, each judged by
    what it made of the rows that it received.
    """

    kind: str
    span: Span = MIDDLE
    numerics: tuple[str, ...] = FLOAT32
    prompt_tokens: int = 480
    new_tokens: int = 33
    temperature: float = 0.0
    together: int = 4
    warm_up: int = 0
    at_least: float = 1.0
    """Times as many windows as others."""
    cheated: Cheated = field(default=every_window)
    team: str = ""

    @property
    def session_windows(self) -> int:
        """Full ones: the last token of an answer is no row."""
        return (self.prompt_tokens + self.new_tokens - 1) // WINDOW_ROWS


def trials() -> dict[str, Trial]:
    """Every cheater whose rows or tokens are judged, by name. Those of tokens mostly write: a choice in every row."""
    plain = ("identity", "nf4", "int8", "fp8", "noise", "short-window", "surrogate")
    chosen = [Trial(kind) for kind in plain]
    chosen += [
        Trial("int8", numerics=BFLOAT16),
        Trial("noise", numerics=BFLOAT16),
        Trial("stale", warm_up=1, together=1),
        Trial("another", together=2),
        Trial("other-ids", span=HEAD),
        Trial("tokens", TAIL, FLOAT32, 32, 225, 1.0, 8, at_least=2.0),
        Trial("tokens-in-reach", TAIL, BFLOAT16, 32, 225, 1.0, 8),
        Trial("late:13", warm_up=4),
        Trial("rarely:13", at_least=6.0, cheated=rare_window),
    ]
    chosen += [Trial(f"skip:{layer}", span=_span_of(layer), team=f"skip {layer % 10}") for layer in range(30)]
    return {_name(trial): trial for trial in chosen}


def chosen_trials(names: Sequence[str]) -> dict[str, Trial]:
    """Those called so, or whose cheat is; all of them for no names."""
    return {
        name: trial
        for name, trial in trials().items()
        if not names or name in names or trial.kind in names or trial.kind.partition(":")[0] in names
    }


def teams_of(named: Mapping[str, Trial]) -> list[dict[str, Trial]]:
    """The trials by chains, in their order; those of one team ask alike."""
    found: dict[str, dict[str, Trial]] = {}
    for name, trial in named.items():
        found.setdefault(trial.team or name, {})[name] = trial
    return list(found.values())


@dataclass(frozen=True, slots=True)
class HonestTrial:
    """A chain of honest servers, every stage of which is audited."""

    numerics: tuple[str, ...]
    threads: int
    together: int

    @property
    def name(self) -> str:
        declared = "+".join(part for part in self.numerics if not part.startswith("--"))
        beside = "alone" if self.together == 1 else f"{self.together} sessions at once"
        return f"{declared}, {self.threads} thread{'s' * (self.threads > 1)}, {beside}"

    @property
    def options(self) -> tuple[str, ...]:
        return (*self.numerics, "--threads", str(self.threads))


def honest_trials() -> list[HonestTrial]:
    numerics = [FLOAT32, BFLOAT16, (*BFLOAT16, "--quantization", "int8")]
    return [HonestTrial(what, threads, at_once) for what in numerics for threads in (1, 2) for at_once in (1, 4)]


def _name(trial: Trial) -> str:
    return trial.kind if trial.numerics == FLOAT32 else f"{trial.kind} in {trial.numerics[1]}"


def _span_of(layer: int) -> Span:
    return next(span for span in (HEAD, MIDDLE, TAIL) if span.start <= layer < span.end)


def honest_request(trial: HonestTrial) -> Trial:
    """What its sessions ask: alone for long prompts, side by side for long answers, which take most of the time."""
    alone = trial.together == 1
    prompt_tokens, new_tokens = (960, 33) if alone else (480, 97)
    return Trial("", HEAD, trial.numerics, prompt_tokens, new_tokens, together=trial.together)
