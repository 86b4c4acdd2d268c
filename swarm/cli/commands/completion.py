"""``swarm completion``: a script by which a shell completes commands and options when Tab is pressed."""

from __future__ import annotations

import argparse
from pathlib import Path

SHELLS = ("bash", "zsh", "fish", "tcsh")
EXAMPLES = """\
Once for each shell, then begin a new one:
  bash   swarm completion bash > ~/.local/share/bash-completion/completions/swarm
         (needs the package bash-completion; without it: add `eval "$(swarm completion bash)"` to ~/.bashrc)
  zsh    swarm completion zsh > ~/.zfunc/_swarm
         (and before `compinit` in ~/.zshrc: fpath=(~/.zfunc $fpath))
  fish   swarm completion fish > ~/.config/fish/completions/swarm.fish
  tcsh   swarm completion tcsh > ~/.swarm.completion
         (and in ~/.tcshrc: source ~/.swarm.completion)

A folder that is not there yet is made with `mkdir -p`. It completes the command `swarm`, which lies in the virtual
environment's bin folder, not `python -m swarm`. Make it again after an update.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Print a script that completes commands and options in a shell when Tab is pressed."
    parser.epilog = EXAMPLES
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(options: argparse.Namespace) -> int:
    from swarm.cli.main import full_parser

    print(script(full_parser("swarm"), options.shell))
    return 0


def script(parser: argparse.ArgumentParser, shell: str) -> str:
    """The script for ``shell``; file names complete wherever an option or an argument is a path."""
    import shtab

    _complete_files(parser)
    return str(shtab.complete(parser, shell))


def _complete_files(parser: argparse.ArgumentParser) -> None:
    import shtab

    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _complete_files(command)
        elif action.type is Path:
            vars(action)["complete"] = shtab.FILE  # shtab's own mark on an action
