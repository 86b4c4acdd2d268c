"""What a notebook shows of an answer: readable, and nothing in it is markup but ours."""

from __future__ import annotations

import dataclasses
from html.parser import HTMLParser

import pytest

from swarm.client.results import ChainStage, GenerationResult, Heal

STAGES = (ChainStage("12D3KooWabcdefgh", 0, 3), ChainStage("12D3KooWijklmnop", 3, 5, "<img src=x onerror=alert(1)>"))


def result(text: str, **changes: object) -> GenerationResult:
    fields = {"heals": (), "exact": True, "chain": STAGES} | changes
    return GenerationResult(text, (5, 6, 7), "stop", 4, 0.25, 12.34, seed=1, **fields)  # type: ignore[arg-type]


class Reader(HTMLParser):
    """The elements of a piece of HTML, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", ["plain", "<script>alert(1)</script>", "</div><b>x", "a & b\n\n  c", "\" onload='x"])
def test_text_and_names_are_escaped(text: str) -> None:
    read = Reader(result(text)._repr_html_())
    assert read.elements == ["div", "div"]
    assert read.text.startswith(text)
    assert "4 + 3 tokens (stop)" in read.text
    assert "0.25 s" in read.text
    assert "12.3 tokens/s" in read.text
    assert "<img src=x onerror=alert(1)>[3:5]" in read.text


def test_printed_it_is_one_short_line_and_no_field_is_lost() -> None:
    heal = Heal(STAGES[:1], (), 0.1, 5, "server abc is alive, but slow")
    line = str(result("two\nlines " + "x" * 1000, heals=(heal,)))
    assert line.startswith(r"<GenerationResult 'two\nlines xxx")
    assert "…': stop, 3 tokens, 12.3 tok/s, abcdefgh[0:3] -> " in line
    assert line.endswith(", healed: server abc is alive, but slow>")
    assert len(line) < 400
    assert "healed" not in str(result("x"))
    assert dataclasses.asdict(result("x" * 1000))["text"] == "x" * 1000


def test_what_was_out_of_the_ordinary_is_told() -> None:
    heal = Heal(STAGES[:1], (), 0.1, 5, "")
    assert "healed" not in result("x")._repr_html_()
    assert "exact" not in result("x")._repr_html_()
    told = result("x", heals=(heal, heal), exact=False)._repr_html_()
    assert "healed 2 times" in told
    assert "not exact" in told
