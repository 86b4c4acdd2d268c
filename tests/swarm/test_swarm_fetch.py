"""What a client fetches of its closed sessions is what the receipts were signed over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
from by_hand import Place
from fakes import HIDDEN, FakeClient
from fetches import Want, closed, fetching, request
from harness import SPANS, Swarm

from swarm.server.config import ServerConfig
from swarm.verification.signed.leaves import NO_SKETCH, Leaf, digest_rows, row_hashes
from swarm.verification.signed.receipts import WINDOW_ROWS, SignedReceipt, check_rows, open_leaves
from swarm.verification.verdicts.calibration import Calibration, calibrate
from swarm.verification.verdicts.sketch import Sketcher, is_sketch_of
from swarm.wire.evidence import FetchedRows
from swarm.wire.messages import Refused
from swarm.wire.payload import ID_BYTES
from swarm.wire.tensors import Buffer, cut_tensor, tensor_bytes, to_float32


async def fetched(
    client: FakeClient, place: Place, first: int, last: int, want: Want
) -> AsyncIterator[tuple[FetchedRows, bytes]]:
    """The frames of one request, checked for order and size."""
    stream = await fetching(client, place.node)
    await stream.send(request(place, first, last, want))
    while first < last:
        frame = await stream.receive()
        assert isinstance(frame.message, FetchedRows), frame.message
        assert frame.message.first == first
        assert frame.message.rows <= 128
        first += frame.message.rows
        yield frame.message, bytes(frame.payload)
    assert first == last
    await stream.close()


async def leaves_of(client: FakeClient, place: Place, receipt: SignedReceipt) -> list[Leaf]:
    """A window's leaves, if they are those that were signed."""
    signed = receipt.receipt
    frames = [frame async for frame in fetched(client, place, signed.first, signed.last, "leaves")]
    data = b"".join(payload for _, payload in frames)
    sizes = len(data) // signed.rows if len(data) % signed.rows == 0 else 0
    assert sizes, "leaves of one kind in these windows"
    return open_leaves(signed, [data[at : at + sizes] for at in range(0, len(data), sizes)])


def cut(payload: Buffer, codec: str, dtype: str, rows: int) -> list[Buffer]:
    return [part for part in cut_tensor(payload, codec, dtype, HIDDEN, 0, rows) if len(part)]


@pytest.mark.parametrize("codec", ["raw", "int8"])
@pytest.mark.parametrize("dtypes", [("float32",) * 3, ("float32", "bfloat16", "float32")], ids=["same", "mixed"])
async def test_rows_hash_to_what_was_signed(
    swarm: Swarm, client: FakeClient, codec: str, dtypes: tuple[str, ...]
) -> None:
    """Outputs to the leaves' digests, rows as sent to both ends' roots, whatever codec or cast lies between."""
    nodes = [(await swarm.serve(span, dtype=dtype))[0] for span, dtype in zip(SPANS, dtypes, strict=True)]
    signed = await closed(swarm, client, nodes, codec=codec)
    for place, dtype in zip(signed.places, dtypes, strict=True):
        digests: list[bytes] = []
        async for message, payload in fetched(client, place, 0, 96, "outputs"):
            assert len(payload) == tensor_bytes("raw", dtype, message.rows, HIDDEN)
            digests += digest_rows(message.rows, payload)
        for receipt in signed.receipts(place)[:3] if place is not signed.tail else []:
            leaves = await leaves_of(client, place, receipt)
            assert [leaf.output for leaf in leaves] == digests[receipt.receipt.first : receipt.receipt.last]
    for place, reader, following in zip(signed.places, signed.places[1:], dtypes[1:], strict=False):
        hashes: list[bytes] = []
        async for message, payload in fetched(client, place, 0, 150, "sent"):
            assert message.ids
            ids = np.frombuffer(payload, "<u4", message.rows)
            assert list(ids) == signed.ids[message.first : message.first + message.rows]
            rows = cut(memoryview(payload)[ID_BYTES * message.rows :], codec, following, message.rows)
            hashes += row_hashes(digest_rows(message.rows, *rows), ids.tolist())
        for mine, theirs in zip(signed.receipts(place), signed.receipts(reader), strict=True):
            window = hashes[mine.receipt.first : mine.receipt.last]
            check_rows(mine.receipt.out_root, window, mine.receipt)
            check_rows(theirs.receipt.in_root, window, theirs.receipt)


async def test_any_range_of_rows(swarm: Swarm, client: FakeClient) -> None:
    """From the middle of a step to the middle of another, in frames of 128 rows, several requests on one stream."""
    signed = await closed(swarm, client, await swarm.serve(*SPANS), chunk=100)
    place = signed.places[1]
    whole = b"".join([payload async for _, payload in fetched(client, place, 0, 150, "outputs")])
    size = len(whole) // 150
    for first, last in ((0, 1), (99, 101), (5, 149), (149, 150), (17, 17 + WINDOW_ROWS)):
        part = b"".join([payload async for _, payload in fetched(client, place, first, last, "outputs")])
        assert part == whole[first * size : last * size]
    stream = await fetching(client, place.node)
    wants: tuple[Want, ...] = ("leaves", "outputs", "sent")
    for want in wants:
        await stream.send(request(place, 140, 150, want))
    kinds = [(await stream.receive()).message for _ in range(3)]
    assert [kind.rows for kind in kinds if isinstance(kind, FetchedRows)] == [10, 10, 10]


