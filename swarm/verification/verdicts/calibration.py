"""What a model's hidden states look like: the scale of every span's update, and the size of rows at every boundary."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from swarm.core.errors import ConfigError, MisuseError, ModelError
from swarm.core.ids import ModelId
from swarm.core.limits import MAX_CONTEXT_TOKENS, MAX_LAYERS
from swarm.core.spans import Span

Floats = npt.NDArray[np.floating]
Bools = npt.NDArray[np.bool_]

RMS_MARGIN = 2.0
"""How far a row's rms may lie outside what the calibration's text showed."""
SCALE_FLOOR = 1e-3
"""Of a span's root mean square scale: no channel's scale is less, or one that never moves would outweigh all others."""
MIN_CALIBRATION_TOKENS = 64
MAX_HIDDEN = 65536
MAX_CALIBRATION_BYTES = 2 * 1024**3
MAX_TEXT_NAME_CHARS = 200

_MAGIC = b"swarm/calibration/1\0"
_CHUNK_CHANNELS = 64


class CalibrationHeader(msgspec.Struct, frozen=True, array_like=True):
    """Of which ``model``, and on what: ``tokens`` rows counted of the text that ``text`` names by seed or digest."""

    model: str
    layers: int
    hidden: int
    tokens: int
    text: str


@dataclass(frozen=True, eq=False, slots=True)
class Calibration:
    """Scales of every span of one model. One file for all of its quantizations; its ``digest`` stands in receipts.

    ``scales`` holds bfloat16 bits, shape ``[layers · (layers + 1) / 2, hidden]``: the standard deviation of each
    channel's update for every span [a, b), ordered by a, then b. ``low_rms`` and ``high_rms``, float32 ``[layers +
    1]``, are the extremes of a row's rms before each layer and after the last. So a file takes ``layers · (layers +
    1) · hidden`` bytes and a little: 0.54 MB for SmolLM2-135M (30 layers, 576 channels), 53 MB for 80 layers of 8192
    channels, where the hidden states themselves (512 tokens, float32) would take 37 MB and 1.4 GB. The sums that the
    scales come from would allow the same, but only in float64. A scale rounded to 8 bits is off by 0.4 % at most, the
    same for all.
    """

    header: CalibrationHeader
    scales: npt.NDArray[np.uint16]
    low_rms: npt.NDArray[np.float32]
    high_rms: npt.NDArray[np.float32]

    def scale(self, span: Span) -> Floats:
        """D of ``span``: float32 ``[hidden]``, all positive. Raises ``ConfigError`` for a span outside the model."""
        span.within(self.header.layers)
        bits = self.scales[_row(span, self.header.layers)]
        return np.asarray((bits.astype(np.uint32) << 16).view(np.float32))

    def in_range(self, boundary: int, rows: Floats) -> Bools:
        """Which of ``rows`` ``[n, hidden]`` could be a model's before layer ``boundary``, by their rms; not NaN's."""
        rms = row_rms(rows)
        low, high = float(self.low_rms[boundary]) / RMS_MARGIN, float(self.high_rms[boundary]) * RMS_MARGIN
        return np.asarray((rms >= low) & (rms <= high))

    def to_bytes(self) -> bytes:
        """The canonical bytes: tag, header's length and msgpack, then the three arrays, little-endian."""
        header = msgspec.msgpack.encode(self.header)
        arrays = (self.scales.astype("<u2"), self.low_rms.astype("<f4"), self.high_rms.astype("<f4"))
        return b"".join([_MAGIC, len(header).to_bytes(4, "big"), header, *(array.tobytes() for array in arrays)])

    def digest(self) -> bytes:
        """SHA-256 of the canonical bytes, whose tag keeps it apart from every other hash."""
        return hashlib.sha256(self.to_bytes()).digest()

    @classmethod
    def from_bytes(cls, data: bytes) -> Calibration:
        """Read canonical bytes; ``ModelError`` if they are damaged, of another version, or hold what cannot be."""
        start = len(_MAGIC) + 4
        if len(data) > MAX_CALIBRATION_BYTES or not data.startswith(_MAGIC) or len(data) < start:
            raise _damaged("it does not begin as one, or is too large")
        end = start + int.from_bytes(data[len(_MAGIC) : start], "big")
        try:
            header = msgspec.msgpack.decode(data[start:end], type=CalibrationHeader)
        except msgspec.MsgspecError as error:
            raise _damaged("its header cannot be read") from error
        _check_header(header)
        pairs, ends = header.layers * (header.layers + 1) // 2, header.layers + 1
        if len(data) - end != 2 * pairs * header.hidden + 8 * ends:
            raise _damaged("it is cut short, or too long")
        scales = np.frombuffer(data, "<u2", pairs * header.hidden, end).reshape(pairs, header.hidden)
        low, high = np.frombuffer(data, "<f4", 2 * ends, end + scales.nbytes).reshape(2, ends)
        found = cls(header, scales.astype(np.uint16), low.astype(np.float32), high.astype(np.float32))
        found.check()
        if found.to_bytes() != data:
            raise _damaged("its bytes are not in canonical form")
        return found

    def check(self) -> None:
        """Raise ``ModelError`` unless scales are positive, finite numbers and every range of rms holds something."""
        # The sign and the exponent of a bfloat16 are its upper nine bits: as whole numbers positive ones are in order.
        if not ((self.scales > 0) & (self.scales < 0x7F80)).all():
            raise _damaged("a scale is zero, negative or not finite")
        good = (self.low_rms >= 0) & (self.low_rms <= self.high_rms) & np.isfinite(self.high_rms)
        if not good.all():
            raise _damaged("a range of rms is empty or not finite")


