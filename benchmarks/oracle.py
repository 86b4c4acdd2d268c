"""What transformers would have answered: one forward over question and answer says it for every token of the answer.

At each place the token that follows is chosen from transformers' logits, by the rule for the question's sampling. If it
is the answer's own at every place, then by induction the answer is the one that transformers' generate gives. A forward
over all tokens and one token after the other differ in the last bits of their sums, so an answer that seems wrong is
judged again token by token, as generate goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessor, LogitsProcessorList

from benchmarks.questions import Answered
from benchmarks.setup import Reference
from swarm.core.sampling import SamplingParams
from swarm.decoding.history import History
from swarm.decoding.sampling import choose
from swarm.models.files import ModelFiles


class Oracle(Reference):
    """transformers in float32, one thread, as the judge of answers. About 200 tokens a second on a core."""

    def __init__(self, files: ModelFiles) -> None:
        super().__init__(files)
        self._eos: Collection[int] = files.eos_token_ids
        self._model.generation_config.eos_token_id = None

    def judge(self, answers: Iterable[Answered]) -> list[str]:
        """A line for each answer that is wrong."""
        verdicts = [(answered, self.verdict(answered)) for answered in answers]
        return [f"{a.kind}, {len(a.context)} tokens asked, {a.params}: {said}" for a, said in verdicts if said]

    def verdict(self, answered: Answered) -> str:
        """What is wrong with the answer, in words; empty if nothing is."""
        result, tokens = answered.result, answered.result.token_ids
        if not result.exact:
            return "it says itself that it is not exact"
        if result.prompt_tokens != len(answered.context):
            return f"the question has {len(answered.context)} tokens, not {result.prompt_tokens}"
        ended = not answered.ignore_eos and bool(tokens) and tokens[-1] in self._eos
        if result.finish_reason != ("stop" if ended else "length"):
            return f"{len(tokens)} of {answered.max_new_tokens} tokens, and it says {result.finish_reason!r}"
        if not ended and len(tokens) != answered.max_new_tokens:
            return f"{len(tokens)} tokens instead of {answered.max_new_tokens}"
        if self._at_once(answered.context, tokens, answered.params) == tokens:
            return ""
        wanted = self.continuation(answered.context, len(tokens), answered.params)
        if wanted == tokens:
            return ""
        place = next(index for index, (a, b) in enumerate(zip(wanted, tokens, strict=True)) if a != b)
        return f"token {place} of {len(tokens)} is {tokens[place]}, transformers says {wanted[place]}"

    @torch.inference_mode()
    def _at_once(self, context: Sequence[int], tokens: Sequence[int], params: SamplingParams) -> tuple[int, ...]:
        ids = torch.tensor([[*context, *tokens[:-1]]])
        logits = _numpy(self._model(ids, logits_to_keep=len(tokens)).logits[0])
        history = History(context, answer_start=len(context))
        chosen = []
        for row, token in zip(logits, tokens, strict=True):
            chosen.append(choose(row, history, len(history), params).token_id)
            history.append(token)
        return tuple(chosen)

    def continuation(self, context: Sequence[int], count: int, params: SamplingParams) -> tuple[int, ...]:
        """The ``count`` tokens that follow ``context``, by transformers' generate."""
        ids = torch.tensor([list(context)])
        whole = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=count,
            do_sample=False,
            pad_token_id=0,
            logits_processor=LogitsProcessorList([_Chooser(len(context), params)]),
        )
        return tuple(whole[0].tolist()[len(context) :])


class _Chooser(LogitsProcessor):  # type: ignore[misc]  # transformers is not typed
    """Leaves generate the one token that the rule for the question's sampling takes."""

    def __init__(self, answer_start: int, params: SamplingParams) -> None:
        self._answer_start = answer_start
        self._params = params

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        history = History(input_ids[0].tolist(), answer_start=self._answer_start)
        token = choose(_numpy(scores[0]), history, len(history), self._params).token_id
        only = torch.full_like(scores, float("-inf"))
        only[0, token] = 0.0
        return only


def _numpy(logits: Any) -> NDArray[np.float32]:
    array: NDArray[np.float32] = logits.float().numpy()
    return array
