"""Receipts as servers sign them in a live session: complete, linked, and only of what was accepted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from by_hand import Place
from fakes import FakeClient
from harness import SPANS, Node, Swarm, until
from signed_chain import SignedChain

from swarm.core.spans import Span
from swarm.server.config import ServerConfig
from swarm.verification.signed.leaves import LEAF_BYTES
from swarm.verification.signed.receipts import NO_HASH
from swarm.wire.messages import Answer

PROMPT = list(range(40, 140))


async def chain(client: FakeClient, nodes: Sequence[Node], **opening: object) -> SignedChain:
    return await SignedChain(client, nodes, **opening).open()


@pytest.mark.parametrize("codec", ["raw", "int8"])
async def test_every_window_is_covered(swarm: Swarm, client: FakeClient, codec: str) -> None:
    """From the prompt in chunks to the last decoded row, whose window is shorter."""
    signed = await chain(client, await swarm.serve(*SPANS), codec=codec)
    last = await signed.prompt(PROMPT, chunk=37)
    await signed.go_on(last, 45)
    windows = await signed.settle()
    assert [window.rows for window in windows] == [32, 32, 32, 32, 17]
    assert set(signed.settled.values()) == {145}


@pytest.mark.parametrize("dtypes", [("float32", "bfloat16", "float32"), ("bfloat16", "float16", "bfloat16")], ids=str)
async def test_links_hold_where_rows_are_cast(swarm: Swarm, client: FakeClient, dtypes: tuple[str, ...]) -> None:
    """What is hashed is what crossed the wire, in the dtype of whoever reads it."""
    nodes = [(await swarm.serve(span, dtype=dtype))[0] for span, dtype in zip(SPANS, dtypes, strict=True)]
    signed = await chain(client, nodes)
    await signed.go_on(await signed.prompt(PROMPT), 8)
    assert [window.rows for window in await signed.settle()] == [32, 32, 32, 12]


async def test_a_window_is_signed_as_soon_as_a_step_goes_on_from_it(swarm: Swarm, client: FakeClient) -> None:
    """And not before: until then its rows may be rejected."""
    signed = await chain(client, await swarm.serve(*SPANS))
    await signed.prompt(PROMPT[:64], chunk=64)
    await signed.catch_up()
    assert [len(signed.receipts(place)) for place in signed.places] == [0, 0, 0]
    await signed.ask([7])
    await signed.catch_up()
    assert [len(signed.receipts(place)) for place in signed.places] == [2, 2, 2]


async def test_rejected_rows_are_never_signed(swarm: Swarm, client: FakeClient) -> None:
    """Drafts over the end of a window are turned down: no receipt is about them."""
    signed = await chain(client, await swarm.serve(*SPANS))
    await signed.prompt(PROMPT[:28], chunk=28)
    await signed.ask([200, 201, 202, 203, 204, 205], want=6)
    await signed.roll_back(30)
    await signed.ask([210, 211, 212], want=3)
    await signed.roll_back(31)
    await signed.ask([220], want=1)
    await signed.ask([221], want=1)
    [full, rest] = await signed.settle()
    assert (full.rows, rest.rows) == (32, 1)
    for place in signed.places:
        one, other = (receipt.receipt.counter for receipt in signed.receipts(place))
        assert other == one + 1, "the window was signed once"


async def test_what_was_signed_and_is_taken_back_is_signed_again(swarm: Swarm, client: FakeClient) -> None:
    signed = await chain(client, await swarm.serve(*SPANS))
    await signed.prompt(PROMPT, chunk=20)
    await signed.catch_up()
    before = signed.receipts(signed.tail)
    assert [len(signed.receipts(place)) for place in signed.places] == [2, 2, 2]
    await signed.roll_back(40)
    await signed.ask(list(range(150, 200)))
    windows = await signed.settle()
    assert [window.rows for window in windows] == [32, 32, 26]
    after = signed.receipts(signed.tail)
    assert after[0] == before[0], "below the rollback nothing changes"
    assert after[1].receipt.counter > before[1].receipt.counter
    assert after[1].receipt.leaf_root != before[1].receipt.leaf_root


async def test_a_session_may_settle_for_less_than_it_computed(swarm: Swarm, client: FakeClient) -> None:
    """The last drafts were not accepted, and no step says so any more."""
    signed = await chain(client, await swarm.serve(*SPANS))
    await signed.prompt(PROMPT[:30], chunk=30)
    await signed.ask([200, 201, 202, 203, 204, 205], want=6)
    signed.ids = signed.ids[:33]
    assert [window.rows for window in await signed.settle()] == [32, 1]
    assert set(signed.settled.values()) == {33}


async def test_a_tail_without_a_head_signs_the_rows_it_sent(swarm: Swarm, client: FakeClient) -> None:
    """Rows that nobody asked for are in no answer, and in no root."""
    for codec in ("raw", "int8"):
        signed = await chain(
            client, await swarm.serve(*SPANS), head=False, codec=codec, session=codec.ljust(16).encode()
        )
        await signed.ask_rows(PROMPT[:50], want=1)
        for token in range(60, 70):
            await signed.ask_rows([token], want=1)
        await signed.ask_rows([1, 2, 3, 4], want=2)
        assert [window.rows for window in await signed.settle()] == [32, 32]


async def test_one_server_may_run_several_stages_of_a_session(swarm: Swarm, client: FakeClient) -> None:
    [whole] = await swarm.serve("0:5")
    [middle] = await swarm.serve("1:3")
    signed = SignedChain(client, [whole])
    spans = (whole, Span(0, 1)), (middle, Span(1, 3)), (whole, Span(3, 5))
    signed.places = [Place(node, number, bytes([number] * 16), span) for number, (node, span) in enumerate(spans)]
    await signed.open()
    await signed.go_on(await signed.prompt(PROMPT), 3)
    await signed.settle()
    first, last = ([one.receipt.counter for one in signed.receipts(signed.places[index])] for index in (0, 2))
    assert not set(first) & set(last), "one signer, one nonce: counters must differ"


async def test_one_nonce_twice_makes_nobody_equivocate(swarm: Swarm, client: FakeClient) -> None:
    """Whatever a client draws, counters never repeat: neither over its sessions, nor if it opens the same one again."""
    [node] = await swarm.serve("0:5")
    counters = []
    for session in (b"a" * 16, b"b" * 16, b"a" * 16):
        signed = await chain(client, [node], session=session)
        await signed.prompt(PROMPT[:33], chunk=33)
        await signed.settle()
        counters += [one.receipt.counter for one in signed.receipts(signed.tail)]
        await signed.close()
        await swarm.quiet()
    assert len(set(counters)) == len(counters) == 6


async def test_a_receipt_counts_for_as_long_as_the_server_says(swarm: Swarm, client: FakeClient) -> None:
    [node] = await swarm.serve("0:5", config=ServerConfig(receipt_lifetime_s=1000.0))
    signed = await chain(client, [node])
    await signed.prompt(PROMPT[:33], chunk=33)
    await signed.settle()
    [one, other] = signed.receipts(signed.tail)
    assert one.receipt.expires_s == other.receipt.expires_s == int(signed.now_s + 1000.0)
    assert one.receipt.opening.calibration == NO_HASH


async def test_without_receipts_a_server_says_so_and_signs_nothing(swarm: Swarm, client: FakeClient) -> None:
    [node] = await swarm.serve("0:5", config=ServerConfig(receipts=False))
    signed = SignedChain(client, [node])
    await super(SignedChain, signed).open()
    accepted = signed.tail.accepted
    assert accepted is not None
    assert not accepted.receipts
    assert accepted.calibration == b""
    await signed.go_on(await signed.prompt(PROMPT), 3)
    await swarm.quiet()
    assert not signed.tail.receipts
    assert node.server._serving.reception.replay_budget.used_bytes == 0


async def test_leaves_count_in_the_budget_and_are_given_back(swarm: Swarm, client: FakeClient) -> None:
    """Even where there is no room for rows leaves are held: without them nothing can be signed."""
    config = ServerConfig(replay_mb=0.0)
    signed = await chain(client, await swarm.serve(*SPANS, config=config))
    await signed.go_on(await signed.prompt(PROMPT), 40)
    await swarm.quiet()
    budgets = [place.node.server._serving.reception.replay_budget for place in signed.places]
    assert all(budget.used_bytes >= 128 * LEAF_BYTES for budget in budgets)
    await signed.settle()
    await signed.close()
    await swarm.quiet()
    assert [budget.used_bytes for budget in budgets] == [0, 0, 0]


async def test_answers_are_the_same_with_receipts_and_without(swarm: Swarm, client: FakeClient) -> None:
    """A tail that records its rows computes logits for the wanted ones only, as before."""
    results = []
    for receipts in (True, False):
        nodes = await swarm.serve(*SPANS, config=ServerConfig(receipts=receipts))
        signed = SignedChain(client, nodes, session=bytes([receipts] * 16))
        await super(SignedChain, signed).open()
        last = await signed.prompt(PROMPT)
        results.append([last, *await signed.go_on(last, 5, Answer(100, signed.params))])
        await signed.close()
    assert [one.tokens for one in results[0]] == [one.tokens for one in results[1]]
    assert [one.logprobs for one in results[0]] == [one.logprobs for one in results[1]]


async def test_signing_never_holds_up_the_loop_for_long(swarm: Swarm, client: FakeClient) -> None:
    """However many windows are due at once, one is made in a turn of the loop."""
    nodes = await swarm.serve(*SPANS)
    clients = [FakeClient(swarm) for _ in range(3)]
    desks = [desk for node in nodes if (desk := node.server._serving.reception._desk) is not None]
    for desk in desks:
        await desk.turn.acquire()  # nobody gets to write before all have something to
    for other in clients:
        signed = await chain(other, nodes, kv_tokens=600)
        await signed.send(list(range(100)) * 5, keep=0, horizon=500)
    await until(lambda: sum(len(node.rows) for node in nodes) == 9)
    await swarm.quiet()
    notaries = [session.kept.notary for node in nodes for session in node.server.table.sessions]
    made: list[int] = []
    for notary in notaries:
        assert notary is not None
        work = notary._work

        def count(work: object = work) -> object:
            made.append(turn[0])
            return work()  # type: ignore[operator]

        notary._work = count  # type: ignore[assignment]
    for desk in desks:
        desk.turn.release()
    turn = [0]
    while not all(notary is not None and notary.builder.length == 480 for notary in notaries):
        turn[0] += 1
        await asyncio.sleep(0)
    for other in clients:
        await other.close()
    assert len(made) == 3 * len(nodes) * 15, "500 rows are fifteen windows, and some more that wait"
    assert max(made.count(at) for at in set(made)) <= len(nodes), "at most one for each server"
