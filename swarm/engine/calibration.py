"""Hidden states at every boundary of a model, layer by layer: what its calibration is made of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.engine.batch import Batch, RaggedState, Segment
from swarm.engine.head import embed_rows
from swarm.engine.views import Views
from swarm.engine.weights import LayerByLayer, Progress, WeightFiles
from swarm.engine.work import check_token_ids

LABEL = "calibrating"


class BoundaryStates:
    """Runs sequences of tokens through a whole model that never is in memory as a whole.

    Iterated once it gives ``layers + 1`` arrays, float32 ``[rows, hidden_size]``: the rows before the first layer, and
    after each. Rows are those of all ``pieces``, one after the other; each piece is a session of its own, computed in
    float32 in one go. At any time embeddings or one layer have their weights in memory, and rows of one boundary.

    The same machine, libraries, device and number of threads give the same bits. Another number of threads, another
    CPU, GPU or version of torch may add up in another order: about 1e-6 of a row.
    """

    def __init__(
        self, files: WeightFiles, pieces: Sequence[npt.NDArray[np.int64]], *, device: str, progress: Progress
    ) -> None:
        """Fetches the weights to this machine's disk and loads the embeddings. Raises as ``load_span`` does, and
        ``ProtocolViolation`` for an id outside the vocabulary."""
        self._layers = LayerByLayer(files, device=device, progress=progress)
        model = self._layers.model
        for ids in pieces:
            check_token_ids(ids, len(ids), int(model.config.vocab_size))
            if not 0 < len(ids) <= model.context_tokens:
                raise ConfigError(f"a piece of {len(ids)} tokens for a model of {model.context_tokens}")
        self._pieces = pieces
        self._progress = progress
        self.layers = self._layers.layers
        self.hidden_size = int(model.config.hidden_size)
        self.device, self.note = str(self._layers.device), self._layers.note

    def __iter__(self) -> Iterator[npt.NDArray[np.float32]]:
        layers, model = self._layers, self._layers.model
        with torch.inference_mode():
            rows = [embed_rows(model, ids).to(layers.device, torch.float32) for ids in self._pieces]
        layers.drop_embeddings()
        yield _joined(rows)
        self._progress(LABEL, layers.done_bytes, layers.total_bytes)
        views = Views(model)
        for index in range(self.layers):
            with layers.holding(index), torch.inference_mode():
                body = views.body(Span(index, index + 1))
                rows = [_through(body, piece, model.state, self.layers) for piece in rows]
            yield _joined(rows)
            self._progress(LABEL, layers.done_bytes, layers.total_bytes)


def _through(body: nn.Module, rows: torch.Tensor, state: RaggedState, layers: int) -> torch.Tensor:
    """``[n, hidden_size]`` through one layer, as positions 0 to n - 1 of a session."""
    count = len(rows)
    positions = torch.arange(count, device=rows.device)
    state.batch = Batch([Segment(0, count, 0, count, count, [None] * layers)], positions)
    try:
        hidden: torch.Tensor = body(inputs_embeds=rows[None], position_ids=positions[None], use_cache=False)[0][0]
    finally:
        state.batch = None
    return hidden


def _joined(rows: Sequence[torch.Tensor]) -> npt.NDArray[np.float32]:
    return torch.cat(list(rows)).float().cpu().numpy()
