"""Servers that compute right and sign wrong: what the client notes, whom it leaves, and that the answer is right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from harness import SPANS, Node, Swarm
from msgspec.structs import replace

from swarm.client.chains.settling import COUNTERSIGN_S, SETTLE_S
from swarm.client.evidence.records import ReceiptProblem, SessionRecord
from swarm.client.model import AsyncSwarmModel
from swarm.client.results import GenerationResult
from swarm.core.keys import Identity
from swarm.verification.signed.equivocation import EquivocationProof
from swarm.verification.signed.receipts import Opening, Receipt, SignedReceipt, sign_receipt

PROMPT = "A server may sign whatever it likes, but who asks can read. " * 2
NEW_TOKENS = 40
STRANGER = Identity(bytes([77]) * 32)

Lie = Callable[["Liar", Receipt], SignedReceipt]


class Liar:
    """A server's desk at which every receipt goes through ``lie``, which keeps its own chain."""

    def __init__(self, node: Node, lie: Lie) -> None:
        self.identity = node.identity
        self.signed: list[SignedReceipt] = []
        self._lie = lie
        reception = node.server._serving.reception
        self._desk = reception._desk
        reception._desk = self  # type: ignore[assignment]

    def sign(self, receipt: Receipt) -> SignedReceipt:
        signed = self._lie(self, receipt)
        self.signed.append(signed)
        return signed

    def with_fields(self, receipt: Receipt, **fields: Any) -> SignedReceipt:
        """Signed with other fields, those of the opening among them, and in a chain that holds."""
        inner = {name: fields.pop(name) for name in list(fields) if name in Opening.__struct_fields__}
        if self.signed:
            fields.setdefault("previous", self.signed[-1].receipt.digest())
        return sign_receipt(self.identity, replace(receipt, opening=replace(receipt.opening, **inner), **fields))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._desk, name)


def other(**fields: Any) -> Lie:
    return lambda liar, receipt: liar.with_fields(receipt, **fields)


def by_another_key(liar: Liar, receipt: Receipt) -> SignedReceipt:
    return SignedReceipt(receipt, STRANGER.sign(b"swarm/receipt/1", receipt.canonical()))


def one_kept_back(liar: Liar, receipt: Receipt) -> SignedReceipt:
    return liar.with_fields(receipt, counter=receipt.counter + bool(liar.signed))


def rows_never_sent(liar: Liar, receipt: Receipt) -> SignedReceipt:
    return liar.with_fields(receipt, first=receipt.first + 320, last=receipt.last + 320)


def rows_left_out(liar: Liar, receipt: Receipt) -> SignedReceipt:
    return liar.with_fields(receipt, last=receipt.last - 1)


def soon_to_expire(liar: Liar, receipt: Receipt) -> SignedReceipt:
    return liar.with_fields(receipt, expires_s=receipt.expires_s - 86_400 + 60)


def counter_twice(liar: Liar, receipt: Receipt) -> SignedReceipt:
    """The second window's receipt has the first one's counter."""
    if not liar.signed:
        return liar.with_fields(receipt)
    first = liar.signed[0].receipt
    return liar.with_fields(receipt, counter=first.counter, previous=first.previous)


LIES: dict[str, Lie] = {
    "another key": by_another_key,
    "another nonce": other(nonce=b"m" * 16),
    "another session": other(session=b"t" * 16),
    "another span": other(end=4),
    "another model": other(model="other@main#0123456789abcdef"),
    "other numerics": other(numerics="bfloat16"),
    "another commitment": other(commitment=bytes(32)),
    "one kept back": one_kept_back,
    "rows that were never sent": rows_never_sent,
    "rows left out": rows_left_out,
    "soon to expire": soon_to_expire,
}


