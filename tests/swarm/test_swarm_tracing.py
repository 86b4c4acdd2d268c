"""Spans of whole swarms: the tree of an answer and what befell it, and never a word of what was said."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from gateway_desk import ASKED, desk_of
from harness import SPANS, Engines, Swarm, until
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tiny_model import Reference
from trouble import NEW_TOKENS, PROMPT, Moment, ask, chain_of, greedy

from swarm import SwarmForCausalLM, SwarmModel
from swarm.client.loop_thread import LoopThread
from swarm.core.errors import NoRouteError, SwarmError
from swarm.runtime.tracing import span

NAME = "a name that its owner chose"
TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Seen:
    """The spans that have ended."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    @property
    def spans(self) -> tuple[ReadableSpan, ...]:
        return self.exporter.get_finished_spans()

    def tree(self, parent: ReadableSpan | None = None) -> list[Any]:
        """Names in the order in which they began, each with the tree below it where it has one."""
        above = None if parent is None else parent.context.span_id
        children = [s for s in self.spans if (None if s.parent is None else s.parent.span_id) == above]
        children.sort(key=lambda child: child.start_time or 0)
        return [[child.name, *below] if (below := self.tree(child)) else child.name for child in children]

    def one(self, name: str) -> dict[str, Any]:
        """The attributes of the one span of this name."""
        [found] = [s for s in self.spans if s.name == name]
        return dict(found.attributes or {})

    def everything(self) -> str:
        """All that an exporter would send."""
        return "\n".join(json.dumps(json.loads(s.to_json()), ensure_ascii=False) for s in self.spans)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """What OpenTelemetry gets; the test's provider stands in for the one that a program sets once."""
    found = Seen()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", found.provider)
    yield found
    found.provider.shutdown()


async def test_an_answer_whose_server_dies(swarm: Swarm, seen: Seen) -> None:
    await swarm.serve(*SPANS, *SPANS, name=NAME)
    model = swarm.client()

    async def kill(chain: Any) -> None:
        await swarm.crash(chain[1])

    result = await ask(swarm, model, kill)
    assert list(result.token_ids) == greedy(swarm)
    assert seen.tree() == [["swarm.generate", "swarm.open", "swarm.prefill", ["swarm.decode", "swarm.heal"]]]
    told = seen.one("swarm.generate")
    assert told["gen_ai.request.model"] == str(swarm.files.model_id)
    assert told["gen_ai.usage.input_tokens"] == result.prompt_tokens
    assert told["gen_ai.usage.output_tokens"] == NEW_TOKENS
    assert told["gen_ai.response.finish_reasons"] == ("length",)
    assert (told["swarm.ttft_s"], told["swarm.tokens_per_s"]) == (result.ttft_s, result.tokens_per_s)
    assert (told["swarm.heals"], told["swarm.chain_length"], told["swarm.head"]) == (1, 3, "remote")
    assert told["swarm.chain"] == tuple(f"{s.peer[-8:]}[{s.start}:{s.end}]" for s in result.chain)
    assert seen.one("swarm.prefill") == {"swarm.rows": result.prompt_tokens, "swarm.rows_kept": 0}
    assert seen.one("swarm.decode") == {"swarm.rounds": NEW_TOKENS - 1}
    [heal] = result.heals
    healed = seen.one("swarm.heal")
    assert healed["swarm.lost"] == (f"{heal.lost[0].peer[-8:]}[1:3]",)
    assert healed["swarm.replayed_rows"] == heal.replayed_rows
    [opened] = [s for s in seen.spans if s.name == "swarm.open"]
    assert [event.name for event in opened.events][:2] == ["routing", "opening"]


async def test_nothing_that_was_said_is_told(swarm: Swarm, seen: Seen) -> None:
    """No prompt, no answer, no stop string, no message of an error, no name of a server; also where things fail."""
    await swarm.serve(*SPANS, name=NAME)
    model = swarm.client()
    stream = await model.stream(PROMPT, max_new_tokens=8, ignore_eos=True)
    text = "".join([piece async for piece in stream])
    await model.generate(messages=[{"role": "user", "content": PROMPT}], stop=["a stop string"], max_new_tokens=2)
    with suppress(SwarmError):
        await model.generate(PROMPT, temperature="a word for a number")  # type: ignore[arg-type]

    async def kill(chain: Any) -> None:
        await swarm.crash(chain[1])

    with pytest.raises(SwarmError) as caught:
        await ask(swarm, swarm.client(heal_timeout_s=1.0), kill)
    told = seen.everything()
    assert "GenerationInterruptedError" in told
    for word in (PROMPT, "whatever", text, "a stop string", "a word for", NAME, str(caught.value)[:40]):
        assert word not in told
    assert all(s.status.description is None for s in seen.spans)
    assert not [event for s in seen.spans for event in s.events if event.name == "exception" or event.attributes]


