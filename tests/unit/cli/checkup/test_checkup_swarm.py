"""The doctor's verdicts on the model, the swarm's coverage, the clock, the way in and relays."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from swarm.cli.checkup.coverage import judge_coverage, judge_models, named
from swarm.cli.checkup.findings import Check, Finding, Level, Report, run_checks
from swarm.cli.checkup.model import Wish, judge_room, look_at_model, open_model
from swarm.cli.checkup.network import Met, judge_announced, judge_clock, judge_reach, judge_relays
from swarm.core.announcement import Announcement
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.core.listing import Listing
from swarm.core.metrics import Metrics
from swarm.core.model_entry import ModelEntry
from swarm.core.numerics import Numerics
from swarm.dht.clock_watch import MOST_S
from swarm.engine.capacity import Room
from swarm.models import ModelFiles
from swarm.transport.autonat import DialedBack, Outcome

MODEL = "tiny@main#0123456789abcdef"
ADDRESS = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWGzc2rWz44EuzugTtqHrkn7iqXTnBzwB8vat8nD2tkw1i"
PEER = PeerId("12D3KooWGzc2rWz44EuzugTtqHrkn7iqXTnBzwB8vat8nD2tkw1i")
NEAR, FAR = Met(PEER, "/ip4/192.168.1.2/tcp/1"), Met(PEER, "/ip4/45.5.5.1/tcp/31337")


def one(finding: Finding, level: Level, *parts: str) -> None:
    assert finding.level is level, finding
    assert bool(finding.fix) == (level is not Level.OK), finding
    assert all(part in f"{finding.what} {finding.fix}" for part in parts), finding


# -- the model ----------------------------------------------------------------------------------------------


def looked(model: str, **changes: Any) -> list[Finding]:
    told: list[Finding] = []
    wish = Wish(model, changes.get("revision"), "cpu", changes.get("quantization", "none"))

    async def look(report: Report) -> None:
        await look_at_model(wish, await open_model(wish), report)

    asyncio.run(run_checks([Check("model", look)], told.append, limit_s=60.0))
    return told


def test_a_model_that_is_there(demo_files: ModelFiles) -> None:
    model, room, disk = looked("demo")
    one(model, Level.OK, str(demo_files.model_id), "30 layers")
    one(room, Level.OK, "30 of 30 layers", "layers/s")
    one(disk, Level.OK)
    assert "to be fetched" not in disk.what


def test_a_demo_that_is_not_there_yet_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model, disk = looked("demo")
    one(model, Level.OK, "93.0 MB to fetch")
    assert "to be fetched" in disk.what
    assert not (tmp_path / "cache").exists()


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    one(looked(str(tmp_path / "none"))[0], Level.ERROR, "no model folder")
    one(looked(str(tmp_path))[0], Level.ERROR, "config.json")


def test_a_hub_that_cannot_be_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # nobody listens
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        [found] = looked("org/name")
    one(found, Level.ERROR, "cannot reach the hub for org/name", "check the network")


def test_room() -> None:
    numerics = Numerics("bfloat16")
    one(judge_room(Room(0, 10**9, numerics, 0.0), 80), Level.ERROR, "not one of 80 layers", "1.0 GB each in bfloat16")
    one(judge_room(Room(1, 10**9, numerics, 9.0), 80), Level.WARNING, "1 of 80 layers", "9 layers/s")
    one(judge_room(Room(40, 10**9, numerics, 9.0), 80), Level.OK, "40 of 80 layers")
    one(judge_room(Room(80, 10**9, numerics, 9.0), 80), Level.OK, "the whole model fits here")


# -- the swarm ----------------------------------------------------------------------------------------------


def server(seed: int, start: int, end: int, *, live: bool = True) -> Listing:
    peer = Identity(bytes([seed]) * 32).peer_id
    usual: dict[str, Any] = {"model": MODEL, "peer": peer, "instance": 1, "sequence": 1, "expires_s": 60.0}
    announced = Announcement(start=start, end=end, layer_count=30, numerics=Numerics("float32"), started_s=0.0, **usual)
    return Listing(announced, b"", Metrics(tau_s=0.01, fixed_s=0.0, kv_free_tokens=9, **usual) if live else None)


def entry(model: str) -> ModelEntry:
    return ModelEntry(model=model, peer=PEER, layer_count=30, expires_s=60.0, instance=1, sequence=1)


def test_coverage() -> None:
    whole = [server(1, 0, 15), server(2, 15, 30)]
    one(judge_coverage("tiny", 30, whole, ADDRESS), Level.OK, "2 servers", "all 30 layers", "one server only")
    one(judge_coverage("tiny", 30, [*whole, server(3, 0, 30)], ADDRESS), Level.OK, "by 2 servers")
    hole = judge_coverage("tiny", 30, whole[:1], ADDRESS)
    one(hole, Level.WARNING, "layers 15 to 29", f"python -m swarm.server --model tiny --initial-peers {ADDRESS}")
    silent = [whole[0], server(2, 15, 30, live=False)]
    one(judge_coverage("tiny", 30, silent, ADDRESS), Level.WARNING, "layers 15 to 29")
    one(judge_coverage("tiny", 0, whole, ADDRESS), Level.OK, "all 30 layers")
    one(judge_coverage("tiny", 30, [], ADDRESS), Level.WARNING, "nobody serves tiny yet")
    one(judge_coverage("tiny", 0, [], ADDRESS), Level.WARNING, "nobody serves tiny yet")


def test_models() -> None:
    one(judge_models([]), Level.WARNING, "be the first")
    one(judge_models([entry(MODEL), entry(MODEL)]), Level.OK, MODEL)
    assert str(named("tiny", [entry(MODEL), entry("other@main#0123456789abcdef")])) == MODEL
    assert str(named("tiny@main", [entry(MODEL)])) == MODEL
    assert named("tiny", [entry(MODEL), entry("tiny@next#0123456789abcdef")]) is None
    assert named("none", [entry(MODEL)]) is None
    assert named("demo", [entry("SmolLM2-135M-Instruct@x#0123456789abcdef")]) is not None


# -- the network --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offsets_s", "level", "parts"),
    [
        ([], Level.UNKNOWN, ("timedatectl",)),
        ([40.0, 41.0, 40.5], Level.ERROR, ("behind", "3 asked", "set-ntp")),
        ([-40.0], Level.ERROR, ("40 s ahead of", "one asked")),
        ([0.1, -0.2, 4000.0], Level.OK, ("within 0.2 s",)),
        ([MOST_S, MOST_S], Level.OK, ()),
    ],
    ids=["nobody", "behind", "ahead", "one liar", "just right"],
)
def test_clocks(offsets_s: list[float], level: Level, parts: tuple[str, ...]) -> None:
    one(judge_clock(offsets_s), level, *parts)


def test_reach() -> None:
    one(judge_reach(DialedBack(Outcome.REACHED, "/ip4/45.5.5.2/tcp/31337"), [31337], [FAR]), Level.OK, "port 31337")
    assert "45.5.5.2" not in judge_reach(DialedBack(Outcome.REACHED, "/ip4/45.5.5.2/tcp/1"), [1], [FAR]).what
    one(judge_reach(DialedBack(Outcome.FAILED, why="dial failed"), [31337], [FAR]), Level.WARNING, "forward", "--relay")
    one(judge_reach(DialedBack(Outcome.REFUSED, why="too many"), [31337], [FAR]), Level.UNKNOWN, "too many", "nc -vz")
    one(judge_reach(DialedBack(Outcome.REFUSED), [31337], [NEAR]), Level.UNKNOWN, "private network", "nc -vz")
    one(judge_reach(DialedBack(Outcome.UNOFFERED), [], [FAR]), Level.UNKNOWN, "no reason given", "PORT")


def test_announced() -> None:
    private, public = "/ip4/192.168.1.2/tcp/31337", "/ip4/45.5.5.1/tcp/31337"
    one(judge_announced(private, [FAR.address]), Level.WARNING, "strangers cannot dial it")
    one(judge_announced(private, [NEAR.address]), Level.OK)
    one(judge_announced(public, [FAR.address]), Level.OK)


def test_relays() -> None:
    one(judge_relays(1, 3), Level.OK, "1 of 3")
    one(judge_relays(0, 3), Level.WARNING, "--relay")
