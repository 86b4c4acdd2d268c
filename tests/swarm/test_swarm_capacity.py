"""No room, no route, mixed numerics, lossy wire: what a client is told, and that nothing stays reserved."""

from __future__ import annotations

import asyncio

import pytest
from fakes import FakeClient
from harness import Swarm

from swarm.client.results import Progress
from swarm.core.announcement import State
from swarm.core.errors import (
    BusyError,
    ConfigError,
    MisuseError,
    NetworkError,
    NoRouteError,
    PromptTooLongError,
    RefusedError,
    SwarmError,
)
from swarm.server.config import ServerConfig
from swarm.wire.messages import Accept, Close

OPTIONS = {"max_new_tokens": 6, "ignore_eos": True}


# -- room -----------------------------------------------------------------------------------------------------


async def test_a_prompt_over_the_kv_budget_is_refused_by_the_client(swarm: Swarm) -> None:
    await swarm.serve("0:3", kv_tokens=100)
    await swarm.serve("3:5")
    model = swarm.client()
    with pytest.raises(PromptTooLongError, match="106 tokens") as caught:
        await model.generate("x" * 100, **OPTIONS)
    assert "max_new_tokens" in caught.value.hint
    await swarm.check_free()
    assert (await model.generate("x" * 94, **OPTIONS)).prompt_tokens == 94, "exactly full"
    await swarm.serve("0:3", kv_tokens=200)
    assert (await model.generate("x" * 100, **OPTIONS)).prompt_tokens == 100, "a larger one is found"


async def test_a_budget_announced_too_large_is_refused_at_open(swarm: Swarm) -> None:
    """The server's own word counts, and nothing stays reserved at its neighbour."""
    await swarm.serve("0:3")
    [node] = await swarm.serve("3:5", kv_tokens=100, announce=False)
    announcement = swarm.announcement(
        node.transport,
        node.engine,
        kv_tokens=4096,
        state=State.ONLINE,
        expires_s=swarm.clock.wall_s() + 300.0,
    )
    await swarm.enlist(node.identity, announcement)
    with pytest.raises(RefusedError, match="budget is 100") as caught:
        await swarm.client().generate("x" * 100, **OPTIONS)
    assert node.short in str(caught.value)
    await swarm.quiet()
    assert all(len(server.server.table) == 0 for server in swarm.nodes)
    assert [server.engine.free_tokens for server in swarm.nodes] == [4096, 100]


async def test_half_a_chain_accepted_then_busy_keeps_nothing(swarm: Swarm) -> None:
    first, second = await swarm.serve("0:3", "3:5", config=ServerConfig(max_sessions=1))
    hog = FakeClient(swarm)
    control, reply = await hog.open(second)
    assert isinstance(reply, Accept)
    with pytest.raises(BusyError, match="all 1 sessions") as caught:
        await swarm.client(busy_timeout_s=0.0).generate("x", **OPTIONS)
    assert second.short in str(caught.value)
    await swarm.quiet()
    assert first.idle
    await control.send(Close())
    await swarm.answers()
    await hog.close()


async def test_a_busy_server_is_routed_around_at_once(swarm: Swarm) -> None:
    _, second = await swarm.serve("0:3", "3:5", config=ServerConfig(max_sessions=1))
    hog = FakeClient(swarm)
    await hog.open(second)
    [other] = await swarm.serve("3:5")
    began_s = swarm.clock.monotonic_s()
    result = await swarm.client().generate("x", **OPTIONS)
    assert result.chain[1].peer == other.peer
    assert swarm.clock.monotonic_s() - began_s < 0.5
    await hog.close()


