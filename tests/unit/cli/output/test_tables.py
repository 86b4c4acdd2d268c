"""Columns, folded lists and short names."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from swarm.cli.output.tables import LINE_CHARS, folded, legend, short_names

ANNA, BERT = ("12D3KooW" + letter * 36 + "DifferNt" for letter in "ab")
CARL = "12D3KooW" + "a" * 36 + "CarkCarK"


def test_a_peer_id_is_its_ending_unless_two_end_alike() -> None:
    assert short_names([ANNA, CARL, "carl"]) == {ANNA: "DifferNt", CARL: "CarkCarK", "carl": "carl"}
    assert short_names([ANNA, BERT, CARL]) == {ANNA: ANNA, BERT: BERT, CARL: "CarkCarK"}
    assert short_names(["CarkCarK", CARL]) == {"CarkCarK": "CarkCarK", CARL: CARL}
    assert len(legend(short_names([CARL]))) == 1
    assert legend(short_names(["carl"])) == []


@given(st.lists(st.text("abc[]:0", min_size=1, max_size=30), max_size=60), st.sampled_from([" -> ", ", "]))
def test_folding_loses_nothing_and_breaks_no_part(parts: list[str], joint: str) -> None:
    lines = folded(parts, joint, begin="who: ", indent="  ").split("\n")
    assert all(len(line) <= LINE_CHARS for line in lines)
    assert joint.join(parts) == " ".join(line.strip() for line in lines).removeprefix("who:").strip()
