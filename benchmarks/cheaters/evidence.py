"""Servers that compute as they should and lie about it: in receipts, to audits, and as auditors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from benchmarks.cheaters.cheat import Cheat
from swarm.core.errors import BusyError
from swarm.engine.work import Output
from swarm.server.record.fetching import BUSY_RETRY_S, Fetching
from swarm.server.record.notary import Notary
from swarm.server.sessions.passage import Passage
from swarm.transport.framing import FrameStream
from swarm.verification.signed.compact import pack
from swarm.verification.signed.receipts import WINDOW_ROWS, Opening, Receipt
from swarm.wire.evidence import FetchRows, Signed
from swarm.wire.messages import Busy, Message, Open, Refused, Step

FORGED = bytes(range(32))
"""In place of a Merkle root."""
CLAIMED_LAYERS = 5
FRAMING_ERROR = 0.5
"""How far a framing auditor's rows are from right ones, relative to what its layers add."""

SignAll = Callable[[Notary, list[Receipt]], list[Message]]
SIGNED = "swarm.server.record.notary.Notary._signed"


def claims_rows() -> Cheat:
    """When it settles it signs one window more, of rows that nobody sent."""

    def change(sign: SignAll) -> Any:
        def sign_more(notary: Notary, receipts: list[Receipt]) -> list[Message]:
            if notary.settled and receipts:
                last = receipts[-1]
                first = (last.window + 1) * WINDOW_ROWS
                more = {"first": first, "last": first + WINDOW_ROWS, "counter": last.counter + 1}
                receipts = [*receipts, msgspec.structs.replace(last, **more, previous=last.digest())]
            return sign(notary, receipts)

        return sign_more

    return Cheat(summary="signs for rows that nobody sent", server=((SIGNED, change),))


def claims_layers() -> Cheat:
    def change(open_: Callable[..., Opening]) -> Any:
        def open_wider(*arguments: Any) -> Opening:
            opening = open_(*arguments)
            return msgspec.structs.replace(opening, start=max(0, opening.start - CLAIMED_LAYERS))

        return open_wider

    patched = "swarm.server.record.signing.Desk.opening"
    return Cheat(summary="signs for more layers than it was asked to run", server=((patched, change),))


def equivocates() -> Cheat:
    def change(sign: SignAll) -> Any:
        def sign_twice(notary: Notary, receipts: list[Receipt]) -> list[Message]:
            messages = sign(notary, receipts)
            others = [msgspec.structs.replace(receipt, leaf_root=FORGED) for receipt in receipts]
            return [*_packed(notary, others), *messages]

        return sign_twice

    return Cheat(summary="signs two different receipts under one counter", server=((SIGNED, change),))


def _packed(notary: Notary, receipts: list[Receipt]) -> list[Message]:
    return [Signed(*notary._mark, pack(notary._desk.sign(receipt))) for receipt in receipts]


def busy_to_audits() -> Cheat:
    """To whoever asks for rows, and from then on to that client's sessions too: that much of an audit it can tell."""
    known: set[str] = set()

    def change_fetching(_: Callable[..., Any]) -> Any:
        async def answer_busy(__: Fetching, fetch: FrameStream, *, busy: bool) -> None:
            await fetch.receive()
            known.add(fetch.peer)
            await fetch.send(Busy(BUSY_RETRY_S, "too many streams ask for rows"))

        return answer_busy

    def change_admission(admit: Callable[..., Any]) -> Any:
        def admit_strangers(reception: Any, control: FrameStream, opened: Open) -> Any:
            if control.peer in known:
                raise BusyError("full for now", retry_after_s=BUSY_RETRY_S)
            return admit(reception, control, opened)

        return admit_strangers

    return Cheat(
        summary="computes something else and is busy when it is audited",
        server=(
            ("swarm.server.record.fetching.Fetching._answer_all", change_fetching),
            ("swarm.server.sessions.reception.Reception.admit", change_admission),
        ),
    )


def withholds() -> Cheat:
    """A colluding neighbour: what it sent to the next server, whoever audits that one shall not see."""

    def change(_: Callable[..., Any]) -> Any:
        async def refuse(__: Fetching, fetch: FrameStream, *, busy: bool) -> None:
            asked = (await fetch.receive()).message
            if isinstance(asked, FetchRows):
                await fetch.send(Refused("these rows were dropped for want of memory"))

        return refuse

    return Cheat(
        summary="shows nobody what it sent to the next server, which cheats",
        server=(("swarm.server.record.fetching.Fetching._answer_all", change),),
    )


def frames() -> Cheat:
    """Who is asked for the rows of one stage alone, without the head, audits somebody: those rows are wrong."""

    def change(computed: Callable[[Passage, Output], None]) -> Any:
        dice = np.random.default_rng(19)

        def computed_wrongly(passage: Passage, output: Output) -> None:
            step, tensor = passage.step, passage.tensor
            asked_for_rows = isinstance(step, Step) and step.want > 1 and not passage.stage.opened.head
            if passage.stage.is_tail and asked_for_rows and output.hidden and tensor is not None:
                right = np.frombuffer(output.hidden, np.float32)
                size = float(np.std(right - np.frombuffer(tensor, np.float32)[-len(right) :]))
                wrong = right + dice.normal(0, FRAMING_ERROR * size, len(right))
                output.hidden = wrong.astype(np.float32).tobytes()
            computed(passage, output)

        return computed_wrongly

    return Cheat(
        summary="answers audits of others wrongly, and ordinary sessions right",
        server=(("swarm.server.sessions.passage.Passage.computed", change),),
    )
