"""A health page watches a swarm, in virtual time: what it shows is true, and it says so where it does not know."""

from __future__ import annotations

import asyncio
import hashlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from harness import SPANS, Node, Swarm
from proofs_at_hand import evidence_against, fraud_against, signed_accusation
from tiny_model import LAYERS
from trouble import NEW_TOKENS, PROMPT, ask
from watching import SETTLED_S, kinds, named, only, seen, watching

from swarm.core.accusation import ProofRef
from swarm.core.errors import ConfigError
from swarm.core.ids import chain_label
from swarm.dht.memory import MemoryDirectory
from swarm.engine.speed import SpanSpeed
from swarm.health.state import CoverageState, SwarmState
from swarm.health.watching import reading
from swarm.health.watching.visiting import AGAIN_S, EVERY_S
from swarm.health.watching.watch import UNREADABLE
from swarm.runtime.reputation import IN_MEMORY, ReputationStore
from swarm.server.config import ServerConfig
from swarm.verification.standings.strikes import Policy, struck

SPEED = SpanSpeed(tau_s=0.004, fixed_s=0.01)
GONE_S = 90.0
SILENT_S = 6.0
"""By then one that froze must be grey,"""
KILLED_S = 12.0
"""and by then, whatever happened to a server, its layers must be a hole."""


def dark(state: SwarmState, node: Node) -> bool:
    return named(state, node.peer).condition == "silent"


def hole(node: Node) -> tuple[int, int]:
    span = node.engine.info.span
    return span.start, span.end


async def test_three_servers_are_a_usable_model_and_idle_ones_are_quiet(swarm: Swarm) -> None:
    nodes = await swarm.serve(name="Ada's box", speed=SPEED)
    async with watching(swarm, settled=False) as watch:
        assert watch.state().models == []
        state = await seen(watch, lambda state: bool(state.models), 5.0)
        model = only(state)
        assert model.usable
        assert model.sentence.startswith("Usable now: about ")
        assert model.missing == []
        assert model.coverage == [CoverageState(start=0, end=LAYERS, replicas=1, silent=0)]
        assert [server.peer for server in model.servers] == [node.peer for node in nodes]
        for server in model.servers:
            assert (server.condition, server.reached, server.name) == ("serving", True, "Ada's box")
            assert server.stats is not None
            assert server.standing.spot_checkable is False
        await asyncio.sleep(SETTLED_S)
        before = watch.state().revision
        await asyncio.sleep(120.0)
        assert watch.state().revision - before <= 12, "an idle swarm is told about every half minute"
        assert watch.state().events == []
        assert only(watch.state()).servers[0].seen_at >= swarm.clock.wall_s() - 40.0


