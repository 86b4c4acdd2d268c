"""What arithmetic a server declares: chains do not mix classes unless asked to."""

from __future__ import annotations

import msgspec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Wire and compute dtypes, with bytes per element."""

QUANTIZATIONS = ("none", "int8", "nf4")


class Numerics(msgspec.Struct, frozen=True, array_like=True):
    """Declared numerics of a span: ``dtype`` of activations, ``quantization`` of weights, dtype of the KV cache."""

    dtype: str
    quantization: str = "none"
    kv_dtype: str = ""

    def __str__(self) -> str:
        kv = self.kv_dtype or self.dtype
        parts = [self.dtype] + ([self.quantization] if self.quantization != "none" else [])
        return "+".join(parts + ([f"kv-{kv}"] if kv != self.dtype else []))

    @property
    def known(self) -> bool:
        """True if every part names something this version understands."""
        return (
            self.dtype in DTYPE_BYTES
            and self.quantization in QUANTIZATIONS
            and (self.kv_dtype == "" or self.kv_dtype in DTYPE_BYTES)
        )
