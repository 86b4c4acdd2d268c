"""Steps that cannot be, floods, silences and hang-ups: the session ends with a reason, and nobody else notices."""

from __future__ import annotations

import asyncio

import pytest
from fakes import (
    HIDDEN,
    IDS,
    FakeClient,
    ended,
    rows_of,
    step,
    toward,
)
from harness import Node, Swarm, turns
from msgspec.structs import force_setattr

from swarm.core.limits import MAX_PENDING_STEPS
from swarm.core.records import sign_record
from swarm.core.sampling import SamplingParams
from swarm.wire.fields import PREFILL_LANE
from swarm.wire.messages import Accept, Answer, Close, Failed, LinkLost, Noop, Result, Step
from swarm.wire.payload import pack_ids


def absurd_temperature() -> Answer:
    """One that our own code would refuse to build."""
    answer = Answer(1, SamplingParams(temperature=1.0))
    force_setattr(answer.params, "temperature", float("nan"))
    return answer


BAD_STEPS: dict[str, tuple[Step, bytes, str]] = {
    "keep beyond what is held": (step(keep=1), pack_ids([5]), "keep 1 rows"),
    "rows over the reservation": (step(rows=65), pack_ids([5] * 65), "64 were reserved"),
    "keep over the reservation": (step(keep=64), pack_ids([5]), "64 were reserved"),
    "more wanted than there is": (step(want=2), pack_ids([5]), "wants 2 of 1"),
    "a generation nobody announced": (step(generation=1), pack_ids([5]), "generation 1"),
    "too far ahead": (step(seq=MAX_PENDING_STEPS), pack_ids([5]), "too far ahead"),
    "ids cut short": (step(rows=2), pack_ids([5]), "cannot hold 2 token ids"),
    "ids and a tensor": (step(), pack_ids([5]) + rows_of(1.0), "no tensor"),
    "a tensor and no ids": (step(ids=False), rows_of(1.0), "token ids and no tensor"),
    "nothing at all": (step(ids=False), b"", "token ids and no tensor"),
    "a token outside the vocabulary": (step(), pack_ids([260]), "vocabulary"),
    "a token outside any vocabulary": (step(), pack_ids([2**32 - 1]), "vocabulary"),
    "a horizon over the context": (step(horizon=641), pack_ids([5]), "horizon"),
    "a temperature that is none": (
        step(answer=absurd_temperature()),
        pack_ids([5]),
        "temperature",
    ),
    "a bias outside the vocabulary": (
        step(answer=Answer(1, SamplingParams(logit_bias=((2000, 1.0),)))),
        pack_ids([5]),
        "2000",
    ),
}


@pytest.mark.parametrize("name", sorted(BAD_STEPS))
async def test_an_impossible_step_ends_its_session(swarm: Swarm, node: Node, client: FakeClient, name: str) -> None:
    message, payload, words = BAD_STEPS[name]
    control, link = await client.session(node)
    await link.send(message, *([payload] if payload else []))
    last = await ended(control)
    assert isinstance(last, Failed), last
    assert words in last.reason
    await swarm.check_free()
    await swarm.answers()


@pytest.mark.parametrize("name", ["wrong size", "no rows", "NaN", "infinite"])
async def test_hidden_rows_that_cannot_be(swarm: Swarm, client: FakeClient, name: str) -> None:
    [node] = await swarm.serve("1:5")
    payload = {
        "wrong size": rows_of(1.0)[:-4],
        "no rows": b"",
        "NaN": rows_of(float("nan")),
        "infinite": rows_of(float("inf")),
    }[name]
    control, link = await client.session(node)
    await link.send(step(), pack_ids([5]), payload)
    last = await ended(control)
    assert isinstance(last, Failed), last
    await swarm.check_free()
    await swarm.serve("0:1")
    await swarm.answers()


async def test_nan_rows_do_not_touch_the_session_beside(swarm: Swarm, client: FakeClient) -> None:
    """Both share packed forwards."""
    [node, _] = await swarm.serve("1:5", "0:1")
    stream = await swarm.client().stream("bystander", max_new_tokens=12, ignore_eos=True)
    controls = []
    for n in range(4):
        control, reply = await client.open(node, session=bytes([n] * 16))
        assert isinstance(reply, Accept)
        link = await client.link(node, session=bytes([n] * 16))
        await link.send(step(rows=4, want=4), pack_ids([5] * 4), rows_of(float("nan"), 4))
        controls.append(control)
        await stream.next_piece()
    async for _ in stream:
        pass
    wanted = swarm.reference.greedy("bystander", 12, eos_token_id=None)
    assert list(stream.result.token_ids) == wanted
    for control in controls:
        assert isinstance(await ended(control), Failed)


async def test_the_largest_int8_rows_there_are(swarm: Swarm, client: FakeClient) -> None:
    [node] = await swarm.serve("1:5")
    control, link = await client.session(node, codec="int8")
    scales = b"\x00\x00\x00\x7e"  # 4e37: times 127 it is finite still
    await link.send(step(), pack_ids([5]), scales + bytes([127] * HIDDEN))
    last = (await asyncio.wait_for(control.receive(), 5.0)).message
    assert isinstance(last, Failed | Result), "an answer or a reason, never silence"


