"""The spans an identity held: there after a restart, harmless when broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from swarm.core.spans import Span
from swarm.runtime.remembered import MAX_FILE_BYTES, MAX_MODELS, RememberedSpans


@pytest.fixture
def spans(tmp_path: Path) -> RememberedSpans:
    return RememberedSpans.of(tmp_path / "identity.key")


def test_each_model_has_its_own(spans: RememberedSpans, tmp_path: Path) -> None:
    assert spans.get("a") is None
    spans.put("a", Span(0, 10))
    spans.put("b", Span(5, 7))
    spans.put("a", Span(10, 20))
    again = RememberedSpans.of(tmp_path / "identity.key")
    assert (again.get("a"), again.get("b"), again.get("c")) == (Span(10, 20), Span(5, 7), None)
    assert RememberedSpans.of(tmp_path / "other.key").get("a") is None
    assert [path.name for path in tmp_path.iterdir()] == ["identity.key.spans.json"], "no draft is left"


def test_it_forgets_the_oldest(spans: RememberedSpans) -> None:
    for number in range(MAX_MODELS + 3):
        spans.put(f"m{number}", Span(0, 1 + number))
    assert spans.get("m2") is None
    assert spans.get("m3") == Span(0, 4)
    assert spans.get(f"m{MAX_MODELS + 2}") == Span(0, MAX_MODELS + 3)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"m": 3}', '{"m": [1]}', '{"m": [4, 2]}', '{"m": [-1, 2]}', '{"m": ["0", "2"]}', '{"m": [0.5, 2]}',
     '{"m": null}', "[" * 10_000, " " * MAX_FILE_BYTES + '{"m": [0, 2]}'],
)  # fmt: skip
def test_what_cannot_be_read_is_nothing_and_can_be_replaced(spans: RememberedSpans, text: str) -> None:
    spans.path.write_text(text)
    assert spans.get("m") is None
    spans.put("m", Span(1, 2))
    assert spans.get("m") == Span(1, 2)


def test_a_folder_that_cannot_be_written_costs_the_memory_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spans = RememberedSpans.of(tmp_path / "missing" / "identity.key")
    spans.put("m", Span(0, 1))
    assert spans.get("m") is None
    assert "could not remember" in caplog.text