async def answer(swarm: Swarm, model: AsyncSwarmModel) -> tuple[GenerationResult, SessionRecord]:
    """One answer, the reference's, and what its session leaves."""
    swarm.liars = True
    swarm.delay(0.005)
    result = await model.generate(PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    assert list(result.token_ids) == swarm.reference.greedy(PROMPT, NEW_TOKENS, eos_token_id=None)
    await model.endings.wait(SETTLE_S + COUNTERSIGN_S)
    return result, swarm.records[-1]


async def left(swarm: Swarm, lie: Lie, place: int = 1) -> tuple[Node, GenerationResult, ReceiptProblem]:
    """A liar in the chain, with nobody else for its layers until it is found out; what is noted of it."""
    nodes = await swarm.serve(*SPANS)
    Liar(nodes[place], lie)
    model = swarm.client()
    session = model.session(max_tokens=400)
    await session.generate("hello", max_new_tokens=1)  # the chain is the liar's before anybody else is there
    await swarm.serve(SPANS[place])
    swarm.liars = True
    swarm.delay(0.005)
    result = await session.generate(PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True)
    ids = list(session.token_ids[:-NEW_TOKENS])
    assert list(result.token_ids) == swarm.reference.greedy(ids, NEW_TOKENS, eos_token_id=None)
    await session.close()
    await model.endings.wait(SETTLE_S + COUNTERSIGN_S)
    record = swarm.records[-1]
    assert record.covered_rows == len(record.token_ids), "whoever took over signed for all of it"
    [problem] = record.problems
    return nodes[place], result, problem


@pytest.mark.parametrize("name", sorted(LIES))
async def test_a_liar_is_noted_and_replaced(swarm: Swarm, name: str) -> None:
    liar, result, problem = await left(swarm, LIES[name])
    assert (problem.kind, problem.peers, problem.proof) == ("lie", (liar.peer,), b"")
    assert [stage.peer for heal in result.heals for stage in heal.lost] == [liar.peer]
    assert liar.peer not in {stage.peer for stage in result.chain}
    assert problem in result.verification.problems


async def test_two_receipts_with_one_counter_are_a_proof(swarm: Swarm) -> None:
    liar, result, problem = await left(swarm, counter_twice)
    assert (problem.kind, problem.peers) == ("equivocation", (liar.peer,))
    one, two = EquivocationProof.parse(problem.proof).verify()
    assert one.signer == two.signer == liar.peer
    assert liar.peer not in {stage.peer for stage in result.chain}


@pytest.mark.parametrize(("place", "field"), [(0, "in_root"), (0, "out_root"), (1, "in_root"), (2, "out_root")])
async def test_a_broken_link_is_noted_and_nobody_is_left(swarm: Swarm, place: int, field: str) -> None:
    """Either end may be at fault, the client's own word included."""
    nodes = await swarm.serve(*SPANS, *SPANS)
    for node in nodes:
        if node.server._serving.reception._vitals.engine.info.span == nodes[place].engine.info.span:
            Liar(node, other(**{field: bytes(32)}))
    model = swarm.client()
    result, record = await answer(swarm, model)
    peers = [model.parts.transport.peer_id, *(stage.peer for stage in result.chain), model.parts.transport.peer_id]
    first = place + (field == "out_root")
    [problem] = record.problems
    assert (problem.kind, problem.peers) == ("broken link", tuple(peers[first : first + 2]))
    assert result.heals == ()
    assert record.covered_rows == 0


async def test_who_signs_nothing_though_it_said_so(swarm: Swarm, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end shows it: it is noted, and nothing is covered."""
    nodes = await swarm.serve()

    def silent(liar: Liar, receipt: Receipt) -> SignedReceipt:
        return liar.with_fields(receipt)

    Liar(nodes[1], silent)
    from swarm.server.record.notary import Notary

    honest = Notary._signed

    def kept_back(self: Notary, receipts: list[Receipt]) -> list[Any]:
        return [] if isinstance(self._desk, Liar) else honest(self, receipts)

    monkeypatch.setattr(Notary, "_signed", kept_back)
    result, record = await answer(swarm, swarm.client())
    [problem] = record.problems
    assert (problem.kind, problem.peers) == ("missing", (nodes[1].peer,))
    assert (result.verification.windows, record.covered_rows, result.heals) == (0, 0, ())
    assert [bool(stage.receipts) for stage in record.stages] == [True, False, True]


async def test_a_lie_at_the_very_end(swarm: Swarm) -> None:
    """In the last, shorter window nobody can be replaced any more: it is noted, and the answer was right."""
    nodes = await swarm.serve()

    def at_the_end(liar: Liar, receipt: Receipt) -> SignedReceipt:
        return by_another_key(liar, receipt) if receipt.rows < 32 else liar.with_fields(receipt)

    Liar(nodes[1], at_the_end)
    result, record = await answer(swarm, swarm.client())
    [problem] = record.problems
    assert (problem.kind, problem.peers) == ("lie", (nodes[1].peer,))
    rows = len(record.token_ids)
    assert (result.heals, record.covered_rows) == ((), rows - rows % 32)