async def test_a_bad_step_beside_good_ones_fails_alone(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """A packed forward that is refused for one session runs again without it."""
    good = [await client.open(node, session=bytes([n] * 16)) for n in range(3)]
    links = [await client.link(node, session=bytes([n] * 16)) for n in range(3)]
    for n, link in enumerate(links):
        await link.send(step(rows=3), pack_ids(IDS if n != 1 else [10, 20, 260]))
    first, second, third = [(await control.receive()).message for control, _ in good]
    assert isinstance(second, Failed)
    assert first.tokens == third.tokens == (swarm.reference.greedy(IDS, 1, eos_token_id=None)[0],)


async def test_a_repeated_step_is_answered_once(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    for _ in range(3):
        await link.send(step(rows=3), pack_ids(IDS))
    assert (await control.receive()).message.seq == 0
    assert (await client.ask(control, link, [7], seq=1, keep=3)).seq == 1
    assert node.rows == [3, 1]


async def test_a_lower_epoch_is_dropped_before_compute(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    await client.ask(control, link, IDS, epoch=3)
    await link.send(step(epoch=2, seq=1, keep=0, rows=2), pack_ids([1, 2]))
    reply = await client.ask(control, link, [7], epoch=3, seq=1, keep=3)
    assert reply.kv_length == 4
    assert node.rows == [3, 1]


async def test_steps_out_of_order_run_in_order(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    other = await client.link(node, lane=PREFILL_LANE)
    await other.send(step(seq=1, keep=3), pack_ids([40]))
    await swarm.quiet()
    assert node.rows == []
    await link.send(step(seq=0, rows=3), pack_ids(IDS))
    first, second = (await control.receive()).message, (await control.receive()).message
    assert (first.seq, second.seq) == (0, 1)
    assert second.tokens == (swarm.reference.greedy([*IDS, 40], 1, eos_token_id=None)[0],)


async def test_a_flood_of_steps_waits_on_the_link_not_in_memory(swarm: Swarm, node: Node, client: FakeClient) -> None:
    """Nobody reads the results: the server stops computing, then stops reading."""
    control, link = await client.session(node)

    async def flood() -> None:
        for seq in range(5000):
            await link.send(step(seq=seq, keep=0, rows=60), pack_ids([7] * 60))

    flooding = asyncio.create_task(flood())
    other = await swarm.client().generate("not kept waiting", max_new_tokens=3, ignore_eos=True)
    assert len(other.token_ids) == 3
    [session] = [session for session in node.server.table.sessions if session.key.client == client.peer]
    for _ in range(200):
        await asyncio.sleep(0)
        assert len(session.inbox) <= MAX_PENDING_STEPS
    flooding.cancel()
    await control.send(Close())
    await swarm.check_free()


async def test_a_client_that_reads_nothing_cannot_hold_up_the_others(swarm: Swarm, client: FakeClient) -> None:
    """Its control stream is full, and then it breaks the protocol: the reason cannot be delivered."""
    swarm.small_buffers(200)
    [node] = await swarm.serve("0:5")
    control, link = await client.session(node)
    for seq in range(12):
        await link.send(step(seq=seq, keep=seq), pack_ids([7]))
    await swarm.quiet()
    await link.send(step(seq=3, epoch=1, keep=60), pack_ids([7]))
    await link.send(step(seq=0, epoch=1, keep=60), pack_ids([7]))
    began_s = swarm.clock.monotonic_s()
    await swarm.answers()
    assert swarm.clock.monotonic_s() - began_s < 1.0
    await asyncio.sleep(3.0)
    await swarm.check_free()
    del control


async def test_the_noops_of_an_idle_client_do_not_hold_its_kv(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    await client.ask(control, link, IDS)
    idle_s = node.server.config.idle_timeout_s
    for _ in range(40):
        await asyncio.sleep(idle_s / 38)
        if control.phase.value != "active" or node.idle:
            break
        await control.send(Noop())
    last = await ended(control)
    assert isinstance(last, Failed)
    assert last.fault == "idle"
    await swarm.check_free()


async def test_an_accepted_session_without_a_step_is_closed(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, _ = await client.session(node)
    began_s = swarm.clock.monotonic_s()
    last = await ended(control)
    assert isinstance(last, Failed)
    assert last.fault == "idle"
    limit_s = node.server.config.open_timeout_s
    assert limit_s <= swarm.clock.monotonic_s() - began_s <= limit_s + 2.0
    await swarm.check_free()


async def test_a_client_that_hangs_up_mid_step(swarm: Swarm, node: Node, client: FakeClient) -> None:
    for count in range(12):
        control, link = await client.session(node)
        await link.send(step(rows=3), pack_ids(IDS))
        await turns(count)
        await control.close()
        await swarm.check_free()
    await swarm.answers()


async def test_a_link_that_breaks_is_told_to_the_client(swarm: Swarm, node: Node, client: FakeClient) -> None:
    control, link = await client.session(node)
    await client.ask(control, link, IDS)
    await link.close()
    message = (await control.receive()).message
    assert isinstance(message, LinkLost)
    assert message.peer == client.peer
    await control.send(Close())
    await swarm.check_free()


async def test_an_unreachable_next_server_is_told_to_the_client(swarm: Swarm, client: FakeClient) -> None:
    [node] = await swarm.serve("0:3")
    gone = swarm.identity()
    announcement = swarm.announcement(
        node.transport,
        node.engine,
        peer=gone.peer_id,
        start=3,
        end=5,
        addresses=("/memory/nowhere",),
        expires_s=swarm.clock.wall_s() + 60.0,
    )
    record = sign_record(gone, announcement)
    control, reply = await client.open(node, downstream=toward(record))
    assert isinstance(reply, Accept)
    message = (await control.receive()).message
    assert isinstance(message, LinkLost)
    assert message.peer == gone.peer_id
    await control.send(Close())
    await swarm.check_free()