async def test_an_answer_that_never_begins(swarm: Swarm, seen: Seen) -> None:
    await swarm.serve("0:3")
    with pytest.raises(NoRouteError):
        await swarm.client().generate(PROMPT)
    assert seen.tree() == [["swarm.generate", "swarm.open"]]
    for name in ("swarm.generate", "swarm.open"):
        assert seen.one(name)["error.type"] == "NoRouteError"
    assert {s.status.status_code for s in seen.spans} == {trace.StatusCode.ERROR}


async def test_one_that_is_cancelled(swarm: Swarm, seen: Seen) -> None:
    await swarm.serve()
    swarm.delay(0.005)
    model = swarm.client()
    moment = Moment()
    answer = asyncio.create_task(model.generate(PROMPT, progress=moment, max_new_tokens=200, ignore_eos=True))
    await moment.come()
    assert len(chain_of(swarm, model)) == 3
    answer.cancel()
    await asyncio.gather(answer, return_exceptions=True)
    await until(lambda: "swarm.generate" in [s.name for s in seen.spans])
    assert seen.one("swarm.decode")["error.type"] == "CancelledError"
    assert 5 <= seen.one("swarm.decode")["swarm.rounds"] < 100


async def test_a_request_to_the_gateway_is_part_of_the_callers_trace(swarm: Swarm, seen: Seen, tmp_path: Path) -> None:
    await swarm.serve()
    async with desk_of(swarm, tmp_path) as desk:
        await desk.open()
        traceparent = f"00-{TRACE_ID}-{PARENT_ID}-01"
        response = await desk.post(ASKED | {"n": 2}, traceparent=traceparent, tracestate="x=1")
        assert response.status_code == 200
        assert (await desk.post(ASKED, "/nowhere")).status_code == 404
    roots = [s for s in seen.spans if s.kind is trace.SpanKind.SERVER]
    answered, lost = roots
    assert (answered.name, lost.name) == ("POST /v1/chat/completions", "POST")
    assert answered.parent is not None
    assert (f"{answered.parent.trace_id:032x}", f"{answered.parent.span_id:016x}") == (TRACE_ID, PARENT_ID)
    assert answered.attributes is not None
    assert answered.attributes["http.response.status_code"] == 200
    assert lost.parent is None
    generated = ["swarm.generate", "swarm.open", "swarm.prefill", "swarm.decode"]
    assert seen.tree(answered) == [generated, generated]
    assert len({s.context.trace_id for s in seen.spans}) == 2


def test_calls_from_another_thread_are_below_what_the_caller_does(
    engines: Engines, reference: Reference, seen: Seen
) -> None:
    """Also those of transformers' ``generate``: a span for a batch, none for a token."""
    loop = LoopThread()

    async def serve() -> tuple[Swarm, SwarmModel]:
        swarm = Swarm(engines, reference)
        await swarm.serve("0:5")
        return swarm, SwarmModel(swarm.client("local"), loop)

    swarm, door = loop.run(serve())
    model = SwarmForCausalLM.of(door)
    with span("mine"):
        door.generate(PROMPT, max_new_tokens=3, ignore_eos=True)
        "".join(door.generate(PROMPT, stream=True, max_new_tokens=3, ignore_eos=True))
        model.generate(torch.tensor([[5, 6], [7, 8]]), max_new_tokens=9, min_new_tokens=9, pad_token_id=1)
    loop.run(swarm.close())
    swarm.give_back_engines()
    model.close()
    [[mine, first, second, batch]] = seen.tree()
    assert mine == "mine"
    assert first == second == ["swarm.generate", "swarm.open", "swarm.prefill", "swarm.decode"]
    assert sorted(batch[1:]) == ["swarm.open", "swarm.open", "swarm.prefill", "swarm.prefill"]
    [told] = [dict(s.attributes or {}) for s in seen.spans if "swarm.texts" in (s.attributes or {})]
    assert (told["swarm.texts"], told["swarm.tokens"], told["swarm.head"]) == (2, 11, "local")


SILENT = """
import sys
import swarm.client.connect, swarm.gateway.app
from swarm.runtime.tracing import span
with span("x", {"a": 1}) as silent:
    silent.set({"b": 2})
    silent.event("c")
assert span("x") is span("y"), "nothing is made"
print([name for name in sys.modules if name.startswith("opentelemetry")])
"""


def test_who_does_not_use_opentelemetry_does_not_import_it() -> None:
    done = subprocess.run([sys.executable, "-c", SILENT], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "[]\n"
