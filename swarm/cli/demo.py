"""``swarm demo``: three real server processes on this machine, found through a real DHT, answer a prompt together."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from swarm.cli.asking import summary
from swarm.cli.generate import safe
from swarm.client.blocking import SwarmModel
from swarm.client.request import Options
from swarm.core.errors import NetworkError, SwarmError
from swarm.core.spans import Span
from swarm.models.progress import ProgressLine
from swarm.models.resolve import resolve

QUESTION = "In two sentences: why do many small computers together beat one large one?"
STOP_TIMEOUT_S = 20.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Start three servers on this machine and let them answer a prompt together."
    parser.add_argument("prompt", nargs="?", default=QUESTION, help="what to ask (default: a question about swarms)")
    parser.add_argument("--model", default="demo", help="demo (default), a folder, or a Hugging Face id")
    parser.add_argument("--servers", type=int, default=3, metavar="N", help="how many (default: 3)")
    parser.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="default: 64")


def run(options: argparse.Namespace) -> int:
    files = resolve(options.model, progress=ProgressLine(sys.stderr))
    count = min(max(options.servers, 1), files.layer_count)
    cuts = [files.layer_count * index // count for index in range(count + 1)]
    spans = [Span(a, b) for a, b in pairwise(cuts)]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swarm-demo-")))
        first = stack.enter_context(server(options.model, spans[0], folder, []))
        peers = [first]
        for span in spans[1:]:
            peers.append(stack.enter_context(server(options.model, span, folder, [first])))
        print(f"{count} servers are ready; asking: {options.prompt}\n", file=sys.stderr)
        with SwarmModel.connect(options.model, initial_peers=peers[:1], host="127.0.0.1") as model:
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
def server(model: str, span: Span, folder: Path, initial_peers: list[str]) -> Iterator[str]:
    """A server process for ``span``, from READY until the block ends; gives the address to join it by."""
    join = ["--initial-peers", *initial_peers] if initial_peers else ["--new-swarm"]
    command = [sys.executable, "-m", "swarm.server", "--model", model, "--blocks", str(span), "--json", *join]
    command += ["--host", "127.0.0.1", "--threads", "1", "--identity", str(folder / f"{span.start}.key")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _await_ready(process, span)
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _await_ready(process: subprocess.Popen[str], span: Span) -> str:
    address = ""
    if process.stdout is None:
        raise SwarmError("the server process has no output")
    for line in process.stdout:
        event = json.loads(line)
        if event["event"] == "banner":
            address = event["addresses"][0]
            mb = event["memory_bytes"] / 1e6
            print(f"layers {span}: {event['peer']}, {mb:.0f} MB of weights", file=sys.stderr)
        elif event["event"] == "ready":
            return address
    raise NetworkError(f"the server for layers {span} ended before it was ready", hint="its error stands above")
