"""A chain of stages without engine or network: made-up rows go through it, and every stage keeps its leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from swarm.core.keys import Identity
from swarm.verification.signed.coverage import by_signer
from swarm.verification.signed.leaves import Leaf, digest_rows, row_hash
from swarm.verification.signed.receipts import NO_HASH, Opening, Receipt, SignedReceipt, sign_receipt
from swarm.verification.signed.windows import WindowBuilder, counter_base

NOW_S = 1_000_000
EXPIRES_S = NOW_S + 86_400
MODEL = "demo@main#0123456789abcdef"
CLIENT = Identity(bytes([255]) * 32)
SERVERS = [Identity(bytes([number]) * 32) for number in range(1, 9)]


def opening(stage: int, start: int, end: int, *, server: int | None = None, session: int = 7) -> Opening:
    return Opening(
        signer=SERVERS[stage if server is None else server].peer_id,
        client=CLIENT.peer_id,
        session=bytes([session]) * 16,
        nonce=bytes([session + 1]) * 16,
        stage=stage,
        start=start,
        end=end,
        model=MODEL,
        calibration=NO_HASH,
        numerics="float32",
        commitment=bytes([session + 2]) * 32,
    )


def wire_row(boundary: int, position: int, version: int = 0) -> bytes:
    """The bytes that cross into the stage at ``boundary``; another version is another computation of the row."""
    return f"row {position} before layer {boundary}, version {version}".encode()


def leaves_of(span: Opening, positions: Iterable[int], version: int = 0) -> list[Leaf]:
    """Leaves of a middle stage that takes in and sends rows with their token ids (here the position)."""
    leaves = []
    for position in positions:
        taken = digest_rows(1, wire_row(span.start, position, version))[0]
        given = digest_rows(1, wire_row(span.end, position, version))[0]
        leaves.append(Leaf(position, row_hash(taken, position), given, row_hash(given, position)))
    return leaves


def sign(receipt: Receipt) -> SignedReceipt:
    identity = next(server for server in SERVERS if server.peer_id == receipt.signer)
    return sign_receipt(identity, receipt)


def forge(signed: SignedReceipt, **fields: object) -> SignedReceipt:
    """The receipt its own signer would have signed with other ``fields``, those of the opening among them."""
    inner = {name: fields.pop(name) for name in list(fields) if name in Opening.__struct_fields__}
    return sign(replace(signed.receipt, opening=replace(signed.receipt.opening, **inner), **fields))


class Chain:
    """Stages of consecutive spans; stage i is server i's."""

    def __init__(self, *ends: int, session: int = 7, now_s: float = NOW_S) -> None:
        starts = (0, *ends[:-1])
        self.openings = [
            opening(stage, *span, session=session) for stage, span in enumerate(zip(starts, ends, strict=True))
        ]
        self.builders = [WindowBuilder(one, counter_base(now_s, 0)) for one in self.openings]
        self.expected = by_signer(self.openings)
        self.layers = ends[-1]

    def compute(self, rows: int, version: int = 0) -> None:
        """Every stage computes ``rows`` more."""
        for one, builder in zip(self.openings, self.builders, strict=True):
            builder.append(leaves_of(one, range(builder.length, builder.length + rows), version))

    def truncate(self, keep: int) -> None:
        for builder in self.builders:
            builder.truncate(keep)

    def commit(self, length: int) -> list[list[SignedReceipt]]:
        """What every stage signs then, windows outermost."""
        return self._by_window([builder.commit(length, EXPIRES_S) for builder in self.builders])

    def close(self, keep: int) -> list[list[SignedReceipt]]:
        return self._by_window([builder.close(keep, EXPIRES_S) for builder in self.builders])

    def window(self) -> list[SignedReceipt]:
        """A full window's receipts."""
        self.compute(32)
        return self.commit(self.builders[0].length)[0]

    @staticmethod
    def _by_window(stages: Sequence[Sequence[Receipt]]) -> list[list[SignedReceipt]]:
        return [[sign(receipt) for receipt in window] for window in zip(*stages, strict=True)]
