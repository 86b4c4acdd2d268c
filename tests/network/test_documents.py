"""What README.md and the pages of docs/ tell people to type works, as it stands: in one swarm, which README begins."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from documents import ADDRESS, GATEWAY, HEALTH, PEER, PYTHON, ROOT, SHELL, SHOWN, Block, blocks

from swarm.cli.commands.calibrate import cut, gather
from swarm.engine.calibration import BoundaryStates
from swarm.models import ModelFiles
from swarm.models.progress import silent
from swarm.runtime.calibrations import store_calibration
from swarm.verification.verdicts.calibration_text import TEXT

PAGES = ("README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")))
TOGETHER = "docs/developer.md"
"""Its Python is one program, which test_developer.py runs."""
ALL = [block for page in PAGES for block in blocks(page)]
SCRIPTS = [block for block in ALL if block.language == PYTHON and block.document != TOGETHER]
RUN_S = 120.0

KV_TOKENS = 3000
FIRST = "python -m swarm.server --model demo --num-blocks 10 --new-swarm"
SECOND = f"python -m swarm.server --model demo --initial-peers {ADDRESS}"
"""The two servers that README starts; they are the swarm that everything else asks."""

ELSEWHERE = {
    r"make (demo|test|lint|help)": "make runs these tests, and test_commands.py the demonstration",
    r"make venv( && \. \.venv/bin/activate)?": "what runs these tests has done it",
}
"""Commands that are not run here, and why not."""

SERVES = {
    r"python -m swarm\.server .*": r"READY  serving layers",
    r"python -m swarm\.gateway .*": r"listening on (?P<url>\S+), model",
    r"python -m swarm\.health (?!.*--once).*": r"listening on (?P<url>\S+)",
    r"python -m swarm bootstrap.*": r"READY  12D3KooW",
    r"python -m swarm verifier .*": r": PASSED",
}
"""Commands that go on until Ctrl-C, and what they say once they do what they are for."""
SHORT = r"python -m swarm (verifier|bootstrap).*"
"""Those of them that nothing else here needs."""

ENDS = {
    r"python -m swarm doctor": r"\d+ ok, ",
    r"python -m swarm generate .*": r"\w",
    r"python -m swarm chat .*": r"",
    r"python -m swarm status .*": r"layers",
    r"python -m swarm route .*": r"in all, [\d.]+ tokens/s",
    r"python -m swarm plan .*": r"pipeline 1:",
    r"python -m swarm challenge .*": r"(?m)^PASSED",
    r"python -m swarm \S+ --show-config.*": r"",
    r"python -m swarm contributed": r"sessions?|nothing yet",
    r"python -m swarm\.health .*--once.*": r'"models": \[',
    r"curl .*/v1/chat/completions .*": r'"finish_reason"',
    r"curl .*/api/v1/state": r'"models":',
}
"""Commands that end, with exit code 0, and what they print."""


def rule(table: dict[str, str], command: str) -> str | None:
    """The one rule of ``table`` for ``command``."""
    found = [value for pattern, value in table.items() if re.fullmatch(pattern, command)]
    assert len(found) <= 1, command
    return found[0] if found else None


@dataclass
class Stage:
    """Where the commands run: one folder, a data folder for each machine they would be typed on, the first servers."""

    launcher: Any
    folder: Path
    means: dict[str, str] = field(default_factory=dict)
    address: str = ""
    services: dict[str, Any] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)

    def environment(self, machine: str) -> dict[str, str]:
        """What makes commands fit here: on loopback, any free port, one thread, no waiting. The rest is theirs."""
        return self.means | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "XDG_DATA_HOME": str(self.folder / machine),
            "SWARM_SERVER_HOST": "127.0.0.1",
            "SWARM_SERVER_KV_TOKENS": str(KV_TOKENS),
            "SWARM_BOOTSTRAP_HOST": "127.0.0.1",
            "SWARM_BOOTSTRAP_PORT": "0",
            "SWARM_GATEWAY_PORT": "0",
            "SWARM_HEALTH_PORT": "0",
            "SWARM_VERIFIER_INTERVAL": "0",
            "SWARM_THREADS": "1",
        }

    def placed(self, text: str) -> str:
        """``text`` with this swarm's address for the placeholder, and the ports that the system chose."""
        for placeholder, command in ((GATEWAY, "gateway"), (HEALTH, "health")):
            if placeholder in text:
                text = text.replace(placeholder, self.url(command))
        return text.replace(ADDRESS, self.address).replace(PEER, self.address.rpartition("/")[2])

    def url(self, command: str) -> str:
        """Where README's gateway, or its page, listens; it is started if it does not yet."""
        [line] = {line for block in ALL for line in block.commands if line.startswith(f"python -m swarm.{command} ")
                  and block.document == "README.md"}  # fmt: skip
        self.serve(line)
        return self.urls[line]

    def start(self, command: str) -> Any:
        machine = f"machine-{len(self.services)}" if rule(SERVES, command) else "client"
        return self.launcher.shell(self.placed(command), folder=self.folder, environment=self.environment(machine))

    def serve(self, command: str) -> None:
        """Have it run, and wait until it says that it serves."""
        said = rule(SERVES, command)
        assert said is not None
        if command not in self.services:
            self.services[command] = self.start(command)
        if command not in self.urls:
            found = self.services[command].until(said, RUN_S)
            self.urls[command] = found.groupdict().get("url", "")
            if re.fullmatch(SHORT, command):
                self.stop(command)

    def run(self, command: str) -> str:
        """What it prints; it has to end well."""
        process = self.start(command)
        with contextlib.suppress(BrokenPipeError):
            process.process.stdin.close()
        assert process.wait(RUN_S) == 0, process.stderr
        return "\n".join(process.rest())

    def stop(self, command: str) -> None:
        """Ctrl-C: it ends well."""
        self.services[command].signal(signal.SIGINT)
        assert self.services[command].wait(RUN_S) == 0, command

    def end(self) -> None:
        """Ctrl-C for whatever still serves, those first that came last."""
        for command in reversed(self.services):
            if self.services[command].process.poll() is None:
                self.stop(command)


