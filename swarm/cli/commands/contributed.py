"""``swarm contributed``: what this machine's servers have done for their swarms."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from swarm.cli.hosting.tally import contribution_text, count, day
from swarm.cli.output.tables import table
from swarm.core.errors import ConfigError
from swarm.models.progress import human_bytes, human_s
from swarm.runtime.contribution import Contribution, ContributionFile, Contributions
from swarm.runtime.folders import data_folder

HEAD = ("model", "sessions", "decoded", "read", "token-layers", "taken over", "receipts", "confirmed", "online", "sent")
EPILOG = """\
A running server notes it every minute, in a file beside its key (…contributed.json). Decoded tokens were computed one
by one, read ones as prompts; token-layers count each of both once for every layer it went through here. Taken over are
spans of servers that others lost in the middle of an answer. Receipts were signed here; a session is confirmed by a
client that has signed in turn that it was served. These figures are this machine's own: they prove nothing to others.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "What a server of this machine has contributed over all the times it ran."
    parser.epilog = EPILOG
    parser.add_argument("--identity", type=Path, metavar="FILE", help="the server's key file (default: in the data "
                        "folder)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")


def run(options: argparse.Namespace) -> int:
    path = options.identity or data_folder() / "identity.key"
    file = ContributionFile.of(path)
    found = file.read()
    if found is None and file.path.exists():
        raise ConfigError(f"{file.path} cannot be read", hint="a server that starts puts it aside and begins anew")
    found = found or Contributions(0.0, 0.0, {})
    print(as_json(found) if options.json else as_text(found, str(path)))
    return 0


def as_json(found: Contributions) -> str:
    """Everything, times in seconds since 1970."""
    models = {model: one.as_dict() for model, one in found.models.items()}
    return json.dumps(
        {"since": found.since_s, "until": found.until_s, "total": found.total.as_dict(), "models": models}
    )


def as_text(found: Contributions, key: str) -> str:
    """For people."""
    if not found.models:
        return f"nothing yet with the key {key}"
    rows = [_row(model, one) for model, one in sorted(found.models.items())]
    total = f"from {day(found.since_s)} to {day(found.until_s)}: {contribution_text(found.total)}"
    return f"{total}\n\n{table(HEAD, rows)}"


def _row(model: str, one: Contribution) -> tuple[str, ...]:
    layers = count(one.decode_row_layers + one.prefill_row_layers)
    figures = (one.sessions, one.decode_rows, one.prefill_rows)
    after = (one.heals, one.receipts, one.countersigned)
    return (
        model.partition("#")[0],
        *map(count, figures),
        layers,
        *map(count, after),
        human_s(one.online_s),
        human_bytes(one.sent_bytes),
    )