def calibrate(model: ModelId, states: Floats, counted: Bools, *, text: str) -> Calibration:
    """The calibration of ``model`` from its hidden states on a text.

    ``states`` ``[layers + 1, n, hidden]``: every row before the first layer, and after each; it may be a memory map
    that was filled layer by layer, for it is read a few channels at a time. ``counted`` ``[n]`` leaves out the sink
    positions. A scale is sqrt(Var h_b + Var h_a - 2 Cov(h_a, h_b)) in float64, so its relative error is the text's: 1
    / sqrt(2n), 3 % for 512 independent rows. O(layers² · n · hidden). Raises ``MisuseError`` for shapes that do not
    fit, fewer than ``MIN_CALIBRATION_TOKENS`` counted rows, or states that are not finite.
    """
    if states.ndim != 3 or counted.shape != states.shape[1:2]:
        raise MisuseError(f"states of shape {states.shape} do not fit {counted.shape} positions")
    header = CalibrationHeader(str(model), states.shape[0] - 1, states.shape[2], int(counted.sum()), text)
    if header.tokens < MIN_CALIBRATION_TOKENS:
        raise MisuseError(f"{header.tokens} rows are too few", hint=f"calibrate on {MIN_CALIBRATION_TOKENS} or more")
    rms = np.stack([row_rms(state[counted]) for state in states])
    if not np.isfinite(rms).all():
        raise MisuseError("the hidden states are not finite", hint="calibrate in float32")
    scales = np.concatenate(
        [
            _scales(np.asarray(states[:, counted, first : first + _CHUNK_CHANNELS], np.float64))
            for first in range(0, header.hidden, _CHUNK_CHANNELS)
        ],
        axis=1,
    )
    floor = SCALE_FLOOR * np.sqrt(np.mean(scales**2, axis=1, keepdims=True))
    bits = _bfloat16(np.maximum(np.maximum(scales, floor), np.finfo(np.float32).tiny))
    low, high = rms.min(axis=1).astype(np.float32), rms.max(axis=1).astype(np.float32)
    found = Calibration(header, bits, low, high)
    _check_header(header)
    found.check()
    return found


def row_rms(rows: Floats) -> Floats:
    """Root mean square of each of ``rows`` ``[n, hidden]``; float64 ``[n]``."""
    return np.asarray(np.sqrt(np.mean(np.square(np.asarray(rows, np.float64)), axis=1)))


def _scales(states: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Standard deviations of h_b - h_a for all a < b; ``states`` ``[layers + 1, n, channels]`` of a few channels."""
    centred = states - states.mean(axis=1, keepdims=True)
    by_channel = centred.transpose(2, 0, 1)  # [channels, layers + 1, n]
    covariance = by_channel @ by_channel.transpose(0, 2, 1) / states.shape[1]
    first, last = np.triu_indices(len(states), k=1)
    variance = covariance[:, first, first] + covariance[:, last, last] - 2 * covariance[:, first, last]
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)).T)


def _bfloat16(values: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """Bits of the nearest bfloat16, ties to even."""
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def _row(span: Span, layers: int) -> int:
    """Where ``span`` stands among the pairs a < b, in the order of ``numpy.triu_indices``."""
    return span.start * layers - span.start * (span.start - 1) // 2 + len(span) - 1


def _check_header(header: CalibrationHeader) -> None:
    sizes = (header.layers, MAX_LAYERS), (header.hidden, MAX_HIDDEN), (header.tokens, MAX_CONTEXT_TOKENS)
    if not all(1 <= size <= most for size, most in sizes) or len(header.text) > MAX_TEXT_NAME_CHARS:
        raise _damaged("its header says something absurd")
    try:
        ModelId.parse(header.model)
    except ConfigError as error:
        raise _damaged("it names no model") from error


def _damaged(why: str) -> ModelError:
    return ModelError(f"not a calibration: {why}", hint="fetch it again, or make one with `swarm calibrate`")
