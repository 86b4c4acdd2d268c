"""KV memory: one preallocated buffer per session and layer, within a budget counted in tokens."""

from __future__ import annotations

import threading

import torch

from swarm.core.errors import BusyError, RefusedError

RETRY_AFTER_S = 1.0

Buffers = tuple[torch.Tensor, torch.Tensor]
"""Keys ``[kv_heads, capacity, key_size]`` and values ``[kv_heads, capacity, value_size]`` of one layer."""


class KVSlot:
    """One session's cache over every layer of a span: ``capacity`` tokens reserved, ``length`` rows held.

    Truncation is an assignment to ``length``: rows beyond it are garbage that the next append overwrites.
    Memory is taken when a layer first writes, on the device it writes from, and given back by ``close``.
    """

    def __init__(self, capacity: int, layer_count: int) -> None:
        self.capacity = capacity
        self.length = 0
        self.closed = False
        self._layers: list[Buffers | None] = [None] * layer_count

    def layers(self) -> list[Buffers | None]:
        """The buffers, None for a layer that has not written; a running forward keeps this list beyond ``close``."""
        return self._layers

    def release(self) -> None:
        """Close and drop the buffers. A forward that runs meanwhile ends on the old ones, or on ones of its own."""
        self.closed = True
        self._layers = [None] * len(self._layers)
        self.length = 0


def layer_buffers(layers: list[Buffers | None], index: int, capacity: int, like: Buffers) -> Buffers:
    """Buffers of layer ``index``, allocated with the head counts, sizes, dtype and device of ``like`` if need be.

    ``like`` holds packed keys and values ``[1, kv_heads, rows, size]``.
    """
    buffers = layers[index]
    if buffers is None:
        key, value = like
        buffers = (
            key.new_empty((key.shape[1], capacity, key.shape[3])),
            value.new_empty((value.shape[1], capacity, value.shape[3])),
        )
        layers[index] = buffers
    return buffers


class KVPool:
    """Admits sessions within ``total_tokens``. Safe to call from any thread."""

    def __init__(self, *, total_tokens: int, context_tokens: int, layer_count: int) -> None:
        self.total_tokens = total_tokens
        self.context_tokens = context_tokens
        self._layer_count = layer_count
        self._used_tokens = 0
        self._lock = threading.Lock()

    @property
    def free_tokens(self) -> int:
        """Tokens not reserved by an open session."""
        with self._lock:
            return self.total_tokens - self._used_tokens

    def open(self, tokens: int) -> KVSlot:
        """Reserve ``tokens`` for one session.

        Raises ``RefusedError`` if that many never fit (over the context or over the whole budget) and ``BusyError``
        if they do not fit beside the sessions open now.
        """
        if tokens < 1:
            raise RefusedError(f"a session of {tokens} tokens", hint="ask for at least one token")
        if tokens > self.context_tokens:
            raise RefusedError(
                f"{tokens} tokens wanted, the model's context is {self.context_tokens}",
                hint="shorten the prompt or the answer",
            )
        if tokens > self.total_tokens:
            raise RefusedError(
                f"{tokens} KV tokens wanted, this server's whole budget is {self.total_tokens}",
                hint="choose a server with a larger --kv-tokens",
            )
        with self._lock:
            free = self.total_tokens - self._used_tokens
            if tokens > free:
                raise BusyError(
                    f"{tokens} KV tokens wanted, {free} of {self.total_tokens} free",
                    retry_after_s=RETRY_AFTER_S,
                    hint="try again when another session has ended",
                )
            self._used_tokens += tokens
        return KVSlot(tokens, self._layer_count)

    def close(self, slot: KVSlot) -> None:
        """Give a session's tokens and memory back. Idempotent."""
        with self._lock:
            if slot.closed:
                return
            slot.release()
            self._used_tokens -= slot.capacity
