"""``swarm generate``: answer one prompt."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from swarm.cli.asking import (
    PrefillLine,
    add_question_arguments,
    attribution,
    connect,
    question_options,
    read_prompt,
    result_json,
    summary,
)
from swarm.core.errors import GenerationInterruptedError, SwarmError
from swarm.runtime.logs import printable
from swarm.scheduling.reasons import WHERE

MAX_CONTACTS = 2
"""Addresses in a command to copy: a second in case the first is gone by then."""

EXAMPLES = """\
examples:
  python -m swarm generate "Why is the sky blue?" --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...
  python -m swarm generate "A poem about bees" --temperature 0.8 --seed 7 --initial-peers ...
  python -m swarm generate - --raw --json --initial-peers ... < start-of-a-text.txt
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Answer one prompt; the text goes to standard output as it comes."
    parser.add_argument("prompt", nargs="?", help='the prompt, or "-" to read it from standard input')
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--json", action="store_true", help="print the whole result as one JSON object instead")
    add_question_arguments(parser)
    parser.epilog = f"{EXAMPLES}\n{parser.epilog}"


def run(options: argparse.Namespace) -> int:
    prompt = read_prompt(_prompt(options))
    asked = question_options(options)
    with copyable(options), connect(options) as model, PrefillLine() as line:
        chat = not options.raw and model.has_chat_template
        if chat:
            asked["messages"] = [{"role": "user", "content": prompt}]
        question = None if chat else prompt
        if options.json:
            told = result_json(model.generate(question, progress=line, **asked))
            line.clear()
            print(told)
            return 0
        with model.generate(question, stream=True, progress=line, **asked) as stream:
            try:
                for piece in stream:
                    line.clear()
                    print(safe(piece), end="", flush=True)
            except GenerationInterruptedError:
                print(flush=True)
                raise
            line.clear()
            print(flush=True)
            print(summary(stream.result), file=sys.stderr)
            if options.verbose:
                print(printable(attribution(stream.result.verification)), file=sys.stderr)
    return 0


@contextmanager
def copyable(options: argparse.Namespace) -> Iterator[None]:
    """The command of a hint names the model and the way into the swarm that this one was given."""
    try:
        yield
    except SwarmError as error:
        where = ["--model", options.model]
        if options.initial_peers:
            where += ["--initial-peers", *options.initial_peers[:MAX_CONTACTS]]
        else:
            where += ["--lan", *(["--lan-name", options.lan_name] if options.lan_name else [])]
        error.hint = error.hint.replace(WHERE, shlex.join(where))
        raise


def _prompt(options: argparse.Namespace) -> str:
    """The prompt, also where argparse took it for one more address: ``--initial-peers ADDRESS "Hello"``."""
    if options.prompt is None and options.initial_peers and not options.initial_peers[-1].startswith("/"):
        options.prompt = options.initial_peers.pop()
    return options.prompt or ""


def safe(piece: str) -> str:
    """Text of strangers for a terminal: line ends and tabs stay, other control characters are shown as escapes."""
    return "".join(char if char in "\n\t" else printable(char) for char in piece)
