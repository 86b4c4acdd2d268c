"""Run by ``test_outage``: a client that stays, and answers each line of its standard input with one line of JSON.

Usage: ``outage_client.py ADDRESS``. A line is a name and a number of tokens; requests run at the same time. The answer
has the name and either the tokens or the error.
"""

from __future__ import annotations

import json
import sys
import threading

from swarm import SwarmError, SwarmModel

PROMPT = "Once upon a time, in a village between two rivers, there lived"


def say(said: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def answer(model: SwarmModel, name: str, count: int) -> None:
    try:
        result = model.generate(PROMPT, max_new_tokens=count, ignore_eos=True)
        said: dict[str, object] = {"name": name, "tokens": result.token_ids}
    except SwarmError as error:
        said = {"name": name, "error": str(error), "tokens": getattr(error, "token_ids", ())}
    say(said)


def main(address: str) -> None:
    with SwarmModel.connect("demo", initial_peers=[address]) as model:
        say({"name": "connected"})
        threads = []
        for line in sys.stdin:
            name, count = line.split()
            threads.append(threading.Thread(target=answer, args=(model, name, int(count))))
            threads[-1].start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
