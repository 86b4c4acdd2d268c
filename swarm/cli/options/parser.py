"""A command's parser: beside the command line, variables and a configuration file count, and it knows which did."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from swarm.cli.options.config_file import find_file, read_tables
from swarm.cli.options.settings import Command, Given, Layer, Off, is_flag, key_of, merge, nearest, settable

_log = logging.getLogger(__name__)

DEFAULT = "default"
COMMAND_LINE = "command line"
_UNKNOWN = re.compile(r"unrecognized arguments: (?P<option>[^\s=]+)|invalid choice: '(?P<word>[^']*)'")


class CommandParser(argparse.ArgumentParser):
    """Parses as its parent does, with one line about a mistake. Once ``command`` is set, other sources count as well.

    A command's ``add_arguments`` may name options that exclude each other, ``set_defaults(rivals=[("a", "b")])``, and
    options whose variable would mean something else, ``set_defaults(renamed={"api_keys": "api-keys-file"})``; and other
    ``variables`` that it reads by itself; and ``like``, another command whose settings count for it where they fit.
    """

    command = ""
    commands: Collection[str] = ()
    """Names of all commands: the tables a file may have."""
    others: Callable[[], Collection[str]] = tuple
    """Asks for the keys that any command has."""
    environ: Mapping[str, str] = os.environ

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """The options from every source, and what of ``args`` is unknown. ``sources`` says where each came from.

        Raises ``ConfigError`` for what is wrong in a variable or a file.
        """
        if not self.command:
            return super().parse_known_args(args, namespace)
        needed = [action for action in settable(self) if action.required]
        groups = [group for group in self._mutually_exclusive_groups if group.required]
        defaults = {action: action.default for action in settable(self)}
        self._as_declared = (needed, defaults)
        with _altered([*needed, *groups], "required", False), _altered(defaults, "default", argparse.SUPPRESS):
            parsed, unknown = super().parse_known_args(args, namespace)
        self._fill(parsed, needed, groups)
        return parsed, unknown

    def _get_option_tuples(self, option_string: str) -> list[Any]:
        """What a shortened option may mean. Words that the help leaves out make none of the others ambiguous."""
        return [found for found in super()._get_option_tuples(option_string) if not isinstance(found[0], Off)]

    def format_help(self) -> str:
        """Help with everything as it was declared, also while the command line is parsed; a short usage."""
        needed, defaults = getattr(self, "_as_declared", ([], {}))
        with contextlib.ExitStack() as stack:
            stack.enter_context(_altered(needed, "required", True))
            for action, default in defaults.items():
                stack.enter_context(_altered([action], "default", default))
            if self.command:
                stack.enter_context(_altered([self], "usage", self._short_usage()))
            return super().format_help()

    def _short_usage(self) -> str:
        """What has to be there by name; the rest as ``[options]``."""
        words = [f"{a.option_strings[-1]} {a.metavar or a.dest.upper()}" for a in settable(self) if a.required]
        for action in self._actions:
            if not action.option_strings:
                name = str(action.metavar or action.dest).upper()
                words.append(f"[{name}]" if action.nargs == "?" else name)
        return " ".join(("%(prog)s", *words, "[options]"))

    def _fill(self, parsed: argparse.Namespace, needed: Sequence[argparse.Action], groups: Sequence[Any]) -> None:
        """Add to ``parsed`` what weaker sources give, and the defaults; complain if something is still missing."""
        actions = settable(self)
        typed = {a.dest: Given(getattr(parsed, a.dest), COMMAND_LINE) for a in actions if hasattr(parsed, a.dest)}
        exclusive = [[action.dest for action in group._group_actions] for group in self._mutually_exclusive_groups]
        rivals = [*getattr(parsed, "rivals", ()), *exclusive]
        defaults = {action.dest: action.default for action in actions}
        chosen = merge([typed, *self._weaker(parsed)], rivals, defaults)
        for action in actions:
            given = chosen.get(action.dest) or Given(self._default(action), DEFAULT)
            setattr(parsed, action.dest, given.value)
        parsed.sources = {dest: given.source for dest, given in chosen.items()}
        if not parsed.show_config:
            self._demand(chosen, needed, groups)

    def _weaker(self, parsed: argparse.Namespace) -> list[Layer]:
        """What variables and the file give, the strongest first; warns of variables that mean nothing."""
        command = Command(self.command, self, getattr(parsed, "renamed", {}), self.others)
        parsed.strays = command.stray(self.environ, getattr(parsed, "variables", ()))
        own, common = command.environment(self.environ)
        like: str = getattr(parsed, "like", "")
        likewise = replace(command, name=like).environment(self.environ)[0] if like else {}
        layers = [own, likewise, common]
        found = find_file(parsed.config, self.environ)
        if found is not None:
            layers += command.file(str(found[0]), read_tables(*found), self.commands, like)
        return layers

    def _default(self, action: argparse.Action) -> object:
        """As argparse has it: a default in text is read like an argument."""
        return self._get_value(action, action.default) if isinstance(action.default, str) else action.default

    def _demand(self, chosen: Layer, needed: Sequence[argparse.Action], groups: Sequence[Any]) -> None:
        missing = [action.option_strings[-1] for action in needed if action.dest not in chosen]
        if missing:
            self.error(f"the following arguments are required: {', '.join(missing)}")
        for group in groups:
            if not any(action.dest in chosen for action in group._group_actions):
                names = " ".join(action.option_strings[-1] for action in group._group_actions)
                self.error(f"one of the arguments {names} is required")

    def error(self, message: str) -> NoReturn:
        """One line, with the nearest word for one that is none, and exit code 2."""
        wrong = _UNKNOWN.search(message)
        guess = nearest(wrong["option"] or wrong["word"], self._spellings()) if wrong else ""
        self.exit(2, f"error: {message}{guess or f' (`{self.prog} --help` explains)'}\n")

    def _spellings(self) -> list[str]:
        parsers = [self]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += [parser for parser in action.choices.values() if parser.command]
        options = [name for parser in parsers for action in parser._actions for name in action.option_strings]
        return options + [str(one) for action in self._actions for one in action.choices or ()]


@contextlib.contextmanager
def _altered(things: Iterable[Any], name: str, value: object) -> Iterator[None]:
    """Meanwhile the attribute ``name`` of each of ``things`` is ``value``."""
    before = [(thing, getattr(thing, name)) for thing in things]
    try:
        for thing, _ in before:
            setattr(thing, name, value)
        yield
    finally:
        for thing, old in before:
            setattr(thing, name, old)


def add_config_options(group: argparse._ArgumentGroup) -> None:
    """The options that say where options come from."""
    group.add_argument("--config", type=Path, metavar="FILE", help="options in TOML (default: $SWARM_CONFIG, or "
                       "swarm/config.toml in ~/.config); /dev/null: none")  # fmt: skip
    group.add_argument("--show-config", action="store_true", help="print every option with where its value comes "
                       "from, as such a file, and end")  # fmt: skip


def log_sources(options: argparse.Namespace) -> None:
    """Warn of stray variables; at debug level say which options were set elsewhere than on the command line."""
    for warning in getattr(options, "strays", ()):
        _log.warning("%s", warning)
    for dest, source in getattr(options, "sources", {}).items():
        if source != COMMAND_LINE:
            _log.debug("--%s comes from: %s", dest.replace("_", "-"), source)


def show_config(parser: argparse.ArgumentParser, options: argparse.Namespace, command: str) -> str:
    """Every option as a line of a configuration file, with where its value comes from."""
    lines = [f"[{command}]"]
    for action in settable(parser):
        value, source = getattr(options, action.dest), options.sources.get(action.dest, DEFAULT)
        if is_flag(action) and not isinstance(value, bool):
            value = value == action.const
        if value is None:
            lines.append(f"# {key_of(action)} =   # not set")
            continue
        lines.append(f"{key_of(action)} = {_toml(value)}  # {source}")
    return "\n".join(lines)


def _toml(value: object) -> str:
    """A value as TOML. JSON's strings are TOML's, except that TOML has DEL escaped."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value)).replace("\x7f", "\\u007f")
