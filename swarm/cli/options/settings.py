"""Options given by a configuration file or by environment variables, held to the command line's own rules.

Written over argparse's actions, so that an option needs no second description: its type, its choices and how many
values it takes count wherever the value comes from.
"""

from __future__ import annotations

import argparse
import difflib
import os
import shlex
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swarm.core.errors import ConfigError

PREFIX = "SWARM_"
COMMON = "common"
"""The file's table for every command that has the option."""
AT_ONCE = ("help", "version", "config", "show_config")
"""Options that are no settings."""
YES = ("1", "true", "yes", "on")
NO = ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Given:
    """A value for an option, and where it comes from, in words."""

    value: object
    source: str


Layer = dict[str, Given]
"""What one source gives, by the option's name in the namespace."""


def settable(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """The options of a command that a file or a variable may set: all but ``AT_ONCE``; not its positional arguments."""
    return [
        action
        for action in parser._actions
        if action.option_strings and action.dest not in AT_ONCE and not isinstance(action, Off)
    ]


def key_of(action: argparse.Action) -> str:
    """An option's key in a file: its long name without the dashes."""
    long = [name for name in action.option_strings if name.startswith("--")]
    return (long or action.option_strings)[0].lstrip("-")


def variables_of(action: argparse.Action, command: str, renamed: Mapping[str, str]) -> tuple[str, str]:
    """The variables that set an option: for this command alone, and for every command that has it.

    ``renamed`` holds, by the option's name in the namespace, another key for variables where the plain one means
    something else.
    """
    stem = renamed.get(action.dest, key_of(action))
    return tuple(PREFIX + _upper(name) for name in (f"{command}-{stem}", stem))  # type: ignore[return-value]


def _upper(key: str) -> str:
    return key.replace("-", "_").upper()


# -- one value ----------------------------------------------------------------------------------------------


def is_flag(action: argparse.Action) -> bool:
    """True for an option that takes no value."""
    return isinstance(action, argparse._StoreConstAction | argparse.BooleanOptionalAction)


def opposite_of(action: argparse.Action) -> str:
    """The word that takes a flag back: ``--no-json`` for ``--json``, ``--page`` for ``--no-page``."""
    key = key_of(action)
    return f"--{key.removeprefix('no-')}" if key.startswith("no-") else f"--no-{key}"


class Off(argparse.Action):
    """Takes back a flag that a weaker source may have set. No setting of its own, and not in the help."""

    def __init__(self, option_strings: Sequence[str], dest: str, const: object) -> None:
        super().__init__(option_strings, dest, nargs=0, const=const, default=argparse.SUPPRESS, help=argparse.SUPPRESS)

    def __call__(
        self, parser: object, namespace: argparse.Namespace, values: object, option: str | None = None
    ) -> None:
        setattr(namespace, self.dest, self.const)


def add_opposites(parser: argparse.ArgumentParser) -> None:
    """For each flag the word that takes it back (``opposite_of``), where no other option is called that."""
    for action in settable(parser):
        word = opposite_of(action)
        free = word not in parser._option_string_actions
        if free and isinstance(action, argparse._StoreTrueAction | argparse._CountAction):
            parser.add_argument(word, dest=action.dest, action=Off, const=action.default)


def takes_many(action: argparse.Action) -> bool:
    """True for an option that takes several values, or that may be given several times."""
    return isinstance(action, argparse._AppendAction) or action.nargs in ("+", "*") or isinstance(action.nargs, int)


def from_text(parser: argparse.ArgumentParser, action: argparse.Action, text: str) -> object:
    """The value that a variable's ``text`` means: a list is split as a shell does, a flag is true or false.

    Raises ``ValueError`` that says what is wrong with it.
    """
    if is_flag(action):
        if (word := text.strip().lower()) not in (*YES, *NO):
            raise ValueError(f"{text!r} is neither true nor false")
        return _flag(action, on=word in YES)
    if isinstance(action, argparse._CountAction):
        return _count(int(text) if text.strip().isdecimal() else text)
    return _taken(parser, action, shlex.split(text) if takes_many(action) else [text])


def from_toml(parser: argparse.ArgumentParser, action: argparse.Action, value: object) -> object:
    """The value that a file's ``value`` means; ``ValueError`` that says what is wrong with it."""
    if is_flag(action):
        if not isinstance(value, bool):
            raise ValueError(f"{value!r} is neither true nor false")
        return _flag(action, on=value)
    if isinstance(action, argparse._CountAction):
        return _count(value)
    if isinstance(value, list) and not takes_many(action):
        raise ValueError("it takes one value, not a list")
    return _taken(parser, action, [_word(item) for item in (value if isinstance(value, list) else [value])])


def _flag(action: argparse.Action, *, on: bool) -> object:
    """What the option stands for when it is given, and its default when it is not."""
    if isinstance(action, argparse.BooleanOptionalAction):
        return on
    return action.const if on else action.default


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no number of times")
    return value


def _word(item: object) -> str:
    """A single value as it would stand on the command line."""
    if isinstance(item, bool) or not isinstance(item, str | int | float):
        raise ValueError(f"{item!r} is neither text nor a number")
    return str(item)


def _taken(parser: argparse.ArgumentParser, action: argparse.Action, words: Sequence[str]) -> object:
    """What the command line would make of ``words`` after the option; nothing at all is a list's empty default."""
    if not words and action.default == []:
        return []
    if isinstance(action.nargs, int) and len(words) != action.nargs:
        raise ValueError(f"it takes {action.nargs} values, not {len(words)}")
    if not words:
        raise ValueError("it takes a value")
    if action.type is Path:
        words = [os.path.expanduser(word) for word in words]
    try:
        if isinstance(action, argparse._AppendAction) and action.nargs is None:
            return [parser._get_values(action, [word]) for word in words]
        return parser._get_values(action, list(words))
    except argparse.ArgumentError as error:
        raise ValueError(error.message) from error


# -- sources ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Command:
    """One command's options. ``others`` says which keys any command has: only asked where this one lacks a key."""

    name: str
    parser: argparse.ArgumentParser
    renamed: Mapping[str, str]
    others: Callable[[], Collection[str]]

    @property
    def _options(self) -> dict[str, argparse.Action]:
        return {key_of(action): action for action in settable(self.parser)}

    def _refused(self, where: str, action: argparse.Action, error: ValueError) -> ConfigError:
        hint = f"it takes what {action.option_strings[-1]} takes, see `python -m swarm {self.name} --help`"
        return ConfigError(f"{where}: {error}", hint=hint)

    def environment(self, environ: Mapping[str, str]) -> tuple[Layer, Layer]:
        """What the variables for this command say, and those for all; an empty one counts as not set.

        Raises ``ConfigError`` that names the variable.
        """
        layers: tuple[Layer, Layer] = ({}, {})
        for action in settable(self.parser):
            for layer, name in zip(layers, variables_of(action, self.name, self.renamed), strict=True):
                if not (text := environ.get(name, "")):
                    continue
                try:
                    layer[action.dest] = Given(from_text(self.parser, action, text), f"environment, {name}")
                except ValueError as error:
                    raise self._refused(name, action, error) from error
        return layers

    def stray(self, environ: Mapping[str, str], known: Collection[str]) -> list[str]:
        """Warnings about variables that look as if they were meant for this command, and are not."""
        mine = {name for a in settable(self.parser) for name in variables_of(a, self.name, self.renamed)}
        prefix = PREFIX + _upper(self.name) + "_"
        strays = sorted(name for name in environ if name.startswith(prefix) and name not in mine and name not in known)
        return [f"{name} is no option of {self.name} and does nothing{nearest(name, mine)}" for name in strays]

    def file(
        self, path: str, tables: Mapping[str, object], commands: Collection[str], like: str = ""
    ) -> tuple[Layer, Layer, Layer]:
        """What a file's table for this command says, the table of the command that it is ``like``, and that for all.

        Raises ``ConfigError`` that names file, table and key, and says what may stand there.
        """
        for name, table in tables.items():
            if not isinstance(table, dict):
                hint = f"put it under [{COMMON}], or under a command's name, like [server]"
                raise ConfigError(f"{path}: {name!r} stands in no table", hint=hint)
            if name != COMMON and name not in commands:
                hint = nearest(name, [COMMON, *commands]).strip(" ()") or f"tables are [{COMMON}] and commands' names"
                raise ConfigError(f"{path}: there is no command for the table [{name}]", hint=hint)
        own, others, common = (self._table(path, name, tables) for name in (self.name, like, COMMON))
        return own, others, common

    def _table(self, path: str, name: str, tables: Mapping[str, object]) -> Layer:
        table, options, layer = tables.get(name, {}), self._options, Layer()
        assert isinstance(table, dict)  # checked by the caller
        written: dict[str, str] = {}
        for key, value in table.items():
            plain = key.replace("_", "-")
            if plain in written:
                both = f"{written[plain]!r} and {key!r} are one option"
                raise ConfigError(f"{path}, [{name}]: {both}", hint="leave one of them out")
            written[plain] = key
            if (action := options.get(plain)) is None:
                if name == self.name or plain not in self.others():
                    raise self._unknown(path, name, key, options)
                continue
            try:
                given = Given(from_toml(self.parser, action, value), f"file, {path} [{name}]")
            except ValueError as error:
                raise self._refused(f"{path}, [{name}], {key}", action, error) from error
            layer[action.dest] = given
        return layer

    def _unknown(self, path: str, name: str, key: str, options: Iterable[str]) -> ConfigError:
        whose = name if name == self.name else "any command"
        hint = nearest(key, options if name == self.name else self.others()).strip(" ()")
        return ConfigError(
            f"{path}, [{name}]: {key!r} is no option of {whose}",
            hint=hint or "`--show-config` of the command lists what there is",
        )


def nearest(name: str, names: Iterable[str]) -> str:
    """`` (did you mean …?)`` for the one of ``names`` that is most like ``name``; empty if none is."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f" (did you mean {found[0]}?)" if found else ""


# -- which source counts ------------------------------------------------------------------------------------


def merge(layers: Sequence[Layer], rivals: Sequence[Sequence[str]], defaults: Mapping[str, object]) -> Layer:
    """Each option from the first of ``layers`` (the strongest source first) that gives it.

    Of ``rivals``, groups of options that exclude each other, a stronger source's drops the weaker sources' others; a
    value that is the default rivals nobody. Two in one source are an error (of the command line, the command's own).
    """
    chosen: Layer = {}

    def active(dest: str, where: Layer) -> bool:
        return dest in where and where[dest].value != defaults.get(dest)

    for rank, layer in enumerate(layers):
        shut = {
            dest for group in rivals for dest in group if any(active(one, chosen) for one in group if one != dest)
        }  # fmt: skip
        for group in rivals:
            both = [dest for dest in group if dest not in shut and active(dest, layer)]
            if rank > 0 and len(both) > 1:
                names = " and ".join("--" + dest.replace("_", "-") for dest in both)
                source = layer[both[0]].source
                raise ConfigError(f"{names} exclude each other ({source})", hint="leave one of them out there")
        for dest, given in layer.items():
            if dest not in shut:
                chosen.setdefault(dest, given)
    return chosen
