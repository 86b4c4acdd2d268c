"""The container's health check: a TCP port that accepts connections, or a URL that answers 200.

usage: alive.py PORT | URL
exit code: 0 if so, 1 if not (one line says why), 2 if the argument is neither
"""

from __future__ import annotations

import socket
import sys
import urllib.request

LIMIT_S = 4.0


def why_not(target: str) -> str:
    """Empty if ``target`` answers, else the reason. Raises ``ValueError`` if it is neither a port nor a URL."""
    try:
        if target.startswith(("http://", "https://")):
            with urllib.request.urlopen(target, timeout=LIMIT_S) as answer:
                return "" if answer.status == 200 else f"answered {answer.status}"
        with socket.create_connection(("127.0.0.1", int(target)), LIMIT_S):
            return ""
    except OSError as error:
        return str(error)


def main(arguments: list[str]) -> int:
    try:
        [target] = arguments
        reason = why_not(target)
    except ValueError:
        print(__doc__, file=sys.stderr)
        return 2
    if reason:
        print(f"{target}: {reason}", file=sys.stderr)
    return 1 if reason else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