async def test_a_tails_leaves_hold_its_tokens(swarm: Swarm, client: FakeClient) -> None:
    """Where it answered; and the digest of the row that its head read, which is what it computed."""
    signed = await closed(swarm, client, await swarm.serve(*SPANS), chunk=100)
    leaves = await leaves_of(client, signed.tail, signed.receipts(signed.tail)[-1])
    assert [leaf.token_id for leaf in leaves] == [signed.tokens[row] for row in range(128, 150)]
    assert all(leaf.final == leaf.output for leaf in leaves)
    stream = await fetching(client, signed.tail.node)
    await stream.send(request(signed.tail, 0, 32, "sent"))
    reply = (await stream.receive()).message
    assert isinstance(reply, Refused)
    assert "went to the client" in reply.reason


async def test_leaves_hold_sketches_of_the_update(swarm: Swarm, client: FakeClient) -> None:
    """Of what came in and what went out, at the head server too, where ids come in and rows are embedded."""
    calibration = toy_calibration(swarm)
    nodes = await swarm.serve(*SPANS, calibration=calibration)
    signed = await closed(swarm, client, nodes)
    inputs: np.ndarray[Any, Any] | None = None
    for place in signed.places:
        assert place.accepted is not None
        assert place.accepted.calibration == calibration.digest()
        raw = b"".join([payload async for _, payload in fetched(client, place, 0, 96, "outputs")])
        outputs = to_float32(raw, "float32").reshape(96, HIDDEN)
        embedded = swarm.reference.model.model.embed_tokens.weight.detach().numpy()[signed.ids[:96]]
        update = outputs - (embedded if inputs is None else inputs)
        inputs = outputs
        wanted = Sketcher.of(calibration, place.span).sketch(update[64:], first=64)
        data = b"".join([payload async for _, payload in fetched(client, place, 64, 96, "leaves")])
        leaves = [Leaf.parse(one) for one in split(data)]
        assert NO_SKETCH not in {leaf.sketch for leaf in leaves}
        found = np.frombuffer(b"".join(leaf.sketch for leaf in leaves), np.int8).reshape(32, 16)
        assert is_sketch_of(found, wanted)


def split(data: bytes) -> list[bytes]:
    """Leaves one after the other, whose first byte says how long each is."""
    leaves = []
    while data:
        size = 153 if data[0] else 117
        leaves.append(data[:size])
        data = data[size:]
    return leaves


def toy_calibration(swarm: Swarm) -> Calibration:
    states = np.random.default_rng(0).standard_normal((6, 80, HIDDEN)).cumsum(axis=0)
    return calibrate(swarm.files.model_id, states, np.ones(80, bool), text="toy")


async def test_rows_are_there_for_ten_minutes(swarm: Swarm, client: FakeClient) -> None:
    nodes = await swarm.serve(*SPANS)
    signed = await closed(swarm, client, nodes)
    place = signed.places[0]
    await swarm.clock.sleep(590.0)
    assert [message.rows async for message, _ in fetched(client, place, 0, 32, "leaves")] == [32]
    await swarm.clock.sleep(30.0)
    stream = await fetching(client, place.node)
    await stream.send(request(place, 0, 32, "leaves"))
    reply = (await stream.receive()).message
    assert isinstance(reply, Refused)
    assert "too long" in reply.reason
    assert all(node.server._serving.reception.replay_budget.used_bytes == 0 for node in nodes)


async def test_running_sessions_come_first(swarm: Swarm, client: FakeClient) -> None:
    """Where memory is short, the oldest closed session makes room for the rows of a new one."""
    budget_mb = 2.6 * 150 * (HIDDEN * 4 + ID_BYTES + 190) / 1e6
    [node] = await swarm.serve("0:5", config=ServerConfig(replay_mb=budget_mb))
    names = [bytes([number]) * 16 for number in range(3)]
    done = [await closed(swarm, client, [node], session=name) for name in names]
    kept = []
    for signed in done:
        stream = await fetching(client, node)
        await stream.send(request(signed.tail, 0, 150, "outputs"))
        kept.append(isinstance((await stream.receive()).message, FetchedRows))
    assert kept == [False, True, True]
    reception = node.server._serving.reception
    assert reception.replay_budget.used_bytes <= reception.replay_budget.limit_bytes


async def test_a_session_without_room_for_its_rows_says_so(swarm: Swarm, client: FakeClient) -> None:
    """Receipts go on, but nothing can be audited: the leaves are there, the rows are not."""
    config = ServerConfig(replay_mb=0.04)
    nodes = await swarm.serve(*SPANS, config=config)
    signed = await closed(swarm, client, nodes)
    wants: dict[Want, bool] = {"leaves": True, "outputs": False, "sent": False}
    for want, fits in wants.items():
        stream = await fetching(client, nodes[1])
        await stream.send(request(signed.places[1], 0, 32, want))
        reply = (await stream.receive()).message
        assert isinstance(reply, FetchedRows if fits else Refused), reply
        assert fits or "want of memory" in reply.reason  # type: ignore[union-attr]
