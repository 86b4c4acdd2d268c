"""What `generate` and `chat` share: the options of a question, and how progress and answers are shown."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

from swarm.cli.joining import add_joining, check_joining, joining_text, lan_of
from swarm.cli.output.live_line import LiveLine, waiting
from swarm.client.blocking import SwarmModel
from swarm.client.evidence.records import Verification
from swarm.client.request import Options
from swarm.client.results import ChainStage, GenerationResult, Progress
from swarm.core.errors import ConfigError
from swarm.models.progress import ProgressLine, human_s
from swarm.runtime.logs import printable

LINE_CHARS = 100
"""A status line's length; one that wraps could not be overwritten."""

TRUST = """\
what the answer is worth: servers are strangers. Their replies are *attributed* to the peer ids shown
with the result. That they computed right is *spot-checked*: by whoever runs `verifier`, and for this
very conversation with --audit-my-traffic; no single answer is proven. Nothing is *confidential*:
whoever holds the first layers can read your prompt, and with the remote head the last one sees the answer.
"""


def add_question_arguments(parser: argparse.ArgumentParser) -> None:
    """Where to ask, and how to sample."""
    parser.epilog = TRUST
    where = parser.add_argument_group("whom to ask")
    where.add_argument(
        "--model", default="demo", help="demo (default), a folder, or a Hugging Face id, optionally ID@REVISION"
    )
    add_joining(where)
    where.add_argument("--head", choices=("auto", "local", "remote"), default="auto",
                       help="who embeds and samples: the servers (auto, remote), or this machine (local)")  # fmt: skip
    where.add_argument("--compression", choices=("none", "int8"), default="none", help="of rows on their way: int8 "
                       "takes a quarter of float32, and is lossy (default: none)")  # fmt: skip
    where.add_argument(
        "--identity", type=Path, help="key file of this client, made if missing (default: a new key each time)"
    )
    where.add_argument("--audit-my-traffic", action="store_true", help="have other servers compute some of this "
                       "conversation again, and cheaters ejected: they see its rows (needs a calibration of the model, "
                       "see `calibrate`)")  # fmt: skip
    where.add_argument("--audit-mb", type=float, default=500.0, metavar="MB", help="megabytes an hour that audits may "
                       "move (default: 500)")  # fmt: skip
    where.add_argument("--reputation", type=Path, metavar="FILE", help="what is known of servers, see `reputation` "
                       "(default: in the data folder)")  # fmt: skip
    how = parser.add_argument_group("how to answer")
    how.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="length of the answer at most "
                     "(default: 256)")  # fmt: skip
    how.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0 (the default) always takes the "
                     "likeliest token; 0.7 is usual for a livelier answer")  # fmt: skip
    how.add_argument("--top-k", type=int, default=0, metavar="K", help="sample among the K likeliest tokens "
                     "(default: 0, off)")  # fmt: skip
    how.add_argument("--top-p", type=float, default=1.0, metavar="P", help="sample among the likeliest tokens that "
                     "have this probability together (default: 1, off)")  # fmt: skip
    how.add_argument("--repetition-penalty", type=float, default=1.0, metavar="X", help="above 1, what was said "
                     "already becomes less likely (default: 1, off)")  # fmt: skip
    how.add_argument("--seed", type=int, metavar="N", help="of the dice: the same one gives the same answer (default: "
                     "drawn)")  # fmt: skip
    how.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before this text; may repeat")


def question_options(options: argparse.Namespace) -> Options:
    """The generate() options the command line asked for."""
    chosen: Options = {
        "max_new_tokens": options.max_new_tokens,
        "temperature": options.temperature,
        "top_k": options.top_k,
        "top_p": options.top_p,
        "repetition_penalty": options.repetition_penalty,
        "stop": options.stop,
    }
    if options.seed is not None:
        chosen["seed"] = options.seed
    return chosen


def connect(options: argparse.Namespace) -> SwarmModel:
    """Join the swarm, and say so on a terminal while it takes; weights of a local head show their progress."""
    check_joining(options)
    line, moved = LiveLine(sys.stderr, logs=False), ProgressLine(sys.stderr)

    def progress(label: str, done: int, total: int) -> None:
        line.lift()
        line.muted = not 0 < total <= done
        moved(label, done, total)

    with waiting(line, joining_text(options.initial_peers)):
        return SwarmModel.connect(
            options.model,
            initial_peers=options.initial_peers,
            lan=lan_of(options),
            head=options.head,
            compression=options.compression,
            identity=options.identity,
            audit_my_traffic=options.audit_my_traffic,
            audit_mb=options.audit_mb,
            reputation=options.reputation,
            progress=progress,
        )


WORDS = {
    "routing": "looking for servers",
    "opening": "opening",
    "waiting": "waiting",
    "prefill": "reading",
    "healing": "healing",
}