@pytest.fixture(scope="module")
def means(demo_files: ModelFiles, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A calibration by a short text, and prompts with short answers: what a machine that verifies has at hand."""
    folder = tmp_path_factory.mktemp("means")
    reading = cut(demo_files, TEXT, 320)
    boundaries = BoundaryStates(demo_files, reading.pieces, device="cpu", progress=silent)
    store_calibration(gather(boundaries, reading, demo_files.model_id, folder), folder / "calibration")
    (folder / "prompts").write_text("Answer with the one word yes: is water wet?\nAnswer with one word: is ice warm?\n")
    return {
        f"SWARM_{command}_{option}": str(folder / option.lower())
        for command in ("VERIFIER", "CHALLENGE")
        for option in ("CALIBRATION", "PROMPTS")
    }


@pytest.fixture(scope="module")
def stage(
    module_launcher: Any, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    stage = Stage(module_launcher, tmp_path_factory.mktemp("typed"))
    stage.services[FIRST] = stage.start(FIRST)
    stage.means = request.getfixturevalue("means")  # while the first server loads
    stage.address = stage.services[FIRST].until(r"--initial-peers (?P<address>\S+)", RUN_S)["address"]
    stage.serve(SECOND)
    stage.serve(FIRST)
    yield stage
    stage.end()
    assert stage.services[SECOND].stderr.startswith("loading weights: ")


def test_readme_begins_the_swarm_that_the_rest_asks() -> None:
    typed = [command for block in ALL if block.document == "README.md" for command in block.commands]
    assert FIRST in typed
    assert SECOND in typed


@pytest.mark.parametrize("block", ALL, ids=str)
def test_block_is_run_or_shown(block: Block) -> None:
    """Of every block it is known what to do with it, and commands hide in none."""
    if block.language == SHELL:
        tables = [ELSEWHERE, SERVES, ENDS]
        for command in block.commands:
            assert sum(rule(table, strip(command)) is not None for table in tables) == 1, command
    elif block.language != PYTHON:
        assert block.language in SHOWN
        assert not re.search(r"^(python|swarm|make|curl) ", block.text, re.MULTILINE)


@pytest.mark.parametrize("block", [block for block in ALL if block.language in (SHELL, PYTHON)], ids=str)
def test_one_placeholder_stands_for_an_address(block: Block) -> None:
    """So that one replacement is enough, for these tests and for people."""
    assert "/p2p/" not in block.text.replace(ADDRESS, "")
    assert "12D3" not in block.text.replace(ADDRESS, "").replace(PEER, "")


def strip(command: str) -> str:
    """Without the comment behind it."""
    return re.sub(r"\s{2,}#.*", "", command)


def test_what_a_server_prints_for_others_can_be_copied(stage: Stage) -> None:
    said = stage.services[SECOND].said
    # All layers, or those that the first one leaves: it depends on whether that one was heard of yet.
    assert any(re.match(r"span      (0|10):30 of 30 layers, with .*LM head", line) for line in said), said
    assert any(re.match(rf"memory    \d+\.\d MB of weights, KV for {KV_TOKENS} tokens", line) for line in said), said
    assert any("NO GPU FOUND" in line for line in said) or "device    cuda" in "\n".join(said)
    command = said[said.index("and ask with:") + 1].strip()
    assert command.startswith("python -m swarm generate ")
    assert stage.run(f"{command} --max-new-tokens 2")
    too_long = stage.start(f"{command} --max-new-tokens 4000")
    assert too_long.wait(RUN_S) == 2
    assert too_long.stderr.startswith("error: ")
    assert "no chain of servers has KV room" in too_long.stderr


@pytest.mark.parametrize("block", [block for block in ALL if block.language == SHELL], ids=str)
def test_shell_block(stage: Stage, block: Block) -> None:
    for command in map(strip, block.commands):
        if rule(SERVES, command) is not None:
            stage.serve(command)
        elif (says := rule(ENDS, command)) is not None:
            assert re.search(says, stage.run(command)), command


@pytest.mark.parametrize("block", SCRIPTS, ids=str)
def test_python_block(stage: Stage, block: Block) -> None:
    script = stage.folder / "block.py"
    script.write_text(block.text)
    text = stage.placed(block.text)
    script.write_text(text)
    printed = stage.run(f"python {script}")
    assert printed.strip() or "print(" not in text
