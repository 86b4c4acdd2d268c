"""Seeded questions of every kind that a session can be asked: short, long, greedy, sampled, chats, turns taken back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from swarm.client.blocking import Session, SwarmModel
from swarm.client.request import Options, read_options
from swarm.client.results import GenerationResult, ProgressCallback
from swarm.client.tokenizer import Tokenizer
from swarm.core.sampling import SamplingParams

NEW_TOKENS = (16, 48)
SHORT_WORDS = (3, 20)
LONG_WORDS = (150, 400)
SESSION_TOKENS = 2048
TAKEN_BACK_TOKENS = 12
"""At most, from the end of an answer; answers are longer."""
SAMPLED = 0.4
"""Share of answers that are sampled; the others are greedy."""
TO_THE_LIMIT = 0.7
"""Share of answers that go on past the model's own end."""
TOPICS = ("the sea", "a mill", "old maps", "bread", "prime numbers", "snow", "a lighthouse", "trains", "bees")
TEXT = (
    "the river rises in the hills and crosses three valleys before it reaches the sea seven ships came in with wheat "
    "salt and cloth the harbour master weighed each of them and said that the wind blew from north and west"
)


@dataclass(frozen=True, slots=True)
class Answered:
    """What was asked, as tokens, and what came: all that is needed to say whether it is right."""

    kind: str
    context: tuple[int, ...]
    params: SamplingParams
    max_new_tokens: int
    ignore_eos: bool
    result: GenerationResult


Generate = Callable[[Options], GenerationResult]
Note = Callable[[Answered], None]


class Asker:
    """Asks a swarm one question after the other, which ones is fixed by ``seed``. For one thread.

    ``note`` is told of every answer. What a call raises goes on to the caller; the next question is another one.
    """

    def __init__(
        self, model: SwarmModel, tokenizer: Tokenizer, seed: int, *, note: Note, progress: ProgressCallback
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._random = Random(seed)
        self._words = TEXT.split()
        self._note = note
        self._progress = progress

    def ask(self) -> None:
        """The next question, to the end of its last turn."""
        self._random.choice((self._short, self._short, self._long, self._chat, self._taken_back))()

    def _short(self) -> None:
        self._one("short", SHORT_WORDS)

    def _long(self) -> None:
        self._one("long", LONG_WORDS)

    def _one(self, kind: str, words: tuple[int, int]) -> None:
        ids = self._tokenizer.encode(self._text(words))
        options = Options(input_ids=ids, **self._options())
        self._answer(kind, ids, options, lambda asked: self._model.generate(progress=self._progress, **asked))

    def _chat(self) -> None:
        """The conversation as messages, each time the whole of it."""
        messages: list[dict[str, str]] = []
        with self._model.session(max_tokens=SESSION_TOKENS) as session:
            for turn in range(self._random.randint(2, 3)):
                topic = self._random.choice(TOPICS)
                asked = f"Tell me about {topic}." if turn == 0 else f"And what has that to do with {topic}?"
                messages.append({"role": "user", "content": asked})
                options = Options(messages=tuple(messages), **self._options())
                result = self._answer("chat", self._tokenizer.chat(messages), options, self._in(session))
                messages.append({"role": "assistant", "content": result.text})

    def _taken_back(self) -> None:
        """A session goes on, then goes back into its last answer and on from there."""
        with self._model.session(max_tokens=SESSION_TOKENS) as session:
            for turn in range(3):
                if turn:
                    session.truncate(max(session.position - self._random.randint(0, TAKEN_BACK_TOKENS), 0))
                ids = self._tokenizer.encode(self._text(SHORT_WORDS), add_special_tokens=turn == 0)
                options = Options(input_ids=ids, **self._options())
                self._answer("taken back", [*session.token_ids, *ids], options, self._in(session))

    def _in(self, session: Session) -> Generate:
        return lambda asked: session.generate(progress=self._progress, **asked)

    def _answer(self, kind: str, context: Sequence[int], options: Options, generate: Generate) -> GenerationResult:
        result = generate(options)
        request = read_options(Options({**options, "seed": result.seed}))
        asked = options["max_new_tokens"], options["ignore_eos"]
        self._note(Answered(kind, tuple(context), request.params, *asked, result))
        return result

    def _options(self) -> Options:
        options = Options(
            max_new_tokens=self._random.randint(*NEW_TOKENS), ignore_eos=self._random.random() < TO_THE_LIMIT
        )
        if self._random.random() < SAMPLED:
            seed = self._random.getrandbits(63)
            options |= Options(temperature=0.9, top_k=50, top_p=0.95, repetition_penalty=1.1, seed=seed)
        return options

    def _text(self, words: tuple[int, int]) -> str:
        return " ".join(self._random.choices(self._words, k=self._random.randint(*words))).capitalize()
