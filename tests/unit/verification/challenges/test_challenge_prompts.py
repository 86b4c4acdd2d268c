"""A verifier's prompts: made from prose, chosen by length, and numbered."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError
from swarm.verification.challenges.challenge_prompts import ASKS, as_long_as, prose, questions_about, table_of

READ_ME = """# A heading

This is a paragraph of two sentences that somebody wrote. It goes on
over the end of a line, as paragraphs do.

- a list. It has a point. It has another point. It has a third point, which is long enough to be a paragraph.

    code = {}; code["a"] = [1, 2, 3]; print(code["a"][0], code["a"][1], file=sys.stderr); sys.exit(code["a"][2])

Too short.
"""


def test_prose_is_whole_sentences() -> None:
    wanted = (
        "This is a paragraph of two sentences that somebody wrote. It goes on over the end of a line, as paragraphs do."
    )
    assert prose(READ_ME) == [wanted]
    asked = questions_about([wanted] * (len(ASKS) + 1))
    assert asked[0] == asked[-1]
    assert len(set(asked)) == len(ASKS)
    assert all(wanted in question for question in asked)


def test_a_table_of_prompts() -> None:
    table = table_of(["ab", "", "cde"], lambda text: [ord(letter) for letter in text])
    assert (table.ids, table.prompts) == ((97, 98, 99, 100, 101), (2, 3))
    assert [table.prompt(number) for number in range(2)] == [(97, 98), (99, 100, 101)]
    with pytest.raises(ConfigError, match="1 prompts"):
        table_of(["ab", ""], lambda text: [ord(letter) for letter in text])


def test_lengths_follow_those_asked_for() -> None:
    prompts = ["x" * length for length in range(1, 101)]
    chosen = as_long_as([10, 10, 10, 50], prompts, len, 8)
    assert sorted(map(len, chosen)) == [7, 8, 9, 10, 11, 12, 49, 50]
    for lengths, count in (([], 1), ([1], 101)):
        with pytest.raises(ConfigError):
            as_long_as(lengths, prompts, len, count)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
    st.lists(st.text("ab", max_size=60), min_size=1, max_size=30, unique=True),
    st.data(),
)
def test_none_is_taken_twice(lengths: list[int], prompts: list[str], data: st.DataObject) -> None:
    count = data.draw(st.integers(0, len(prompts)))
    chosen = as_long_as(lengths, prompts, len, count)
    assert len(set(chosen)) == len(chosen) == count
    assert set(chosen) <= set(prompts)
