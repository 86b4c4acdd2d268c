"""What `route` and `plan` share: the described cluster."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from swarm.cli.output.tables import folded
from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.scheduling.cluster import Cluster
from swarm.scheduling.cluster_file import MAX_FILE_BYTES, read_cluster


def add_cluster_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the cluster is described, and how to answer."""
    parser.add_argument(
        "--cluster", required=True, metavar="FILE",
        help='the described cluster ("-": standard input); docs/cluster-format.md has the format',
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def load_cluster(name: str) -> Cluster:
    """Read and check the file; raises ``ConfigError`` that names the file, and within it the field."""
    try:
        if name == "-":
            data = sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        hint = "docs/cluster-format.md has an example to begin with"
        raise ConfigError(f"--cluster: cannot read {name!r}: {reason}", hint=hint) from error
    return read_cluster(data)


def stages_json(stages: Iterable[tuple[str, Span]]) -> list[dict[str, object]]:
    """Servers in order, each with its layers ``[a, b)``."""
    return [{"id": name, "span": [span.start, span.end]} for name, span in stages]


def chain_text(stages: Iterable[tuple[str, Span]]) -> str:
    """The same on one line: ``a [0:32] -> b [32:64]``."""
    return " -> ".join(_stage_texts(stages))


def chain_lines(stages: Iterable[tuple[str, Span]]) -> str:
    """The same on as many lines as it needs."""
    return folded(_stage_texts(stages), " -> ")


def _stage_texts(stages: Iterable[tuple[str, Span]]) -> list[str]:
    return [f"{name} [{span}]" for name, span in stages]
