"""Run a span: many sessions' rows through one packed forward."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from swarm.core.errors import ConfigError
from swarm.core.numerics import DTYPE_BYTES
from swarm.core.spans import Span
from swarm.engine.batch import Batch, Segment
from swarm.engine.head import embed_rows, head_logits
from swarm.engine.kv import KVPool, KVSlot
from swarm.engine.linear import FULL_SPEED_ROWS, speed_up_linears
from swarm.engine.quantize import held_bytes
from swarm.engine.rows import rows_from_bytes, rows_to_bytes
from swarm.engine.span_model import SpanModel
from swarm.engine.views import Views
from swarm.engine.work import Output, SpanInfo, Work, check_batch


@dataclass(frozen=True)
class EngineOptions:
    """``kv_tokens`` is the KV budget over all sessions; ``dtype`` that of activations, KV and wire; ``quantization``
    what was done to the weights. ``pack`` lays CPU weights out for few rows, in place of the model's own."""

    kv_tokens: int
    dtype: str = "float32"
    quantization: str = "none"
    pack: bool = True


class SpanEngine:
    """A span whose weights are loaded, its KV budget, and the one forward that serves all sessions.

    ``open``, ``close`` and ``free_tokens`` may be used from any thread; ``run`` from one thread at a time.
    """

    def __init__(self, model: SpanModel, options: EngineOptions) -> None:
        if model.span is None or model.body is None:
            raise ConfigError("a span engine needs layers")
        if options.dtype not in DTYPE_BYTES:
            raise ConfigError(f"dtype {options.dtype!r}", hint=f"choose one of {', '.join(DTYPE_BYTES)}")
        self._model = model
        self._views = Views(model)
        self._dtype: torch.dtype = getattr(torch, options.dtype)
        self._device = next(model.body.parameters()).device
        self.info = SpanInfo(
            span=model.span,
            layer_count=int(model.config.num_hidden_layers),
            hidden_size=int(model.config.hidden_size),
            vocab_size=int(model.config.vocab_size),
            context_tokens=model.context_tokens,
            dtype=options.dtype,
            quantization=options.quantization,
            embeddings=model.embed is not None,
            head=model.head is not None,
            device=str(self._device),
            memory_bytes=held_bytes(model),
            kv_bytes_per_token=model.kv_bytes_per_token(self._dtype),
        )
        packed = speed_up_linears(model.body, pack=True) if options.pack else 0
        if options.pack and model.head is not None:
            speed_up_linears(model.head, pack=False)
        self._least_rows = FULL_SPEED_ROWS if packed and self._dtype == torch.float32 else 1
        self._pool = KVPool(
            total_tokens=options.kv_tokens, context_tokens=self.info.context_tokens, layer_count=len(model.span)
        )

    @property
    def free_tokens(self) -> int:
        """KV tokens no open session has reserved."""
        return self._pool.free_tokens

    def open(self, tokens: int) -> KVSlot:
        """Reserve KV for one session; ``BusyError`` if it does not fit now, ``RefusedError`` if it never can."""
        return self._pool.open(tokens)

    def close(self, slot: KVSlot) -> None:
        """Give a session's KV back, even while ``run`` works on it (its rows are then lost). Idempotent."""
        self._pool.close(slot)

    def unload(self) -> None:
        """Drop the weights, for another span to take their room; only with no session open, and for good."""
        del self._model, self._views
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def run(self, batch: Sequence[Work]) -> list[Output]:
        """Truncate every work's slot to its ``keep``, append its rows, and return the wanted ones, in order.

        Works over the same layers share one packed forward.

        Raises ``ProtocolViolation`` for an impossible work before anything is computed or truncated. Should the
        forward itself fail (out of memory, say), every slot of the batch is left truncated to its ``keep``.
        """
        check_batch(batch, self.info)
        groups: dict[Span, list[int]] = {}
        for index, work in enumerate(batch):
            groups.setdefault(work.span or self.info.span, []).append(index)
        outputs: dict[int, Output] = {}
        for span, members in groups.items():
            outputs |= zip(members, self._forward(span, [batch[index] for index in members]), strict=True)
        return [outputs[index] for index in range(len(batch))]

    def _forward(self, span: Span, batch: Sequence[Work]) -> list[Output]:
        """One packed forward of sessions that all run the layers of ``span``."""
        body = self._views.body(span)
        for work in batch:
            work.slot.length = work.keep
        with torch.inference_mode():
            packed = self._pack(batch)
            inputs = self._inputs(batch, packed.padding)
            self._model.state.batch = packed
            try:
                hidden = body(
                    inputs_embeds=inputs[None],
                    position_ids=packed.positions[None],
                    use_cache=False,
                )[0][0]
            finally:
                self._model.state.batch = None
            for work in batch:
                work.slot.length = work.keep + work.rows
                if work.slot.closed:  # meanwhile, and perhaps after its buffers were taken anew
                    work.slot.release()
            return self._outputs(batch, packed, inputs, hidden)

    def _pack(self, batch: Sequence[Work]) -> Batch:
        segments, start = [], 0
        for work in batch:
            end = start + work.rows
            horizon = work.horizon or work.keep + work.rows
            segments.append(Segment(start, end, work.keep, horizon, work.slot.capacity, work.slot.layers()))
            start = end
        padding = max(0, self._least_rows - start)
        places = [position for segment in segments for position in range(segment.past, segment.length)]
        places += places[:1] * padding
        return Batch(segments, torch.tensor(places, device=self._device), padding)

    def _inputs(self, batch: Sequence[Work], padding: int) -> torch.Tensor:
        """Packed input rows ``[T, hidden_size]``, the first one repeated for the padding."""
        parts = []
        for work in batch:
            if work.token_ids is not None:
                parts.append(embed_rows(self._model, work.token_ids).to(self._device, self._dtype))
            elif work.hidden is not None:
                parts.append(rows_from_bytes(work.hidden, work.rows, self._dtype).to(self._device))
        if padding:
            parts.append(parts[0][:1].expand(padding, -1))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _outputs(
        self, batch: Sequence[Work], packed: Batch, inputs: torch.Tensor, hidden: torch.Tensor
    ) -> list[Output]:
        """``inputs``, ``hidden`` ``[T, hidden_size]``; the head runs once over all rows whose logits are wanted."""
        wanted = [hidden[s.end - w.want : s.end] for s, w in zip(packed.segments, batch, strict=True)]
        scored = [rows for rows, work in zip(wanted, batch, strict=True) if work.logits and work.want]
        logits = head_logits(self._model, torch.cat(scored)) if scored else None
        outputs, row = [], 0
        for segment, rows, work in zip(packed.segments, wanted, batch, strict=True):
            output = Output(None, None)
            if work.logits and work.want and logits is not None:
                output.logits = logits[row : row + work.want]
                row += work.want
            if work.record:
                output.hidden = rows_to_bytes(hidden[segment.start : segment.end])
                if work.token_ids is not None:
                    output.embedded = rows_to_bytes(inputs[segment.start : segment.end])
            elif output.logits is None:
                output.hidden = rows_to_bytes(rows)
            outputs.append(output)
        return outputs