class PrefillLine:
    """Shows on a terminal what happens before the first token, and what holds up a later one; silent elsewhere."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._live = LiveLine(sys.stderr, clock=clock, logs=False)
        self._erase = ""
        self._answering = False
        self._phase = ""
        self._began = (0.0, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()

    def __call__(self, progress: Progress) -> None:
        if progress.phase == "decode":
            self._answering = True
            return
        if progress.phase != self._phase:
            self._phase, self._began = progress.phase, (self._clock(), progress.done)
        began_s, had = self._began
        if self._answering:
            self._aside(progress_text(progress, had, self._clock() - began_s))
        else:
            now_s = self._clock()  # a speed is that of the last report, the time is now's
            self._live.show(lambda later_s: progress_text(progress, had, now_s - began_s, later_s))

    def _aside(self, text: str) -> None:
        """Show ``text`` behind the answer so far, cut at the terminal's edge; the cursor stays where it was."""
        if sys.stderr.isatty():
            line = f"\x1b7\x1b[?7l [{printable(text)[:LINE_CHARS]}]\x1b[K\x1b[?7h\x1b8"
            print(line, end="", file=sys.stderr, flush=True)
            self._erase = "\x1b[K"

    def clear(self) -> None:
        """Make room for the answer."""
        self._live.clear()
        self._phase = ""
        if self._erase:
            print(self._erase, end="", file=sys.stderr, flush=True)
            self._erase = ""


def progress_text(progress: Progress, had: int, took_s: float, later_s: float = 0.0) -> str:
    """What a generation waits for: with ``had`` rows when its phase began ``took_s`` before the report, and ``later_s``
    since the report. ``reading 512/4096 tokens (12 %), 230 tok/s, 16 s left``."""
    done, total = progress.done, progress.total
    text = WORDS[progress.phase]
    if total:
        text += f" {done}/{total} tokens ({100 * done / total:.0f} %)"
    if progress.detail:
        text += f" {progress.detail}"
    if done > had and took_s > 0 and total > done:
        speed = (done - had) / took_s
        return f"{text}, {speed:.0f} tok/s, {human_s(max((total - done) / speed - later_s, 1))} left"
    waited_s = took_s + later_s
    return f"{text}, {human_s(waited_s)}" if waited_s >= 1 else text


def summary(result: GenerationResult) -> str:
    """One line about how an answer came to be."""
    chain = " -> ".join(map(str, result.chain))
    exact = "" if result.exact else ", not exact (mixed numerics or lossy wire)"
    times = "once" if len(result.heals) == 1 else f"{len(result.heals)} times"
    healed = f", healed {times}" if result.heals else ""
    return (
        f"[{len(result.token_ids)} tokens, {result.tokens_per_s:.1f} tok/s, first after {result.ttft_s:.2f} s, "
        f"{result.finish_reason}; {chain}{healed}{exact}]"
    )


def attribution(found: Verification) -> str:
    """One line about who has signed for what."""
    wrong = "".join(f"; {problem.kind}: {problem.what}" for problem in found.problems)
    return f"[attributed: {found.rows} rows in {found.windows} windows, by {len(found.signers)} servers{wrong}]"


def result_json(result: GenerationResult) -> str:
    """The whole result as one JSON object."""
    return json.dumps(
        {
            "text": result.text,
            "token_ids": result.token_ids,
            "finish_reason": result.finish_reason,
            "prompt_tokens": result.prompt_tokens,
            "ttft_s": round(result.ttft_s, 4),
            "tokens_per_s": round(result.tokens_per_s, 3),
            "chain": _stages(result.chain),
            "heals": [
                {
                    "lost": _stages(heal.lost),
                    "replaced_by": _stages(heal.replaced_by),
                    "pause_s": round(heal.pause_s, 4),
                    "replayed_rows": heal.replayed_rows,
                    "reason": heal.reason,
                }
                for heal in result.heals
            ],
            "exact": result.exact,
            "verification": _verification(result.verification),
            "seed": result.seed,
        }
    )


def _verification(found: Verification) -> dict[str, object]:
    problems = [
        {"kind": problem.kind, "peers": problem.peers, "what": problem.what, "proof": problem.proof.hex()}
        for problem in found.problems
    ]
    return {"windows": found.windows, "rows": found.rows, "signers": found.signers, "problems": problems}


def _stages(stages: Sequence[ChainStage]) -> list[dict[str, object]]:
    return [{"peer": s.peer, "span": [s.start, s.end], "public_name": s.public_name} for s in stages]


def read_prompt(text: str) -> str:
    """The prompt itself, or standard input for ``-``."""
    if text == "-":
        text = sys.stdin.read()
    if not text.strip():
        raise ConfigError("the prompt is empty", hint='write it as an argument, or pipe it in with "-"')
    return text