@pytest.mark.parametrize("busy", [False, True])
async def test_a_killed_server_is_grey_and_its_layers_a_hole_in_time(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    monkeypatch.setattr(reading, "GONE_S", GONE_S)
    _, middle, _ = nodes = await swarm.serve(speed=SPEED)
    session = swarm.client().session()
    if busy:
        await session.generate(PROMPT, max_new_tokens=2, ignore_eos=True)
    async with watching(swarm) as watch:
        await swarm.crash(middle)
        began_s = swarm.clock.wall_s()
        state = await seen(watch, lambda state: dark(state, middle), KILLED_S)
        assert state.at - began_s <= 3 * AGAIN_S, "the line broke, and nobody was there a moment later"
        model = only(state)
        assert not model.usable
        assert model.missing == [hole(middle)]
        assert model.sentence == "Not usable: nobody serves layers 1 to 2."
        assert model.tokens_per_s is None
        assert CoverageState(start=1, end=3, replicas=0, silent=1) in model.coverage
        assert model.advice[0].start == 1
        assert model.advice[0].command.endswith("--blocks 1:3")
        server = named(state, middle.peer)
        assert server.reached is False
        assert server.since_at == state.at
        assert (server.stats, server.stats_note) == (None, "unreachable")
        assert kinds(state) == ["silent", "unusable"]
        assert {event.peer for event in state.events if event.kind == "silent"} == {middle.peer}

        await swarm.serve("1:3", speed=SPEED)
        state = await seen(watch, lambda state: only(state).usable, 5.0)
        assert dark(state, middle), "nobody takes the dead one's place on the list"
        assert named(state, middle.peer).since_at == server.since_at

        await asyncio.sleep(GONE_S)
        state = watch.state()
        assert middle.peer not in {server.peer for server in only(state).servers}
        assert kinds(state) == ["silent", "unusable", "joined", "usable", "left"]
        assert len(only(state).servers) == len(nodes)
    await session.close()


@pytest.mark.parametrize("stats", [True, False])
@pytest.mark.parametrize("power", [True, False])
async def test_one_that_freezes_or_loses_power_is_noticed_by_its_silence(
    swarm: Swarm, power: bool, stats: bool
) -> None:
    """No line breaks. Long before its metrics run out, and though they do not, also where it tells no figures."""
    _, middle, _ = await swarm.serve(config=ServerConfig(stats=stats), speed=SPEED)
    async with watching(swarm) as watch:
        if not power:
            await middle.directory.close()
        swarm.network.freeze(middle.peer)
        state = await seen(watch, lambda state: dark(state, middle), SILENT_S if stats else KILLED_S)
        assert only(state).missing == [hole(middle)]
        swarm.network.thaw(middle.peer)


async def test_a_server_that_cannot_be_reached_from_here_does_not_count_and_comes_back(swarm: Swarm) -> None:
    first, *_ = await swarm.serve(speed=SPEED)
    async with watching(swarm) as watch:
        me = watch.state().observer.peer
        swarm.network.cut(first.peer, me)  # type: ignore[arg-type]
        state = await seen(watch, lambda state: dark(state, first), KILLED_S)
        assert not only(state).usable, "though its records still live"
        assert named(state, first.peer).seen_at > state.at - 10.0
        await asyncio.sleep(60.0)
        swarm.network.mend(first.peer, me)  # type: ignore[arg-type]
        state = await seen(watch, lambda state: not dark(state, first), 35.0)
        assert only(state).usable
        assert kinds(state) == ["silent", "unusable", "back", "usable"]


async def test_one_lost_line_is_no_news(swarm: Swarm) -> None:
    first, *_ = await swarm.serve(speed=SPEED)
    async with watching(swarm) as watch:
        me = watch.state().observer.peer
        for _ in range(3):
            swarm.network.cut(first.peer, me)  # type: ignore[arg-type]
            swarm.network.mend(first.peer, me)  # type: ignore[arg-type]
            await asyncio.sleep(10 * EVERY_S)
            assert named(watch.state(), first.peer).condition == "serving"
        assert watch.state().events == []


async def test_a_chain_appears_while_it_makes_tokens_and_goes_when_it_is_old(swarm: Swarm) -> None:
    nodes = await swarm.serve(speed=SPEED)
    client = swarm.client()
    session = client.session()
    async with watching(swarm) as watch:
        swarm.delay(0.005)
        work = asyncio.create_task(session.generate(PROMPT, max_new_tokens=150, ignore_eos=True))
        state = await seen(watch, lambda state: any(chain.elsewhere_s for chain in only(state).chains), KILLED_S)
        [chain] = only(state).chains
        [of_session] = {key.session for node in nodes for key in node.server.table._sessions}
        assert chain.label == chain_label(of_session).hex()
        assert [stage.peer for stage in chain.stages] == [node.peer for node in nodes]
        assert chain.complete
        assert chain.period_s is not None
        assert chain.elsewhere_s is not None
        spent = [(stage.wait_s, stage.compute_s, stage.send_s) for stage in chain.stages]
        assert all(part is not None for parts in spent for part in parts)
        here_s = sum(part or 0.0 for parts in spent for part in parts)
        assert here_s + chain.elsewhere_s == pytest.approx(chain.period_s, rel=0.1)
        assert chain.tokens_per_s == pytest.approx(1 / chain.period_s, rel=0.1)
        state = await seen(watch, lambda state: only(state).sessions == 1, KILLED_S)  # its metrics come another way
        assert {(link.source, link.target) for link in only(state).links} >= {(nodes[0].peer, nodes[1].peer)}
        await work
        state = await seen(watch, lambda state: (only(state).served_tokens_per_s or 0) > 1.0, 5.0)
        await session.close()
        await asyncio.sleep(80.0)
        assert only(watch.state()).chains == []


async def test_a_heal_is_told(swarm: Swarm) -> None:
    await swarm.serve(speed=SPEED)
    await swarm.serve("1:3", speed=SPEED)
    async with watching(swarm) as watch:
        await ask(swarm, swarm.client(), lambda chain: swarm.crash(chain[1]), max_new_tokens=NEW_TOKENS)
        state = await seen(watch, lambda state: "healed" in kinds(state), 30.0)
        [event] = [event for event in state.events if event.kind == "healed"]
        assert event.text.endswith("took over for a lost server in a running answer.")
        assert named(state, event.peer).condition == "serving"


async def test_a_server_that_keeps_its_figures_to_itself_still_serves(swarm: Swarm) -> None:
    nodes = await swarm.serve(config=ServerConfig(stats=False), speed=SPEED)
    async with watching(swarm) as watch:
        model = only(watch.state())
        assert model.usable
        for server in model.servers:
            assert (server.condition, server.reached, server.stats, server.stats_note) == ("serving", True, None, "off")
        await swarm.crash(nodes[1])
        await seen(watch, lambda state: dark(state, nodes[1]), KILLED_S)


async def test_an_outage_of_the_directory_is_told_and_changes_nothing_else(swarm: Swarm) -> None:
    await swarm.serve(speed=SPEED)
    async with watching(swarm) as watch:
        swarm.store.down = True
        state = await seen(watch, lambda state: bool(state.observer.problem), 10.0)
        await asyncio.sleep(90.0)  # every record has run out by now
        state = watch.state()
        assert only(state).usable, "their lines say that they are there"
        assert kinds(state) == ["outage"]
        assert state.observer.directory_at is not None
        assert state.observer.directory_at < swarm.clock.wall_s() - 80.0
        swarm.store.down = False
        state = await seen(watch, lambda state: not state.observer.problem, 5.0)
        await asyncio.sleep(2 * SETTLED_S)
        state = watch.state()
        assert only(state).usable
        assert kinds(state) == ["outage", "outage"], "that servers are heard of again is no news"


async def test_who_dies_in_an_outage_is_found_out(swarm: Swarm) -> None:
    _, middle, _ = await swarm.serve(speed=SPEED)
    async with watching(swarm) as watch:
        swarm.store.down = True
        await asyncio.sleep(30.0)
        await swarm.crash(middle)
        state = await seen(watch, lambda state: dark(state, middle), KILLED_S)
        assert kinds(state) == ["outage", "silent", "unusable"]
        swarm.store.down = False
        await asyncio.sleep(SETTLED_S)


async def test_a_goodbye_is_told_at_once(swarm: Swarm) -> None:
    first, *_ = await swarm.serve(speed=SPEED)
    async with watching(swarm) as watch:
        await first.server.leave()
        state = await seen(watch, lambda state: len(only(state).servers) == 2, 5.0)
        assert kinds(state) == ["left", "unusable"]
        assert "layer 0" in state.events[0].text


async def test_what_this_machine_knows_of_servers_is_shown_and_not_written(swarm: Swarm) -> None:
    nodes = await swarm.serve(speed=SPEED)
    cheat, rest = nodes[1], nodes[0]
    store = ReputationStore(IN_MEMORY, swarm.clock)
    async with watching(swarm, reputation=store) as watch:
        policy = Policy()
        digest = store.keep_proof(cheat.peer, "fraud", b"a proof")
        store.change(cheat.peer, lambda standing: struck(standing, policy, b"one"))
        state = await seen(watch, lambda state: named(state, cheat.peer).standing.strikes == 1, 6.0)
        assert named(state, cheat.peer).condition == "serving", "one strike ejects nobody"
        store.change(cheat.peer, lambda standing: struck(standing, policy, b"two"))
        state = await seen(watch, lambda state: named(state, cheat.peer).condition == "ejected", 6.0)
        assert not only(state).usable
        assert kinds(state)[0] == "struck"
        [ejection] = [event for event in state.events if event.kind == "ejected"]
        assert ejection.peer == cheat.peer
        assert named(state, cheat.peer).standing.proofs == [digest.hex()]
        assert await watch.proof(digest.hex()) == b"a proof"
        assert await watch.proof("00" * 32) is None
        assert await watch.proof("no digest") is None
        assert named(state, rest.peer).standing.strikes == 0
        assert [known.peer for known in store.known()] == [cheat.peer]
    store.close()


async def test_what_others_say_counts_as_far_as_it_was_checked_here(swarm: Swarm) -> None:
    nodes = await swarm.serve(speed=SPEED)
    liar, suspect, _ = nodes
    model, accuser = swarm.files.model_id, swarm.identity()
    evidence, fraud = evidence_against(liar.identity, model), fraud_against(suspect.identity, model)
    directory = MemoryDirectory(swarm.store)
    store = ReputationStore(IN_MEMORY, swarm.clock)
    async with watching(swarm, reputation=store) as watch:
        now_s, pointer = swarm.clock.wall_s(), ProofRef(hashlib.sha256(fraud).digest(), len(fraud))
        await directory.publish(*signed_accusation(accuser, liar.identity, model, now_s))
        await directory.publish(*signed_accusation(accuser, suspect.identity, model, now_s, proofs=(pointer,)))
        state = await seen(watch, lambda state: named(state, liar.peer).condition == "ejected", 20.0)
        [ejection] = [event for event in state.events if event.kind == "ejected"]
        assert await watch.proof(ejection.proof) == evidence
        state = await seen(watch, lambda state: named(state, suspect.peer).standing.accused, 20.0)
        assert named(state, suspect.peer).condition == "serving", "nobody checked it"
        assert "accused" in kinds(state)
        assert store.known() == [], "the machine's own store is only read"
    store.close()


async def test_history_and_events_outlive_the_page(swarm: Swarm, tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    first, *_ = await swarm.serve(speed=SPEED)
    async with watching(swarm, history=path) as watch:
        await swarm.crash(first)
        await seen(watch, lambda state: "unusable" in kinds(state), KILLED_S)
        await asyncio.sleep(70.0)
        before = watch.events()
        whole = await watch.history(str(swarm.files.model_id), 1.0)
        assert await watch.history(swarm.files.name, 1.0) == whole
        assert len(whole.at) >= 3
        assert whole.covered_share[-1] == pytest.approx(1 - 1 / LAYERS)
        assert (whole.tokens_per_s[-1], whole.servers[-1]) == (None, 2)
        assert (await watch.history("another", 1.0)).at == []
    async with watching(swarm, history=path) as watch:
        assert watch.events()[: len(before)] == before
        assert [event.number for event in watch.events()] == list(range(1, len(watch.events()) + 1))
        again = await watch.history(str(swarm.files.model_id), 24.0)
        assert again.at[: len(whole.at)] == whole.at


async def test_a_damaged_history_is_moved_aside_told_and_begun_anew(swarm: Swarm, tmp_path: Path) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(b"no database" * 1000)
    await swarm.serve(speed=SPEED)
    async with watching(swarm, history=path) as watch:
        await asyncio.sleep(40.0)
        [event] = watch.events()
        assert (event.kind, event.number) == ("outage", 1)
        assert str(tmp_path) not in event.text, "whoever looks at the page is not told of this machine's folders"
        assert watch.state().observer.problem == ""
        assert (await watch.history(swarm.files.name, 1.0)).servers[-1] == 3
    assert path.with_name("history.sqlite.damaged").exists()


async def test_a_damaged_store_of_reputations_is_told(swarm: Swarm, tmp_path: Path) -> None:
    first, *_ = await swarm.serve(speed=SPEED)
    store = ReputationStore(tmp_path / "reputation.sqlite", swarm.clock)
    store.change(first.peer, lambda standing: struck(standing, Policy(), b"one"))
    async with watching(swarm, reputation=store) as watch:
        assert named(watch.state(), first.peer).standing.strikes == 1
        with closing(sqlite3.connect(tmp_path / "reputation.sqlite")) as database:
            database.execute("UPDATE peers SET standing = x'00'")
            database.commit()
        state = await seen(watch, lambda state: bool(state.observer.problem), 10.0)
        assert state.observer.problem == UNREADABLE
        assert named(state, first.peer).standing.strikes == 1, "what was known before still counts"
        assert only(state).usable
    store.close()


async def test_a_page_without_a_place_for_its_history_says_so_and_goes_on(swarm: Swarm, tmp_path: Path) -> None:
    await swarm.serve(speed=SPEED)
    (tmp_path / "file").write_text("")
    async with watching(swarm, history=tmp_path / "file" / "history.sqlite") as watch:
        state = watch.state()
        assert only(state).usable
        assert state.observer.problem == "no history is kept"
        assert (await watch.history(str(swarm.files.model_id), 1.0)).at == []
        with pytest.raises(ConfigError):
            ReputationStore(tmp_path / "file" / "history.sqlite", swarm.clock)


async def test_a_model_can_be_named_and_others_are_left_out(swarm: Swarm) -> None:
    await swarm.serve(*SPANS, speed=SPEED)
    async with watching(swarm, models=("nothing",)) as watch:
        assert watch.state().models == []
        assert watch.state().revision > 1
    async with watching(swarm, models=(str(swarm.files.model_id), "absent@main#0123456789abcdef")) as watch:
        absent, present = sorted(watch.state().models, key=lambda model: model.usable)
        assert present.usable
        assert (absent.layers, absent.sentence) == (0, "Not usable: nobody serves it at present.")
