"""What the client knows of its session's rows without being told: what it sent, and what came back for it."""

from __future__ import annotations

from collections.abc import Sequence

from swarm.core.errors import MisuseError, ProtocolViolation
from swarm.core.sampling import SamplingParams
from swarm.verification.signed.leaves import digest_rows, id_hashes, row_hashes
from swarm.verification.signed.merkle import merkle_root
from swarm.wire.fields import Codec
from swarm.wire.messages import Replay, Result, Step
from swarm.wire.payload import split_payload
from swarm.wire.tensors import INT8_BLOCK, Buffer

NOT_SENT = id_hashes([None])[0]
"""A row that the last server keeps to itself, since nobody asked for it."""


class KnownRows:
    """Hashes of rows as they left and as they came, by position. A row takes about 100 bytes.

    ``most`` is how many rows were ever held or on their way, ``work`` how many were sent in all, those that were sent
    again included: together they bound what a server may sign.
    """

    def __init__(self, codec: Codec) -> None:
        self.most = self.work = 0
        self._codec = codec
        self._entries: list[bytes] = []
        self._exits: list[bytes | None] = []
        self._tokens: list[int | None] = []
        self._params: list[tuple[int, SamplingParams]] = []

    def send(self, step: Step, payload: Sequence[Buffer]) -> None:
        """These rows are on their way, and everything from ``step.keep`` on that was before is not."""
        self.truncate(step.keep)
        self._entries += hashes_of(step, payload, self._codec)
        silent = step.rows - step.want
        self._exits += [NOT_SENT] * silent + [None] * step.want
        self._tokens += [None] * step.rows
        self.most = max(self.most, len(self._entries))
        self.work += step.rows
        if step.answer is not None:
            self._params = [(start, params) for start, params in self._params if start < step.answer.start]
            self._params.append((step.answer.start, step.answer.params))

    def hear(self, result: Result, payload: Buffer) -> None:
        """The last server's answer to a step that was sent, and not voided since."""
        end, tokens = result.kv_length, result.tokens
        if tokens:
            self._answer(end, id_hashes(tokens), tokens)
        elif result.rows:
            try:
                self._answer(end, row_hashes(tensor_digests(payload, result.rows, self._codec)), ())
            except MisuseError as error:
                raise ProtocolViolation(f"rows of unequal size: {error.message}") from error

    def truncate(self, keep: int) -> None:
        """The rows from ``keep`` on are no more."""
        del self._entries[keep:], self._exits[keep:], self._tokens[keep:]
        self._params = [(start, params) for start, params in self._params if start <= keep]

    def refeed(self, entries: Sequence[bytes], first: int) -> None:
        """The first server was fed all rows again, with these hashes; from ``first`` on it will sign for them."""
        self._entries[first : len(entries)] = entries[first:]

    def unanswer(self, first: int) -> None:
        """The last server has computed the rows from ``first`` on again, and nobody asked it for answers."""
        rows = len(self._exits)
        self._exits[first:] = [NOT_SENT] * (rows - first)
        self._tokens[first:] = [None] * (rows - first)

    def entry_root(self, first: int, last: int) -> bytes | None:
        """Over the rows as sent to the first server; None if they are not all known."""
        entries = self._entries[first:last]
        return merkle_root(entries) if len(entries) == last - first else None

    def exit_root(self, first: int, last: int) -> bytes | None:
        """Over the rows as the last server sent them; None if an answer has not come."""
        exits = [part for part in self._exits[first:last] if part is not None]
        return merkle_root(exits) if len(exits) == last - first else None

    @property
    def answers(self) -> tuple[tuple[int, int], ...]:
        """``(position of a row, token that the last server chose after it)``, in order."""
        return tuple((row, token) for row, token in enumerate(self._tokens) if token is not None)

    @property
    def params(self) -> tuple[tuple[int, SamplingParams], ...]:
        """``(start, params)``: what the last server was told to choose the tokens from ``start`` on by."""
        return tuple(self._params)

    def _answer(self, end: int, hashes: Sequence[bytes], tokens: Sequence[int]) -> None:
        first = end - len(hashes)
        if first < 0 or end > len(self._exits) or any(part is not None for part in self._exits[first:end]):
            return  # not what was asked for, and whoever waits for it says so
        self._exits[first:end] = hashes
        self._tokens[first : first + len(tokens)] = tokens


def hashes_of(message: Step | Replay, payload: Sequence[Buffer], codec: Codec) -> list[bytes]:
    """The hash of every row of a step or replay as it goes over the wire."""
    whole = payload[0] if len(payload) == 1 else b"".join(payload)
    ids, tensor = split_payload(message, whole)
    if ids is None:
        return row_hashes(tensor_digests(tensor, message.rows, codec))
    token_ids: list[int] = ids.tolist()
    return row_hashes(tensor_digests(tensor, message.rows, codec), token_ids) if len(tensor) else id_hashes(token_ids)


def tensor_digests(tensor: Buffer, rows: int, codec: Codec) -> list[bytes]:
    """The digest of every row of an encoded tensor; a row's scales come before its values.

    ``MisuseError`` if it is not of equal rows.
    """
    if codec == "raw":
        return digest_rows(rows, tensor)
    view = memoryview(tensor).cast("B")
    row_bytes = len(view) // rows
    scale_bytes = 4 * -(-row_bytes // (INT8_BLOCK + 4)) * rows  # a block is 64 values and a scale, the last may be less
    return digest_rows(rows, view[:scale_bytes], view[scale_bytes:])
