"""``swarm fetch``: make a model's files ready on this machine."""

from __future__ import annotations

import argparse
import sys

from swarm.models.progress import ProgressLine
from swarm.models.resolve import resolve

EXAMPLES = """\
examples:
  python -m swarm fetch demo                       # 93 MB, once
  python -m swarm fetch org/name --revision main

A server needs none of this: it fetches by itself what its layers take, and a client its tokenizer. Files are kept in
$XDG_CACHE_HOME/swarm/models (~/.cache/swarm/models). HF_TOKEN opens gated models, HF_ENDPOINT names another hub.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Download a model's small files (for the demo: everything) and print where they are."
    parser.epilog = EXAMPLES
    parser.add_argument("model", help="demo, a folder, or a Hugging Face id, optionally ID@REVISION")
    parser.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")


def run(options: argparse.Namespace) -> int:
    files = resolve(options.model, revision=options.revision, progress=ProgressLine(sys.stderr))
    print(f"{files.model_id}: {files.layer_count} layers, in {files.tokenizer_path.parent}")
    return 0
