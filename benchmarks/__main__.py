"""``python -m benchmarks NAME``: run one measurement and print it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

NAMES = {
    "decode": "one session against transformers generate: tokens per second, first token, wire bytes, busy DHT",
    "concurrency": "aggregate tokens per second of 1, 2, 4 and 8 sessions",
    "overload": "sessions at the knee and with twice as many clients, BUSY, one client beside 50 sessions of another",
    "failover": "seconds without a token when a server of the chain dies or freezes, beside a full prefill",
    "soak": "answers for minutes while servers are killed, frozen and started again, and what leaked",
    "verification": "what receipts cost servers in compute and tokens per second, and in bytes a token and hop",
    "detection": "how surely audits find each kind of cheater, how long it lasts, and what honest servers' e is",
    "indistinguishable": "how well a classifier tells challenges from traffic by what a server sees, AUC by group",
    "health": "bytes and milliseconds of the health page's states, patches and metrics by number of servers",
    "scheduling": "milliseconds of allocation and routing by number of nodes, and how good the plans are",
}


def main() -> int:
    """Run the benchmark named on the command line; exit code 0 whatever the figures are."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    commands = parser.add_subparsers(dest="name", metavar="NAME", required=True)
    chosen = next((word for word in sys.argv[1:] if word in NAMES), None)
    for name, summary in NAMES.items():
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
        if name == chosen:
            import_module(f"benchmarks.{name}").add_arguments(command)
    options = parser.parse_args()
    figures = import_module(f"benchmarks.{options.name}").measure(options)
    if options.json:
        print(json.dumps(figures))
    else:
        show(figures)
    return 0


def show(figures: Mapping[str, Any], indent: str = "") -> None:
    """Print figures by name, one a line; those that have figures of their own above them, indented."""
    for key, value in figures.items():
        name = indent + key
        if isinstance(value, Mapping):
            print(name)
            show(value, indent + "  ")
        else:
            print(f"{name:32} {value:.4g}" if isinstance(value, float) else f"{name:32} {value}")


if __name__ == "__main__":
    raise SystemExit(main())