async def test_a_busy_swarm_is_waited_for_and_said_to_be(swarm: Swarm) -> None:
    first, second = await swarm.serve("0:3", "3:5", config=ServerConfig(max_sessions=1))
    hog = FakeClient(swarm)
    control, _ = await hog.open(second)
    seen: list[Progress] = []
    task = asyncio.create_task(swarm.client().generate("x", progress=seen.append, **OPTIONS))
    await asyncio.sleep(5.0)
    assert not task.done()
    assert first.idle, "while it waits it holds nothing"
    await control.send(Close())
    result = await task
    assert list(result.token_ids) == swarm.reference.greedy("x", 6, eos_token_id=None)
    waiting = [item for item in seen if item.phase == "waiting"]
    assert waiting
    assert second.short in waiting[0].detail
    assert result.ttft_s > 5.0, "the wait counts"
    await hog.close()


async def test_busy_for_too_long_is_an_error_in_time(swarm: Swarm) -> None:
    [node] = await swarm.serve("0:5", kv_tokens=100)
    hog = FakeClient(swarm)
    await hog.ask(*await hog.session(node, kv_tokens=90), [5])
    model = swarm.client(busy_timeout_s=20.0)
    began_s = swarm.clock.monotonic_s()
    with pytest.raises(BusyError, match="stayed busy for 20 s") as caught:
        await model.generate("x" * 20, **OPTIONS)
    assert node.short in str(caught.value)
    assert caught.value.retry_after_s > 0
    assert 15.0 < swarm.clock.monotonic_s() - began_s <= 20.0
    await hog.close()


async def test_sessions_beyond_the_budget_take_turns(swarm: Swarm) -> None:
    """Twelve answers through servers with room for three: all come, all are right."""
    await swarm.serve("0:3", "3:5", kv_tokens=30)
    prompts = [f"no {n:02}" for n in range(12)]
    model = swarm.client(busy_timeout_s=600.0)
    results = await asyncio.gather(*(model.generate(prompt, max_new_tokens=4, ignore_eos=True) for prompt in prompts))
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == swarm.reference.greedy(prompt, 4, eos_token_id=None)
    await swarm.check_free()


# -- routes ---------------------------------------------------------------------------------------------------


async def test_missing_layers_are_named(swarm: Swarm) -> None:
    await swarm.serve("0:1", "3:4")
    with pytest.raises(NoRouteError, match="layers 1 to 2 and 4") as caught:
        await swarm.client().generate("x", **OPTIONS)
    assert "--blocks 1:3" in caught.value.hint


async def test_an_empty_swarm(swarm: Swarm) -> None:
    with pytest.raises(NoRouteError, match="layers 0 to 4"):
        await swarm.client().generate("x", **OPTIONS)


async def test_without_a_head_in_the_swarm_only_a_local_one_works(swarm: Swarm) -> None:
    await swarm.serve("0:3", "3:5", ends=False)
    with pytest.raises(NoRouteError, match="embeddings") as caught:
        await swarm.client("remote").generate("x", **OPTIONS)
    assert 'head="local"' in caught.value.hint
    await swarm.answers(head="local")


async def test_a_directory_that_is_down(swarm: Swarm) -> None:
    await swarm.serve()
    model = swarm.client()
    swarm.store.down = True
    with pytest.raises(NetworkError, match="directory"):
        await model.generate("x", **OPTIONS)
    swarm.store.down = False
    assert (await model.generate("x", **OPTIONS)).token_ids


async def test_servers_outlive_an_outage_of_the_directory(swarm: Swarm) -> None:
    await swarm.serve()
    swarm.store.down = True
    await asyncio.sleep(200.0)
    swarm.store.down = False
    await asyncio.sleep(30.0)
    await swarm.answers()


async def test_a_stale_view_still_finds_a_way(swarm: Swarm) -> None:
    """The directory shows a server that has crashed beside one that lives."""
    [dead] = await swarm.serve("0:5")
    await swarm.crash(dead)
    await swarm.serve("0:5")
    for _ in range(4):
        await swarm.answers()


