"""What arithmetic a server declares: chains do not mix classes unless asked to."""

from __future__ import annotations

import msgspec

from swarm.core.errors import ConfigError

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

    @classmethod
    def parse(cls, text: str) -> Numerics:
        """Read what ``str`` writes, like ``bfloat16+int8+kv-float16``; raise ``ConfigError`` if it is not known."""
        dtype, *more = text.split("+")
        kv_dtype = more.pop().removeprefix("kv-") if more and more[-1].startswith("kv-") else ""
        numerics = cls(dtype, more.pop() if more else "none", kv_dtype)
        if more or not numerics.known:
            raise ConfigError(
                f"unknown numerics {text[:80]!r}",
                hint=f"write {' or '.join(DTYPE_BYTES)}, then perhaps +int8 or +nf4, then perhaps +kv-DTYPE",
            )
        return numerics
