"""Declared numerics."""

from __future__ import annotations

import msgspec
import pytest

from swarm.core.errors import ConfigError
from swarm.core.numerics import DTYPE_BYTES, QUANTIZATIONS, Numerics


@pytest.mark.parametrize(
    ("numerics", "text"),
    [
        (Numerics("float32"), "float32"),
        (Numerics("bfloat16", "int8"), "bfloat16+int8"),
        (Numerics("bfloat16", "none", "bfloat16"), "bfloat16"),
        (Numerics("float32", "nf4", "float16"), "float32+nf4+kv-float16"),
    ],
)
def test_the_name_of_a_class(numerics: Numerics, text: str) -> None:
    assert str(numerics) == text
    assert numerics.known


def test_every_class_has_its_own_name() -> None:
    every = [
        Numerics(dtype, quantization, kv)
        for dtype in DTYPE_BYTES
        for quantization in QUANTIZATIONS
        for kv in DTYPE_BYTES
    ]
    assert len({str(one) for one in every}) == len(every) == 27
    assert all(str(Numerics.parse(str(one))) == str(one) for one in every)


@pytest.mark.parametrize(
    "text", ["", "f32", "float32+int3", "float32+kv-fp8", "float32+int8+nf4", "kv-float32", "+int8"]
)
def test_what_names_no_class_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="unknown numerics"):
        Numerics.parse(text)


@pytest.mark.parametrize("bad", [Numerics("float64"), Numerics("float32", "int3"), Numerics("float32", "none", "fp8")])
def test_an_unknown_part_makes_the_class_unknown(bad: Numerics) -> None:
    assert not bad.known


def test_it_travels_and_takes_fields_of_a_later_version() -> None:
    data = msgspec.msgpack.encode(["bfloat16", "nf4", "", "a later field"])
    assert msgspec.msgpack.decode(data, type=Numerics) == Numerics("bfloat16", "nf4")
