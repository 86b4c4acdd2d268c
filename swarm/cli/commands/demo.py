"""``swarm demo``: three real server processes on this machine, found through a real DHT, answer a prompt together."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

from swarm.cli.asking import summary
from swarm.cli.commands.generate import safe
from swarm.cli.options.config_file import FILE_VARIABLE
from swarm.cli.options.settings import PREFIX
from swarm.cli.output.live_line import LiveLine, waiting
from swarm.client.blocking import SwarmModel
from swarm.client.request import Options
from swarm.core.errors import NetworkError
from swarm.core.spans import Span
from swarm.models.progress import ProgressLine
from swarm.models.resolve import resolve

EXAMPLES = """\
examples:
  python -m swarm demo
  python -m swarm demo "Name three uses of beeswax." --servers 2 --max-new-tokens 40

Everything runs on this machine and ends with the answer. The first run fetches the demo model (93 MB); each server then
loads its own third of the layers, and the chain that answered is told below the text.
"""
QUESTION = "In two sentences: why do many small computers together beat one large one?"
STOP_TIMEOUT_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Start three servers on this machine and let them answer a prompt together."
    parser.epilog = EXAMPLES
    parser.add_argument("prompt", nargs="?", default=QUESTION, help="what to ask (default: a question about swarms)")
    parser.add_argument("--model", default="demo", help="demo (default), a folder, or a Hugging Face id")
    parser.add_argument("--servers", type=int, default=3, metavar="N", help="how many (default: 3)")
    parser.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="length of the answer (default: 64)"
    )


def run(options: argparse.Namespace) -> int:
    files = resolve(options.model, progress=ProgressLine(sys.stderr))
    count = min(max(options.servers, 1), files.layer_count)
    cuts = [files.layer_count * index // count for index in range(count + 1)]
    spans = [Span(a, b) for a, b in pairwise(cuts)]
    with (
        tempfile.TemporaryDirectory(prefix="swarm-demo-") as folder,
        servers(options.model, spans, Path(folder)) as peers,
    ):
        print(f"{count} servers are ready; asking: {options.prompt}\n", file=sys.stderr)
        with SwarmModel.connect(options.model, initial_peers=peers, host="127.0.0.1") as model:
            asked: Options = {"max_new_tokens": options.max_new_tokens}
            if model.has_chat_template:
                asked["messages"] = [{"role": "user", "content": options.prompt}]
            prompt = None if model.has_chat_template else options.prompt
            with model.generate(prompt, stream=True, **asked) as stream:
                for piece in stream:
                    print(safe(piece), end="", flush=True)
                print(flush=True)
                print(summary(stream.result), file=sys.stderr)
    return 0


@contextmanager
def servers(model: str, spans: Sequence[Span], folder: Path) -> Iterator[list[str]]:
    """A server process for each span, one thread each, from READY until the block ends; gives their addresses.

    The first starts a swarm; the others join it side by side. Their keys lie in ``folder``. Every process is ended,
    whatever happens. Raises ``NetworkError`` if one ends before it is ready.
    """
    processes: list[subprocess.Popen[str]] = []
    try:
        line = LiveLine(sys.stderr, logs=False)
        with waiting(line, "starting the first server"):
            processes.append(_start(model, spans[0], folder, []))
            peers = [_await_ready(processes[0], spans[0], line)]
        with waiting(line, "starting the others"):
            processes += [_start(model, span, folder, peers) for span in spans[1:]]
            peers += [_await_ready(process, span, line) for process, span in zip(processes[1:], spans[1:], strict=True)]
        yield peers
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            _await_end(process)


def _start(model: str, span: Span, folder: Path, initial_peers: list[str]) -> subprocess.Popen[str]:
    join = ["--initial-peers", *initial_peers] if initial_peers else ["--new-swarm"]
    command = [sys.executable, "-m", "swarm.server", "--model", model, "--blocks", str(span), "--json", *join]
    command += ["--host", "127.0.0.1", "--threads", "1", "--identity", str(folder / f"{span.start}.key")]
    environ = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
    environ[FILE_VARIABLE] = os.devnull  # what a volunteer set for a server of his own is not for these
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environ)


def _await_ready(process: subprocess.Popen[str], span: Span, line: LiveLine) -> str:
    address = ""
    for said in process.stdout or ():
        event = json.loads(said)
        if event["event"] == "banner":
            address = event["addresses"][0]
            mb = event["memory_bytes"] / 1e6
            line.lift()
            print(f"layers {span}: {event['peer']}, {mb:.0f} MB of weights", file=sys.stderr)
        elif event["event"] == "ready":
            return address
    raise NetworkError(f"the server for layers {span} ended before it was ready", hint="its error stands above")


def _await_end(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