# -- numerics and codec ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("head", ["local", "remote"])
async def test_int8_on_the_wire_runs_and_is_not_exact(swarm: Swarm, head: str) -> None:
    await swarm.serve()
    sent: list[int] = []
    remove = swarm.network.tap(
        lambda _s, _t, protocol, data: (sent.append(len(data)) if "link" in protocol else None, data)[1]
    )
    lossy = await swarm.client(head, codec="int8").generate("The swarm answers", max_new_tokens=12, ignore_eos=True)
    small = sum(sent)
    sent.clear()
    raw = await swarm.client(head).generate("The swarm answers", max_new_tokens=12, ignore_eos=True)
    assert small < 0.6 * sum(sent)
    remove()
    assert not lossy.exact
    assert raw.exact
    assert lossy.token_ids[0] == raw.token_ids[0], "close to the truth"


@pytest.mark.parametrize("head", ["local", "remote"])
@pytest.mark.parametrize("dtypes", [("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "bfloat16")])
@pytest.mark.parametrize("codec", ["raw", "int8"])
async def test_mixed_numerics_only_on_request(swarm: Swarm, head: str, dtypes: tuple[str, str], codec: str) -> None:
    """float16 and bfloat16 have the same size: rows sent as they are would be read as garbage, without an error."""
    await swarm.serve("0:3", dtype=dtypes[0])
    await swarm.serve("3:5", dtype=dtypes[1])
    with pytest.raises(NoRouteError, match="no one numerics class") as caught:
        await swarm.client(head).generate("x", **OPTIONS)
    assert 'numerics="any"' in caught.value.hint
    model = swarm.client(head, mixed_numerics=True, codec=codec)
    result = await model.generate("The swarm answers", max_new_tokens=1, ignore_eos=True, logprobs=1)
    assert not result.exact
    ids = swarm.reference.tokenizer.encode("The swarm answers")
    logprobs = swarm.reference.logits(ids)[-1].log_softmax(-1)
    assert result.logprobs[0].logprob == pytest.approx(float(logprobs[result.token_ids[0]]), abs=0.3)


async def test_one_class_is_preferred_to_a_mix(swarm: Swarm) -> None:
    await swarm.serve("0:3", dtype="bfloat16")
    await swarm.serve("0:1", "1:3", "3:5")
    result = await swarm.client().generate("x", **OPTIONS)
    assert len(result.chain) == 3
    assert result.exact
    assert list(result.token_ids) == swarm.reference.greedy("x", 6, eos_token_id=None)


# -- the caller's own mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "options", "error", "words"),
    [
        (None, {}, MisuseError, "exactly one"),
        ("x", {"input_ids": [1]}, MisuseError, "exactly one"),
        ("", {}, MisuseError, "no tokens"),
        (None, {"input_ids": [260]}, MisuseError, "vocabulary"),
        (None, {"input_ids": [-1]}, MisuseError, "vocabulary"),
        (None, {"messages": []}, SwarmError, "message"),
        ("x", {"temperature": -1.0}, ConfigError, "temperature"),
        ("x", {"temperature": float("nan")}, ConfigError, "temperature"),
        ("x", {"top_p": 0.0}, ConfigError, "top_p"),
        ("x", {"max_new_tokens": 0}, ConfigError, "max_new_tokens"),
        ("x", {"stop": [""]}, ConfigError, "stop"),
        ("x", {"logprobs": 100}, ConfigError, "top_logprobs"),
        ("x", {"max_tokens": 5}, ConfigError, "unknown option 'max_tokens'"),
        ("x", {"seed": -1}, ConfigError, "seed"),
    ],
)
async def test_a_wrong_call_touches_no_server(
    swarm: Swarm, prompt: str | None, options: dict, error: type[Exception], words: str
) -> None:
    [node] = await swarm.serve("0:5")
    opened: list[object] = []
    swarm.network.tap(lambda _s, _t, protocol, data: (opened.append(protocol), data)[1])
    with pytest.raises(error, match=words):
        await swarm.client().generate(prompt, **options)
    assert not opened
    assert not node.rows


async def test_a_bias_for_a_token_outside_the_vocabulary(swarm: Swarm) -> None:
    await swarm.serve()
    for head in ("local", "remote"):
        with pytest.raises(ConfigError, match="token 1000"):
            await swarm.client(head).generate("x", logit_bias={1000: 1.0}, **OPTIONS)
    assert not any(node.rows for node in swarm.nodes)
