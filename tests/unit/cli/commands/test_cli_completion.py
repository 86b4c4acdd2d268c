"""Shell completion: the scripts are the shells' own language, and Tab finds options in a real bash."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from swarm.cli.commands.completion import SHELLS
from swarm.cli.main import COMMANDS

TAB = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 )); COMP_LINE="$*"
complete -p swarm > /dev/null || exit 9
_shtab_swarm "$1" "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(said: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The script of each shell, as the command prints it."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in SHELLS:
        done = said("completion", shell)
        assert done.code == 0
        (folder / shell).write_text(done.out, encoding="utf-8")
    return {shell: folder / shell for shell in SHELLS}


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_reads_its_script(shell: str, scripts: dict[str, Path]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell} on this machine")
    done = subprocess.run([shell, "-n", str(scripts[shell])], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        (("swarm", "server", "--num"), ["--num-blocks"]),
        (("swarm", "server", "--dtype", "bf"), ["bfloat16"]),
        (("swarm", "verify-pro"), ["verify-proof"]),
        (("swarm", ""), list(COMMANDS)),
        (("swarm", "completion", "z"), ["zsh"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_tab_in_bash(typed: tuple[str, ...], found: list[str], scripts: dict[str, Path]) -> None:
    done = subprocess.run(
        ["bash", "--norc", "-c", TAB, "bash", str(scripts["bash"]), *typed], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(found)


def test_tab_in_bash_finds_files(scripts: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "second.key").touch()
    words = ["swarm", "server", "--identity", str(tmp_path / "sec")]
    done = subprocess.run(
        ["bash", "--norc", "-c", TAB, "bash", str(scripts["bash"]), *words], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.split() == [str(tmp_path / "second.key")]


def test_the_options_of_every_command_are_known_without_anything_heavy() -> None:
    """A shell that asks when it starts, and `contributed` and its like, should not wait seconds for torch."""
    program = (
        "import sys; from swarm.cli.main import main\n"
        "code = main(['completion', 'bash'])\n"
        "heavy = {'torch', 'hivemind', 'transformers'} & set(sys.modules)\n"
        "sys.exit(f'{code} {heavy}' if heavy or code else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
