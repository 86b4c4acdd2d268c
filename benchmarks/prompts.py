"""A stand-in for what people ask: openings of small talk and questions about paragraphs of documentation.

Real prompts of real people are nowhere to be had here. Half of these are the first lines of conversations in the
``chatterbot-corpus`` package (749 in English, written by people), half are requests about paragraphs of Python's
language reference as the interpreter carries it. No opening and no paragraph is on two sides.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pydoc_data.topics import topics
from random import Random

import yaml

from swarm.runtime.installed_text import installed_descriptions
from swarm.verification.challenges.challenge_prompts import prose, questions_about

MAX_PROMPT_CHARS = 500
"""A short prompt takes a second of one core, a long one many."""
ASKS = (
    "Explain the following to me: {}",
    "{}\n\nCan you say that in your own words?",
    "I do not understand this part of the manual. {} What is it about?",
    "Write a short summary.\n\n{}",
    "{} Please give an example.",
    "Translate this into plain English: {}",
)


@dataclass(frozen=True, slots=True)
class Sides:
    """Prompts dealt out, in an order of their own: to people, and to a verifier either ``alike`` or of ``elsewhere``.

    What is ``alike`` is dealt prompt by prompt, as if the verifier had a share of what people send. What is from
    ``elsewhere`` is of the same kinds, but about pages of the manual that nobody else has.
    """

    people: tuple[str, ...]
    alike: tuple[str, ...]
    elsewhere: tuple[str, ...]


def dealt(seed: int) -> Sides:
    """All three sides; half of each is small talk."""
    paragraphs: list[list[str]] = [[], [], []]
    for text, page in _paragraphs().items():
        paragraphs[2 if _number(page) % 3 == 2 else _number(text) % 2].append(text)
    talk = [[opening for opening in _openings() if _number(opening) % 3 == side] for side in range(3)]
    sides = []
    for side in range(3):
        random = Random(f"{seed} {side}")
        about = [random.choice(ASKS).format(paragraph) for paragraph in paragraphs[side]]
        count = min(len(talk[side]), len(about))
        mixed = random.sample(talk[side], count) + random.sample(about, count)
        random.shuffle(mixed)
        sides.append(tuple(mixed))
    return Sides(*sides)


def of_packages(seed: int) -> tuple[str, ...]:
    """What a verifier has that was given no text: requests about what installed packages say of themselves."""
    paragraphs = [paragraph for _, text in installed_descriptions() for paragraph in prose(text)]
    mixed = [prompt for prompt in questions_about(paragraphs) if len(prompt) <= MAX_PROMPT_CHARS]
    Random(seed).shuffle(mixed)
    return tuple(mixed)


def _openings() -> list[str]:
    found: dict[str, None] = {}
    for path in sorted((files("chatterbot_corpus") / "data" / "english").iterdir(), key=lambda path: path.name):
        if path.name.endswith(".yml"):
            said = yaml.safe_load(path.read_text(encoding="utf-8"))["conversations"]
            found |= {str(conversation[0]).strip(): None for conversation in said}
    return [opening for opening in found if 8 <= len(opening) <= MAX_PROMPT_CHARS]


def _paragraphs() -> dict[str, str]:
    """Each with the first page that has it: some are on several."""
    first: dict[str, str] = {}
    for page, text in sorted(topics.items()):
        first |= {paragraph: page for paragraph in prose(text) if paragraph not in first}
    return {text: page for text, page in first.items() if len(text) <= MAX_PROMPT_CHARS - 60}


def _number(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
