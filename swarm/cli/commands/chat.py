"""``swarm chat``: a conversation in the terminal. The KV of what was said stays at the servers between turns."""

from __future__ import annotations

import argparse
import sys

from swarm.cli.asking import PrefillLine, add_question_arguments, connect, question_options, summary
from swarm.cli.commands.generate import copyable, safe
from swarm.client.blocking import Session, TextStream
from swarm.client.request import Options
from swarm.core.errors import ConfigError, SwarmError
from swarm.runtime.logs import printable

EXAMPLES = """\
examples:
  python -m swarm chat --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...
  python -m swarm chat --system "Answer in one sentence." --temperature 0.7 --initial-peers ...
"""
HELP = "/undo takes the last exchange back, /new starts again, /quit (or Ctrl-D) leaves. Ctrl-C stops an answer."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = f"Talk with the model. {HELP}"
    parser.add_argument("--system", metavar="TEXT", help="instructions the model is given first")
    parser.add_argument("--context", type=int, metavar="N", help="tokens the conversation may hold (default: 4096)")
    add_question_arguments(parser)
    parser.epilog = f"{EXAMPLES}\n{parser.epilog}"


def run(options: argparse.Namespace) -> int:
    asked = question_options(options)
    with copyable(options), connect(options) as model:
        if not model.has_chat_template:
            raise ConfigError("this model has no chat template", hint="use `swarm generate --raw` to continue text")
        print(HELP, file=sys.stderr)
        with model.session(max_tokens=options.context) as session:
            Talk(session, asked, options).run()
    return 0


class Talk:
    """The turns of one conversation."""

    def __init__(self, session: Session, asked: Options, options: argparse.Namespace) -> None:
        self._session = session
        self._asked = asked
        self._options = options
        self._opening = [{"role": "system", "content": options.system}] if options.system else []
        self._messages: list[dict[str, str]] = list(self._opening)

    def run(self) -> None:
        """Read lines and answer until the user leaves."""
        while (line := _ask()) is not None and line != "/quit":
            if line == "/new":
                self._messages = list(self._opening)
                print("[a new conversation]", file=sys.stderr)
            elif line == "/undo":
                self._undo()
            elif line.startswith("/"):
                print(HELP, file=sys.stderr)
            elif line:
                self._turn(line)

    def _undo(self) -> None:
        kept = max(len(self._opening), len(self._messages) - 2)
        taken, self._messages = self._messages[kept:], self._messages[:kept]
        print(f"[taken back: {printable(taken[0]['content'][:60])}]" if taken else "[nothing to undo]", file=sys.stderr)

    def _turn(self, line: str) -> None:
        self._messages.append({"role": "user", "content": line})
        asked = self._asked.copy()
        asked["messages"] = self._messages
        try:
            with copyable(self._options), PrefillLine() as progress:
                stream = self._session.stream(progress=progress, **asked)
                text = _show(stream, progress)
        except SwarmError as error:
            self._messages.pop()
            if not sys.stdin.isatty():
                raise  # a script goes by the exit code; a person may ask again
            print(f"\nerror: {printable(str(error))}", file=sys.stderr)
            return
        self._messages.append({"role": "assistant", "content": text})


def _ask() -> str | None:
    try:
        return input("> " if sys.stdin.isatty() else "").strip()
    except (EOFError, KeyboardInterrupt):
        return None


def _show(stream: TextStream, progress: PrefillLine) -> str:
    """Print an answer as it comes; Ctrl-C keeps what was said so far."""
    said = ""
    try:
        for piece in stream:
            progress.clear()
            said += piece
            print(safe(piece), end="", flush=True)
        print(flush=True)
        print(summary(stream.result), file=sys.stderr)
    except KeyboardInterrupt:
        print("\n[stopped]", file=sys.stderr)
    finally:
        progress.clear()
        stream.close()
    return said
