"""The async client: answers prompts over chains it routes and opens. Lives in one event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Protocol, Unpack
from weakref import WeakSet

from swarm.client.chains.settling import ENDING_S, ROOM_WAIT_S, Settlements
from swarm.client.conversation import Conversation
from swarm.client.evidence.witness import Witness
from swarm.client.finding.choice import ModelShape
from swarm.client.finding.ground import Ground
from swarm.client.finding.opener import ChainOpener, OpenerOptions, check_room
from swarm.client.finding.search import ORDINARY, Wish
from swarm.client.generation import Emit, Generation
from swarm.client.heads import Heads
from swarm.client.judging.bench import Bench, BenchParts
from swarm.client.parts import ClientOptions, ClientParts
from swarm.client.recovery.healing import Healer, HealOptions
from swarm.client.recovery.standbys import StandbyKeeper
from swarm.client.request import DEFAULT_NEW_TOKENS, Options, Request, check_priority, read_options
from swarm.client.results import ChainStage, GenerationResult, Progress, ProgressCallback
from swarm.client.stream import AsyncTextStream
from swarm.client.together import together
from swarm.client.traced import of_result
from swarm.core.errors import ConfigError, MisuseError, NetworkError, SwarmError
from swarm.decoding.sampling import check_bias
from swarm.runtime.reputation import IN_MEMORY, ReputationStore
from swarm.runtime.tracing import Attributes, span
from swarm.wire.fields import Priority

SESSION_TOKENS = 4096
"""What a session may hold in all unless it says otherwise, bounded by the model's context."""
FAREWELL_S = 2.0
"""How long a model that is closed waits for streams whose chains it took away to notice."""


def _no_progress(progress: Progress) -> None:
    """Report to nobody."""


class OpenSession(Protocol):
    """What holds KV in the swarm, as its model needs it."""

    @property
    def chain(self) -> tuple[ChainStage, ...]:
        """Who serves it now; empty while it has no chain."""
        ...

    async def close(self) -> None:
        """Free it. Idempotent."""
        ...


