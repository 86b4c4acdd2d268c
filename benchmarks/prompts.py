"""A stand-in for what people ask: openings of small talk and questions about paragraphs of documentation.

Real prompts of real people are nowhere to be had here. Half of these are the first lines of conversations in the
``chatterbot-corpus`` package (749 in English, written by people), half are requests about paragraphs of Python's
language reference as the interpreter carries it. Each half is dealt out by document, so that what a verifier has and
what people ask come from the same kinds of source, and nothing is in both.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from importlib.resources import files
from pydoc_data.topics import topics
from random import Random

import yaml

from swarm.runtime.installed_text import installed_descriptions
from swarm.verification.challenge_prompts import prose, questions_about

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
    """Prompts dealt out to people and to a verifier, in an order of their own."""

    people: tuple[str, ...]
    verifier: tuple[str, ...]


def like_people(seed: int) -> Sides:
    """Both sides have prompts of the same kinds, half of them small talk; no document is on both sides."""
    sides = []
    for side in (0, 1):
        random = Random(f"{seed} {side}")
        talk = [opening for opening in _openings() if _side_of(opening) == side]
        about = [random.choice(ASKS).format(paragraph) for paragraph in _paragraphs(side)]
        count = min(len(talk), len(about))
        mixed = random.sample(talk, count) + random.sample(about, count)
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


def _paragraphs(side: int) -> list[str]:
    """Each once, with the first topic that has it: some stand in several."""
    first: dict[str, str] = {}
    for name, topic in sorted(topics.items()):
        first |= {text: name for text in prose(topic) if text not in first}
    return [text for text, name in first.items() if _side_of(name) == side and len(text) <= MAX_PROMPT_CHARS - 60]


def _side_of(name: str) -> int:
    return hashlib.sha256(name.encode()).digest()[0] % 2
