"""A chat over a running swarm, in twenty lines: the servers keep the conversation's KV between turns.

python examples/chat.py demo /ip4/127.0.0.1/tcp/31337/p2p/12D3KooW...
"""

from __future__ import annotations

import sys

from swarm import SwarmModel


def main(model_name: str, *initial_peers: str) -> None:
    messages: list[dict[str, str]] = []
    with (
        SwarmModel.connect(model_name, initial_peers=initial_peers) as model,
        model.session(max_tokens=2048) as session,
    ):
        for line in sys.stdin:
            messages.append({"role": "user", "content": line.strip()})
            with session.stream(messages=messages, max_new_tokens=128, temperature=0.7, seed=7) as stream:
                for piece in stream:
                    print(piece, end="", flush=True)
                print()
            messages.append({"role": "assistant", "content": stream.result.text})


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python examples/chat.py MODEL ADDRESS [ADDRESS ...]")
    main(*sys.argv[1:])
