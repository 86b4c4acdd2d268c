"""Sessions of a real client over live metrics of real servers: two chains, equal, then one of them slower, then dead.

The tests build on each other: they share one swarm, and the last one ends two of its servers.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as WordTokenizer
from tokenizers import models, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig

from swarm import SwarmError, SwarmModel
from swarm.client.blocking import Session
from swarm.client.results import Progress
from swarm.core.listing import Listing

LAYERS = 4
TEXT = "the a swarm of small machines answers together while each one holds few layers"
WORDS = TEXT.split()
PROMPT = "the swarm"
STEP_S = 0.1
"""What a forward of any server takes: so much that the machine's other work makes no difference of 5 %."""
SLOW_S = 0.4
SESSIONS = 20
APART_S = 0.5
MOVED_S = 3.0
DEAD_S = 10.0
LOOK_S = 1.0
"""A reading of the directory takes a moment, and this machine does other things."""


def write_model(folder: Path) -> None:
    """A tiny random llama of a handful of words, as ``save_pretrained`` leaves it."""
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        bos_token_id=None,
        eos_token_id=None,
    )
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    words = WordTokenizer(models.WordLevel({word: index for index, word in enumerate(WORDS)}, unk_token=WORDS[0]))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))


@dataclass
class TwoChains:
    """Two servers for each half of the model, all equally slow; ``delays`` are the files that say how slow, the heads'
    first.
    """

    heads: list[Any]
    tails: list[Any]
    delays: list[Path]
    model: SwarmModel

    def listings(self) -> dict[str, Listing]:
        """Every server a reader of the directory sees now, by peer id."""
        parts = self.model._inner.parts
        found = self.model._loop.run(parts.directory.servers(parts.files.model_id))
        return {listing.peer: listing for listing in found}

    def live(self, server: Any) -> bool:
        """True if a client may route over ``server``."""
        found = self.listings().get(server.peer)
        return found is not None and found.metrics is not None

    def session(self) -> tuple[Session, list[str]]:
        """A session that has got a few tokens and stays open; the peers of its chain."""
        session = self.model.session(max_tokens=64)
        result = session.generate(PROMPT, max_new_tokens=2, ignore_eos=True)
        return session, [stage.peer for stage in result.chain]

    @contextmanager
    def asking(self) -> Iterator[str]:
        """Somebody gets one token after the other all the while; the end of their first server's peer id."""
        over = threading.Event()
        begun = threading.Event()
        seen: list[Progress] = []

        def ask() -> None:
            with self.model.generate(
                PROMPT, stream=True, max_new_tokens=1000, ignore_eos=True, progress=seen.append
            ) as stream:
                try:
                    for _ in stream:
                        begun.set()
                        if over.is_set():
                            return
                except SwarmError:
                    return  # a test ended its server

        asker = threading.Thread(target=ask)
        asker.start()
        try:
            assert begun.wait(20.0)
            yield [item.detail for item in seen if item.phase == "opening"][-1][:8]
        finally:
            over.set()
            asker.join()

    def settled(self) -> bool:
        """True once every head has measured the way to both tails, and nobody has a session."""
        found = self.listings()
        tails = {server.peer for server in self.tails}
        metrics = [found[server.peer].metrics for server in (*self.heads, *self.tails) if server.peer in found]
        if len(metrics) < len(self.delays) or any(item is None or item.sessions for item in metrics):
            return False
        return all(tails <= set(item.rtt_s) for item in metrics[: len(self.heads)] if item is not None)


@pytest.fixture(scope="module")
def chains(module_launcher: Any, tmp_path_factory: pytest.TempPathFactory, eventually: Any) -> Iterator[TwoChains]:
    folder = tmp_path_factory.mktemp("tiny")
    write_model(folder)
    delays = [folder / f"delay-{number}" for number in range(4)]

    def start(span: str, delay: Path, join: str = "") -> Any:
        delay.write_text(str(STEP_S))
        script = str(Path(__file__).parent / "slow_server.py")
        return module_launcher.server(span, join=join, model=str(folder), program=(script, str(delay)))

    # Tails first: a server measures the way to those that can follow it as soon as it sees them, and looks rarely.
    first = start("2:4", delays[2])
    tails = [first, start("2:4", delays[3], first.address)]
    for tail in tails:
        tail.ready()
    heads = [start("0:2", delay, first.address) for delay in delays[:2]]
    for head in heads:
        head.ready()
    with SwarmModel.connect(str(folder), initial_peers=[first.address], host="127.0.0.1") as model:
        built = TwoChains(heads, tails, delays, model)
        eventually(built.settled, 20.0)
        yield built


def test_sessions_split_between_equal_chains(chains: TwoChains, eventually: Callable[..., None]) -> None:
    counts: Counter[str] = Counter()
    sessions = []
    began_s = time.monotonic()
    for number in range(SESSIONS):
        time.sleep(max(began_s + APART_S * number - time.monotonic(), 0.0))
        session, peers = chains.session()
        sessions.append(session)
        counts.update(peers)
    for session in sessions:
        session.close()
    shares = [counts[server.peer] for server in (*chains.heads, *chains.tails)]
    assert sum(shares) == 2 * SESSIONS
    assert max(shares) <= 12, shares
    eventually(chains.settled, 20.0)


def test_new_sessions_leave_a_chain_that_has_become_slow(chains: TwoChains, eventually: Callable[..., None]) -> None:
    """While somebody uses it, as one does; new sessions come one after the other."""
    firsts: list[tuple[float, str]] = []
    with chains.asking() as name:
        [slow] = [number for number, server in enumerate(chains.heads) if server.peer.endswith(name)]
        chains.delays[slow].write_text(str(SLOW_S))
        began_s = time.monotonic()
        while (opened_s := time.monotonic() - began_s) < 2 * MOVED_S:
            session, peers = chains.session()
            session.close()
            firsts.append((opened_s, peers[0]))
            time.sleep(APART_S / 2)
        chains.delays[slow].write_text(str(STEP_S))
    late = {peer for opened_s, peer in firsts if opened_s > MOVED_S}
    assert late == {chains.heads[1 - slow].peer}, firsts
    eventually(chains.settled, 20.0)


def test_a_killed_server_is_out_in_ten_seconds_and_one_that_leaves_at_once(
    chains: TwoChains, eventually: Callable[..., None]
) -> None:
    leaving = chains.tails[1]
    with chains.asking() as name:
        other, killed = sorted(chains.heads, key=lambda head: head.peer.endswith(name))
        assert chains.live(killed)
        killed.signal(signal.SIGKILL)
        eventually(lambda: not chains.live(killed), DEAD_S + LOOK_S)
    assert chains.live(leaving)
    leaving.signal(signal.SIGTERM)
    assert leaving.wait() == 0
    assert leaving.peer not in chains.listings()
    seen: list[Progress] = []
    result = chains.model.generate(PROMPT, max_new_tokens=2, ignore_eos=True, progress=seen.append)
    assert [stage.peer for stage in result.chain] == [other.peer, chains.tails[0].peer]
    assert [item.phase for item in seen].count("opening") == 1, "nobody else is even tried"
