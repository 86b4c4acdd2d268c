"""``generate``, ``chat``, ``fetch`` and ``demo`` as a person or a script runs them."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from swarm.client.blocking import SwarmModel
from swarm.client.results import GenerationResult
from swarm.models import ModelFiles

QUESTION = "Name two colours."
FOLLOW_UP = "And two animals?"
NEW_TOKENS = 12
FREED_S = 3.0


@pytest.fixture
def where(swarm30: list[Any]) -> tuple[str, ...]:
    return ("--model", "demo", "--initial-peers", swarm30[1].address)


def asked(model: SwarmModel, *said: str) -> GenerationResult:
    """What the model answers to a conversation of which every other message is its own."""
    roles = ("user", "assistant")
    messages = [{"role": roles[index % 2], "content": text} for index, text in enumerate(said)]
    return model.generate(messages=messages, max_new_tokens=NEW_TOKENS)


def output(command: Any) -> str:
    """Everything a command said on standard output, once it has ended well."""
    assert command.wait(120.0) == 0, command.stderr
    lines = []
    while (line := command.line(1.0)) is not None:
        lines.append(line)
    return "\n".join(lines)


def test_generate(launcher: Any, where: tuple[str, ...], model30: SwarmModel) -> None:
    command = launcher.run("swarm", "generate", QUESTION, "--max-new-tokens", str(NEW_TOKENS), *where)
    expected = asked(model30, QUESTION)
    assert output(command) == expected.text
    [line] = command.stderr.splitlines()
    assert f"[{len(expected.token_ids)} tokens, " in line
    assert " tok/s, first after " in line
    assert f", {expected.finish_reason}; " in line
    assert all(f"{stage.peer[-8:]}[{stage.start}:{stage.end}]" in line for stage in expected.chain)


def test_generate_json_from_standard_input(launcher: Any, where: tuple[str, ...], model30: SwarmModel) -> None:
    arguments = ("--json", "--raw", "--head", "local", "--temperature", "0.8", "--seed", "7")
    command = launcher.run("swarm", "generate", "-", "--max-new-tokens", str(NEW_TOKENS), *arguments, *where)
    command.process.stdin.write("The sea is")
    command.process.stdin.close()
    result = json.loads(output(command))
    expected = model30.generate("The sea is", max_new_tokens=NEW_TOKENS, temperature=0.8, seed=7)
    assert result["text"] == expected.text
    assert result["token_ids"] == list(expected.token_ids)
    assert result["seed"] == 7
    assert result["exact"] is True
    assert result["verification"]["problems"] == []
    assert [stage["span"] for stage in result["chain"]] == [[0, 10], [10, 20], [20, 30]]


def test_chat_over_a_pipe(launcher: Any, where: tuple[str, ...], model30: SwarmModel) -> None:
    command = launcher.run("swarm", "chat", "--max-new-tokens", str(NEW_TOKENS), *where)
    command.process.stdin.write(f"{QUESTION}\n{FOLLOW_UP}\n/undo\n{FOLLOW_UP}\n/new\n{QUESTION}\n")
    command.process.stdin.close()
    first = asked(model30, QUESTION).text
    second = asked(model30, QUESTION, first, FOLLOW_UP).text
    assert output(command) == f"{first}\n{second}\n{second}\n{first}"
    assert f"[taken back: {FOLLOW_UP}]" in command.stderr


def test_status_and_what_if(launcher: Any, swarm30: list[Any], where: tuple[str, ...], tmp_path: Path) -> None:
    saved = tmp_path / "swarm.json"
    status = json.loads(output(launcher.run("swarm", "status", "--json", "--save", str(saved), *where)))
    spans = [[0, 10], [10, 20], [20, 30]]
    chain = [{"id": server.peer, "span": span} for server, span in zip(swarm30, spans, strict=True)]
    assert [{"id": server["id"], "span": server["span"]} for server in status["servers"]] == chain
    assert (status["layers"], status["coverage"], status["holes"]) == (30, [1] * 30, [])
    for server in status["servers"]:
        assert (server["live"], server["state"], server["numerics"]) == (True, "online", "float32")
        assert 0 < server["tau_s"] < 1.0
        assert 0 < server["client_rtt_s"] < 1.0
        assert 0 < server["kv_free_tokens"] <= server["kv_tokens"]
    assert (status["chain"], status["reason"]) == (chain, None)
    assert 0 < status["latency_s"] < 5.0
    route = json.loads(output(launcher.run("swarm", "route", "--json", "--cluster", str(saved))))
    assert route["chain"] == chain


def test_fetch_names_the_folder(launcher: Any, demo_files: ModelFiles) -> None:
    folder = demo_files.tokenizer_path.parent
    command = launcher.run("swarm", "fetch", "demo", anew=True)
    said = output(command)
    assert said == f"{demo_files.model_id}: 30 layers, in {folder}"
    assert Path(said.rpartition(" in ")[2]).is_dir()


def test_demo(launcher: Any) -> None:
    command = launcher.run("swarm", "demo", "--servers", "2", "--max-new-tokens", "6", "Name a colour.", anew=True)
    command.process.stdin.close()
    assert output(command)
    assert "2 servers are ready" in command.stderr
    assert "[0:15] -> " in command.stderr


def test_ctrl_c_ends_the_demo_and_its_servers(launcher: Any, eventually: Any) -> None:
    command = launcher.run("swarm", "demo")
    demo = psutil.Process(command.pid)
    eventually(lambda: any("p2pd" in process.name() for process in demo.children(recursive=True)), 60.0)
    family = demo.children(recursive=True)
    command.signal(signal.SIGINT)
    assert command.wait() == 130
    assert "Traceback" not in command.stderr
    _, alive = psutil.wait_procs(family, timeout=30.0)
    assert not alive


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_a_command_that_is_ended_frees_its_room(
    launcher: Any,
    where: tuple[str, ...],
    model30: SwarmModel,
    free_tokens: Any,
    eventually: Any,
    how: signal.Signals,
    code: int,
) -> None:
    """Ctrl-C and kill -9: within three seconds at every server, on a machine that has a core free."""
    room = free_tokens(model30)
    command = launcher.run("swarm", "generate", "--raw", "1 2 3 4 5", "--max-new-tokens", "2000", *where)
    eventually(lambda: free_tokens(model30) != room, 60.0)
    command.note_children()
    command.signal(how)
    eventually(lambda: free_tokens(model30) == room, FREED_S)
    assert command.wait(30.0) == code
    assert "Traceback" not in command.stderr
