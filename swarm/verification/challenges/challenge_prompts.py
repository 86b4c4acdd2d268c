"""A verifier's prompts: made from prose where nobody has real ones, and as long as real ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import chain

from swarm.core.errors import ConfigError
from swarm.verification.challenges.challenge import Table

MIN_PROSE_CHARS = 60
MAX_PROSE_CHARS = 1200
ASKS = (
    "{}\n\nWhat does this mean in simple words?",
    "Summarize the following text in one sentence.\n\n{}",
    "Explain this to a beginner:\n\n{}",
    "{}\n\nGive an example.",
    "Rewrite this so that it is shorter: {}",
    "What is the most important point here?\n\n{}",
    "{}\n\nWhy is that so?",
    "Is there a mistake in this text? {}",
)
"""What people ask about a text that they paste."""


def prose(text: str) -> list[str]:
    """Paragraphs of whole sentences, each on one line; headings, lists, tables, links and code are left out."""
    found = []
    for part in re.split(r"\n[ \t]*\n", text):
        paragraph = " ".join(part.split())
        letters = sum(character.isalpha() or character in " ,." for character in paragraph)
        if (
            MIN_PROSE_CHARS <= len(paragraph) <= MAX_PROSE_CHARS
            and paragraph[0].isupper()
            and paragraph[-1] in ".?!"
            and letters >= 0.9 * len(paragraph)
        ):
            found.append(paragraph)
    return list(dict.fromkeys(found))


def questions_about(paragraphs: Sequence[str]) -> list[str]:
    """A request about each paragraph, in turn one of ``ASKS``."""
    return [ASKS[number % len(ASKS)].format(paragraph) for number, paragraph in enumerate(paragraphs)]


def table_of(prompts: Sequence[str], encode: Callable[[str], Sequence[int]]) -> Table:
    """The table whose challenges are these prompts; ``encode`` gives a text's ids without special ones."""
    encoded = [ids for prompt in prompts if (ids := tuple(encode(prompt)))]
    if len(encoded) < 2:
        raise ConfigError(f"{len(encoded)} prompts to challenge with", hint="give two or more; thousands are better")
    return Table(tuple(chain.from_iterable(encoded)), prompts=tuple(len(ids) for ids in encoded))


def as_long_as(lengths: Sequence[int], prompts: Sequence[str], measure: Callable[[str], int], count: int) -> list[str]:
    """``count`` of the prompts, whose lengths by ``measure`` are spread as ``lengths`` are, as far as they go.

    For each of ``count`` quantiles of ``lengths``, longest first, the nearest prompt that is not taken yet; ties go to
    the shorter, then to the earlier. O(count · prompts). Raises ``ConfigError`` if there are fewer prompts than
    ``count``, or no length.
    """
    if len(prompts) < count or not lengths:
        raise ConfigError(f"{count} prompts of {len(prompts)}, as long as {len(lengths)} others")
    wanted = sorted(lengths)
    left = sorted((measure(prompt), number) for number, prompt in enumerate(prompts))
    chosen = []
    for step in reversed(range(count)):
        target = wanted[int((step + 0.5) / count * len(wanted))]
        place = min(range(len(left)), key=lambda at: (abs(left[at][0] - target), left[at]))
        chosen.append(left.pop(place)[1])
    return [prompts[number] for number in sorted(chosen)]
