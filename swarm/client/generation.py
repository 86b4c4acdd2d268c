"""The loop that turns a prompt into an answer over one conversation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swarm.client.conversation import Conversation
from swarm.client.request import Request
from swarm.client.results import GenerationResult, Progress, ProgressCallback, TokenLogprob
from swarm.client.tokenizer import Tokenizer
from swarm.core.clock import Clock
from swarm.core.errors import GenerationInterruptedError, SwarmError
from swarm.decoding.sampling import Choice
from swarm.decoding.stopping import FinishReason, StopWatch
from swarm.runtime.tracing import span

Emit = Callable[[str], None]


@dataclass(slots=True)
class Answer:
    """An answer as it grows."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    text: str = ""


@dataclass(frozen=True, slots=True)
class Generation:
    """One answer to compute: everything but the chain it runs on."""

    request: Request
    max_new_tokens: int
    tokenizer: Tokenizer
    eos_token_ids: tuple[int, ...]
    clock: Clock
    began_s: float
    emit: Emit
    progress: ProgressCallback

    async def run(self, conversation: Conversation, prompt_ids: Sequence[int]) -> GenerationResult:
        """Feed the prompt, then one token a step until the model, a stop string or the limit ends the answer.

        Raises ``GenerationInterruptedError`` with the valid tokens if the chain breaks on the way and cannot be healed.
        """
        answer = Answer()
        try:
            finish, first_s = await self._answer(conversation, prompt_ids, answer)
        except SwarmError as error:
            if not answer.tokens:
                raise
            raise GenerationInterruptedError(
                f"the answer was cut after {len(answer.tokens)} valid tokens: {error.message}",
                token_ids=tuple(answer.tokens),
                text=answer.text,
                hint=error.hint or "ask again: another chain may answer",
            ) from error
        ended_s = self.clock.monotonic_s()
        later = len(answer.tokens) - 1
        return GenerationResult(
            text=answer.text,
            token_ids=tuple(answer.tokens),
            finish_reason=finish,
            prompt_tokens=len(prompt_ids),
            ttft_s=first_s - self.began_s,
            tokens_per_s=later / (ended_s - first_s) if later and ended_s > first_s else 0.0,
            chain=conversation.healer.served_by,
            exact=conversation.healer.exact,
            seed=self.request.params.seed,
            logprobs=tuple(answer.logprobs),
            heals=tuple(conversation.healer.heals),
            verification=conversation.chain.receipts.verification,
        )

    async def _answer(
        self, conversation: Conversation, prompt_ids: Sequence[int], answer: Answer
    ) -> tuple[FinishReason, float]:
        """Fill ``answer``; returns why it ended and when its first token came."""
        watch = StopWatch(
            self.tokenizer.stream(),
            max_tokens=self.max_new_tokens,
            eos_ids=() if self.request.ignore_eos else self.eos_token_ids,
            stop_strings=self.request.stop,
        )

        def report(done: int, total: int) -> None:
            self.progress(Progress("prefill", done, total))

        choice = await conversation.prefill(prompt_ids, self.request.params, report)
        first_s = self.clock.monotonic_s()
        with span("swarm.decode") as seen:
            try:
                return await self._decode(conversation, choice, watch, answer), first_s
            except SwarmError:
                self._show(watch.cut(), answer)  # held back for a stop string that will not come: valid all the same
                raise
            finally:
                seen.set({"swarm.rounds": len(answer.tokens) - 1})

    async def _decode(
        self, conversation: Conversation, choice: Choice, watch: StopWatch, answer: Answer
    ) -> FinishReason:
        """One token a round, from the first one on, until the answer ends."""
        while True:
            self._note(choice, answer)
            token = answer.logprobs[-1] if answer.logprobs else None
            self.progress(Progress("decode", len(answer.tokens), self.max_new_tokens, token=token))
            release = watch.push(choice.token_id)
            self._show(release.text, answer)
            if release.finish_reason is not None:
                return release.finish_reason
            choice = await conversation.decode(choice.token_id)

    def _show(self, text: str, answer: Answer) -> None:
        if text:
            answer.text += text
            self.emit(text)

    def _note(self, choice: Choice, answer: Answer) -> None:
        answer.tokens.append(choice.token_id)
        if choice.logprob is not None:
            answer.logprobs.append(TokenLogprob(choice.token_id, choice.logprob, choice.top))