class AsyncSwarmModel:
    """A model that a swarm serves, for code that lives in the same event loop as its network.

    ``witness`` tells whoever asks it to what was seen of servers: answers to OPEN, and sessions that are settled.
    """

    def __init__(self, parts: ClientParts, options: ClientOptions) -> None:
        self.parts = parts
        self.options = options
        self.reputation = parts.reputation or ReputationStore(IN_MEMORY, parts.clock)
        self.witness = Witness(parts.clock, parts.identity)
        self.sessions: WeakSet[OpenSession] = WeakSet()
        self.streams: WeakSet[AsyncTextStream] = WeakSet()
        self._opener = ChainOpener(
            parts.directory,
            parts.transport,
            parts.clock,
            parts.files.model_id,
            ModelShape(parts.files.layer_count, parts.files.hidden_size, options.codec),
            OpenerOptions(
                remote_head=options.remote_head,
                codec=options.codec,
                mixed_numerics=options.mixed_numerics,
                busy_timeout_s=options.busy_timeout_s,
                witness=self.witness,
            ),
            self.reputation,
        )
        self._standbys = StandbyKeeper(self._opener.ground)
        bench = BenchParts(self._opener.ground, parts.directory, parts.files.model_id, self.witness, parts.identity)
        self._bench = Bench(bench, lambda: [stage.peer for session in self.sessions for stage in session.chain])
        self.jury = self._bench.jury
        self.heads = Heads(parts.files, remote=options.remote_head, codec=options.codec, progress=options.progress)
        self.endings = Settlements()
        self.on_close: list[Callable[[], Awaitable[None]]] = []
        """What is to end when the client leaves, while its network still works."""

    @property
    def traced(self) -> Attributes:
        """What spans tell of it."""
        head = "remote" if self.options.remote_head else "local"
        return {"gen_ai.request.model": str(self.parts.files.model_id), "swarm.head": head}

    @property
    def ground(self) -> Ground:
        """What everything of this client stands on."""
        return self._opener.ground

    async def generate(
        self, prompt: str | None = None, *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> GenerationResult:
        """Answer one prompt over a chain of its own. See ``SwarmModel.generate``."""
        session = self._one_off(prompt, options)
        try:
            return await session.generate(prompt, progress=progress, **options)
        finally:
            await asyncio.shield(session.close())

    async def generate_many(
        self, prompts: Sequence[str], *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> list[GenerationResult]:
        """Answer several prompts side by side, each over its own chain, results in the prompts' order.

        If one fails the others are cancelled and its error is raised.
        """
        if not isinstance(prompts, Sequence):
            raise MisuseError(f"a prompt is text or a list of texts, not {type(prompts).__name__}")
        return await together(self.generate(prompt, progress=progress, **options) for prompt in prompts)

    async def stream(
        self, prompt: str | None = None, *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> AsyncTextStream:
        """Start an answer and return its text as it comes."""
        session = self._one_off(prompt, options)
        stream = AsyncTextStream(session, prompt, progress or _no_progress, options, owns_session=True)
        self.streams.add(stream)
        return stream

    def session(
        self, *, max_tokens: int | None = None, priority: Priority = "interactive", wish: Wish = ORDINARY
    ) -> AsyncSession:
        """A conversation that keeps its KV between calls; it opens a chain when it is first used.

        One with a ``wish`` for an audit secret is good for one answer: each chain has its own.
        """
        check_priority(priority)
        context = self.parts.files.context_tokens
        if max_tokens is not None and not 0 < max_tokens <= context:
            raise ConfigError(f"a session of {max_tokens} tokens", hint=f"the model's context holds {context}")
        return AsyncSession(self, max_tokens or min(SESSION_TOKENS, context), priority, wish)

    async def close(self) -> None:
        """Leave the swarm; answers under way end with an error. Idempotent."""
        await asyncio.gather(*(session.close() for session in list(self.sessions)))
        await self.heads.close()
        await self.endings.wait(ENDING_S)
        await asyncio.gather(*(end() for end in self.on_close))
        await self._bench.close()
        await self._standbys.close()
        await self._opener.close()
        await self.parts.directory.close()
        await self.parts.transport.close()
        await asyncio.gather(*(stream.ended(FAREWELL_S) for stream in list(self.streams)))
        self.reputation.close()

    def read(self, options: Options) -> Request:
        """The options, checked; ``ConfigError`` names the one that is wrong, also for this model's vocabulary."""
        request = read_options(options)
        check_bias(request.params, self.parts.files.vocab_size)
        return request

    def encode(self, prompt: str | None, options: Options, *, first: bool = True) -> list[int]:
        """Token ids of exactly one of ``prompt``, ``messages`` and ``input_ids``; ``MisuseError`` otherwise."""
        messages, input_ids = options.get("messages"), options.get("input_ids")
        if sum(item is not None for item in (prompt, messages, input_ids)) != 1:
            raise MisuseError("give exactly one of prompt, messages and input_ids")
        if messages is not None:
            ids = self.parts.tokenizer.chat(messages)
        elif input_ids is not None:
            ids = [int(token) for token in input_ids]
        else:
            ids = self.parts.tokenizer.encode(prompt or "", add_special_tokens=first)
        vocabulary = self.parts.files.vocab_size
        if not ids:
            raise MisuseError("the prompt has no tokens", hint="give at least one character")
        if any(not 0 <= token < vocabulary for token in ids):
            raise MisuseError(f"a token id is outside the vocabulary of {vocabulary}")
        return ids

    def plan_tokens(self, prompt_tokens: int, request: Request, room: int) -> int:
        """New tokens to allow; ``PromptTooLongError`` if prompt and answer do not fit in ``room``."""
        wanted = request.max_new_tokens
        whose = "session's max_tokens" if room < self.parts.files.context_tokens else "model's context"
        check_room(prompt_tokens, wanted or 1, room, whose=whose)
        return wanted or min(DEFAULT_NEW_TOKENS, room - prompt_tokens)

    def _one_off(self, prompt: str | None, options: Options) -> AsyncSession:
        request = self.read(options)
        ids = self.encode(prompt, options)
        new = self.plan_tokens(len(ids), request, self.parts.files.context_tokens)
        return AsyncSession(self, len(ids) + new, request.priority or "interactive")

    async def open(
        self, kv_tokens: int, report: ProgressCallback, priority: Priority, wish: Wish = ORDINARY
    ) -> Conversation:
        """A conversation on a chain with room for ``kv_tokens``."""
        await self._bench.begin()
        if not self.options.remote_head:
            with suppress(NetworkError):  # whoever opens the chain says what is wrong
                await self.heads.expect(await self._opener.ground.view.look())
        await self.endings.wait(ROOM_WAIT_S)
        opened = await self._opener.open(kv_tokens, report, priority, wish)
        try:
            head = await self.heads.of(opened.chain.stages)
        except BaseException:
            await opened.close()
            raise
        healing = HealOptions(self.options.heal_timeout_s, self.options.mixed_numerics)
        return Conversation(
            Healer(opened, self._opener.ground, self._standbys, healing),
            head,
            self.heads.of,
            step_timeout_s=self.options.step_timeout_s,
            table_tokens=self.parts.files.short_table_tokens,
        )


class AsyncSession:
    """One conversation: its tokens, and the chain that holds KV for them. One generation at a time."""

    def __init__(self, model: AsyncSwarmModel, max_tokens: int, priority: Priority, wish: Wish = ORDINARY) -> None:
        self._model = model
        self._max_tokens = max_tokens
        self._priority = priority
        self._wish = wish
        self._tokens: list[int] = []
        self._conversation: Conversation | None = None
        self._busy = False
        self._times_closed = 0
        model.sessions.add(self)

    @property
    def position(self) -> int:
        return len(self._tokens)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._tokens)

    @property
    def chain(self) -> tuple[ChainStage, ...]:
        """Who serves it now; empty while it has no chain."""
        return () if self._conversation is None else self._conversation.healer.served_by

    def truncate(self, position: int) -> None:
        """Go back to ``position``; what the servers hold beyond it is rolled back with the next step."""
        if self._busy:
            raise MisuseError("the session is generating", hint="wait for the answer first")
        if not 0 <= position <= len(self._tokens):
            raise MisuseError(f"cannot go back to position {position} of {len(self._tokens)}")
        del self._tokens[position:]
        if self._conversation is not None:
            self._conversation.truncate(min(position, self._conversation.position))

    async def generate(
        self, prompt: str | None = None, *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> GenerationResult:
        """Answer; see ``swarm.client.blocking.Session.generate``."""
        return await self.run(prompt, options, progress or _no_progress, lambda piece: None)

    async def stream(
        self, prompt: str | None = None, *, progress: ProgressCallback | None = None, **options: Unpack[Options]
    ) -> AsyncTextStream:
        """Start an answer and return its text as it comes."""
        stream = AsyncTextStream(self, prompt, progress or _no_progress, options, owns_session=False)
        self._model.streams.add(stream)
        return stream

    async def run(
        self, prompt: str | None, options: Options, progress: ProgressCallback, emit: Emit
    ) -> GenerationResult:
        """One generation. A chain that breaks is healed; if nobody can take over it is dropped, and the next call opens
        another and feeds it everything.
        """
        with span("swarm.generate", self._model.traced) as seen:
            result = await self._run(prompt, options, progress, emit)
            seen.set(of_result(result))
            return result

    async def _run(
        self, prompt: str | None, options: Options, progress: ProgressCallback, emit: Emit
    ) -> GenerationResult:
        if self._busy:
            raise MisuseError("the session is generating already", hint="one answer at a time")
        model, clock = self._model, self._model.parts.clock
        began_s = clock.monotonic_s()
        request = model.read(options)
        new = model.encode(prompt, options, first=not self._tokens)
        ids = new if options.get("messages") is not None else [*self._tokens, *new]
        max_new = model.plan_tokens(len(ids), request, self._max_tokens)
        self._busy = True
        try:
            conversation = await self._ready(progress, request.priority or self._priority)
            generation = Generation(
                request=request,
                max_new_tokens=max_new,
                tokenizer=model.parts.tokenizer,
                eos_token_ids=model.parts.files.eos_token_ids,
                clock=clock,
                began_s=began_s,
                emit=emit,
                progress=progress,
            )
            result = await generation.run(conversation, ids)
            self._tokens = [*ids, *result.token_ids]
            return result
        except SwarmError:
            await self.close()
            raise
        finally:
            self._busy = False
            if self._conversation is not None:
                self._conversation.healer.rest()

    async def _ready(self, progress: ProgressCallback, priority: Priority) -> Conversation:
        """The conversation on a chain that is whole.

        One that broke while nobody asked is healed, if something of it is left and somebody is there to take over at
        once; else another is opened, which may be of other servers altogether.
        """
        times_closed = self._times_closed
        conversation = self._conversation
        if conversation is not None:
            conversation.healer.begin(progress)
            if not conversation.chain.broken or await conversation.revived():
                return conversation
            self._model.endings.begin(conversation.close())
        if times_closed == self._times_closed:
            conversation = await self._model.open(self._max_tokens, progress, priority, self._wish)
            if times_closed == self._times_closed:
                conversation.healer.begin(progress)
                self._conversation = conversation
                return conversation
            await conversation.close()
        raise MisuseError("the session was closed while it opened a chain")

    async def close(self) -> None:
        """Free the KV at every server; the tokens are kept, so the session can go on over a new chain.

        An answer that is under way ends with an error. The servers sign what is left of it in the background.
        """
        self._times_closed += 1
        conversation, self._conversation = self._conversation, None
        if conversation is not None:
            self._model.endings.begin(conversation.close())
