"""The last stage with the head: sampling, and the token history that penalties need."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from swarm.core.errors import ProtocolViolation
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import Choice, choose
from swarm.wire.messages import Answer, Result, Step, TokenLogprobs
from swarm.wire.payload import Ids


class TailSampler:
    """Samples one session's tokens from logits and from the ids of the rows that lead to them.

    Used from the compute thread only.
    """

    def __init__(self) -> None:
        self._history = History(answer_start=0)
        self._params = SamplingParams()

    def advance(self, step: Step, ids: Ids | None, logits: npt.NDArray[np.float32] | None) -> list[Choice]:
        """Note the step's rows and sample after each of its last ``want`` rows.

        ``ids``: [rows]; ``logits``: [want, vocab]. The token after row ``i`` stands at position ``keep + i + 1``.
        Raises ``ProtocolViolation`` if the step brought no ids, which the history cannot do without.
        """
        ids = self._with_ids(step.keep, ids)
        if step.answer is not None:
            self._begin(step.answer)
        unwanted = step.rows - step.want
        self._history.extend(int(token) for token in ids[:unwanted])
        choices: list[Choice] = []
        for row, logits_row in enumerate(logits if logits is not None else ()):
            self._history.append(int(ids[unwanted + row]))
            choices.append(choose(logits_row, self._history, step.keep + unwanted + row + 1, self._params))
        return choices

    def recall(self, keep: int, ids: Ids | None) -> None:
        """Note the ids ``[rows]`` of rows that another tail had, after ``keep``. Nothing is sampled; raises alike."""
        self._history.extend(int(token) for token in self._with_ids(keep, ids))

    def _with_ids(self, keep: int, ids: Ids | None) -> Ids:
        if ids is None:
            raise ProtocolViolation("a step for a sampling tail must carry token ids")
        self._history.truncate(keep)
        return ids

    def _begin(self, answer: Answer) -> None:
        """A new answer: other parameters, and the counts of presence and frequency start again."""
        self._history = History(self._history.token_ids, answer_start=answer.start)
        self._params = answer.params


def sampled_result(step: Step, choices: Sequence[Choice]) -> Result:
    """What a tail with the head answers: the tokens it chose after the step's wanted rows."""
    tokens = tuple(choice.token_id for choice in choices)
    logprobs = tuple(TokenLogprobs(choice.logprob, choice.top) for choice in choices if choice.logprob is not None)
    return Result(step.generation, step.epoch, step.seq, step.keep + step.rows, tokens, logprobs)


def hidden_result(step: Step, rows: int) -> Result:
    """What a tail without the head answers, beside the ``rows`` wanted hidden rows as payload."""
    return Result(step.generation, step.epoch, step.seq, step.keep + step.rows, rows=rows)
