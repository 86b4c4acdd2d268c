"""Every option of every command can be set on the command line, by a variable and in a file, and means the same."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from swarm.cli.main import COMMANDS, _every_key, _install
from swarm.cli.options.parser import CommandParser, show_config
from swarm.cli.options.settings import COMMON, Off, is_flag, key_of, opposite_of, settable, takes_many, variables_of
from swarm.core.errors import ConfigError

DOC = Path(__file__).parents[4] / "docs" / "configuration.md"
PEER = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWGzc2rWz44EuzugTtqHrkn7iqXTnBzwB8vat8nD2tkw1i"


EMPTY = {"SWARM_CONFIG": "", "XDG_CONFIG_HOME": "/nonexistent"}


def parser_of(command: str, environ: dict[str, str] | None = None) -> CommandParser:
    parser = CommandParser(prog=f"swarm {command}")
    _install(command, parser)
    parser.environ = {**EMPTY, **(environ or {})}
    return parser


def options_of(command: str) -> list[argparse.Action]:
    return settable(parser_of(command))


def positional_of(parser: argparse.ArgumentParser) -> list[str]:
    """Something for every argument that has to be there."""
    needed = [action for action in parser._actions if not action.option_strings and action.nargs is None]
    return [str(next(iter(action.choices))) if action.choices else "x" for action in needed]


EACH = [pytest.param(command, key_of(action), id=f"{command} --{key_of(action)}")
        for command in COMMANDS for action in options_of(command)]  # fmt: skip


def sample(action: argparse.Action) -> tuple[list[str], str, object]:
    """A value that is not the default: as words of the command line, as a variable's text, as TOML's value."""
    option = action.option_strings[-1]
    if is_flag(action):
        return [option], "yes", True
    if isinstance(action, argparse._CountAction):
        return [option, option], "2", 2
    words = ["a b", "c"] if takes_many(action) else ["some text"]
    if action.choices:
        words = [str(next(choice for choice in action.choices if str(choice) != str(action.default)))]
    elif action.type in (int, float):
        words = ["7"]
    if isinstance(action, argparse._AppendAction):
        typed = [word for item in words for word in (option, item)]
    else:
        typed = [option, *words]
    text = " ".join(f'"{word}"' for word in words) if takes_many(action) else words[0]
    if takes_many(action):
        return typed, text, words
    return typed, text, int(words[0]) if action.type in (int, float) else words[0]


def toml(tables: dict[str, dict[str, Any]]) -> str:
    lines = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items())]
    return "\n".join(lines)


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def parsed(parser: CommandParser, *typed: str) -> dict[str, object]:
    """The options, with everything that has to be there beside."""
    needed = [action for action in settable(parser) if action.required]
    for action in needed:
        action.required = False
    for action in parser._actions:
        if not action.option_strings and action.nargs is None:
            action.nargs = "?"
    values = vars(parser.parse_args(typed))
    return {action.dest: values[action.dest] for action in settable(parser)}


@pytest.fixture(scope="module")
def parsers() -> dict[str, CommandParser]:
    """One of each command's; parsing leaves no traces in them."""
    return {command: parser_of(command) for command in COMMANDS}


@pytest.mark.parametrize(("command", "key"), EACH)
def test_every_option_every_way(
    command: str, key: str, parsers: dict[str, CommandParser], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = parsers[command]
    action = next(action for action in settable(parser) if key_of(action) == key)
    typed, text, value = sample(action)
    bare, expected = parsed(parser), parsed(parser, *typed)
    assert expected[action.dest] != bare[action.dest], "the sample is the default"
    for name in variables_of(action, command, parser.get_default("renamed") or {}):
        monkeypatch.setattr(parser, "environ", {**EMPTY, name: text})
        assert parsed(parser) == expected, name
    monkeypatch.setattr(parser, "environ", EMPTY)
    file, strange = tmp_path / "options.toml", tmp_path / "strange.toml"
    for table in (command, COMMON):
        assert parsed(parser, "--config", str(written(file, toml({table: {key: value}})))) == expected, table
        written(strange, f"[{table}]\n{key} = {{ a = 1 }}")
        with pytest.raises(ConfigError, match=re.escape(f"{strange}, [{table}], {key}")):
            parsed(parser, "--config", str(strange))
    assert parsed(parser) == bare


TAKEN_BACK_BY_ANOTHER = {("health", "no-history")}
"""Where ``--history FILE`` is an option by itself."""
FLAGS = [pytest.param(command, key_of(action), id=f"{command} --{key_of(action)}")
         for command in COMMANDS for action in options_of(command)
         if is_flag(action) or isinstance(action, argparse._CountAction)
         if (command, key_of(action)) not in TAKEN_BACK_BY_ANOTHER]  # fmt: skip


@pytest.mark.parametrize(("command", "key"), FLAGS)
def test_the_command_line_takes_every_flag_back(
    command: str, key: str, parsers: dict[str, CommandParser], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parser = parsers[command]
    action = next(action for action in settable(parser) if key_of(action) == key)
    typed, text, value = sample(action)
    bare, set_, off = parsed(parser), parsed(parser, *typed), opposite_of(action)
    assert parsed(parser, off) == bare
    assert parsed(parser, *typed, off) == bare, "the later counts"
    assert parsed(parser, off, *typed) == set_
    for name in variables_of(action, command, parser.get_default("renamed") or {}):
        monkeypatch.setattr(parser, "environ", {**EMPTY, name: text})
        assert parsed(parser, off) == bare, name
    monkeypatch.setattr(parser, "environ", EMPTY)
    for table in (command, COMMON):
        file = written(tmp_path / "options.toml", toml({table: {key: value}}))
        assert parsed(parser, "--config", str(file)) == set_
        assert parsed(parser, "--config", str(file), off) == bare, table
    with pytest.raises(ConfigError, match="no option of"):
        parsed(parser, "--config", str(written(file, toml({command: {off.removeprefix("--"): True}}))))


@pytest.mark.parametrize("command", COMMANDS)
def test_words_that_take_back_are_no_clutter(command: str) -> None:
    """Neither in the help, nor in what a shortened option may mean."""
    shown, parser = parser_of(command).format_help(), parser_of(command)
    offs = [action for action in parser._actions if isinstance(action, Off)]
    assert offs
    for off in offs:
        (word,) = off.option_strings
        assert not re.search(rf"^ +{word}(?![\w-])", shown, re.MULTILINE)
        assert not any(found[0] is off for found in parser._get_option_tuples(word[:-1]))
        with pytest.raises(SystemExit):
            parsed(parser, word[:-1] + "-")


def test_a_history_file_takes_no_history_back(tmp_path: Path) -> None:
    file = written(tmp_path / "options.toml", toml({"health": {"no-history": True}}))
    there = ["--config", str(file), "--initial-peers", PEER]
    options = parser_of("health").parse_args([*there, "--history", "kept.sqlite"])
    assert (options.no_history, options.history) == (False, Path("kept.sqlite"))
    assert parser_of("health").parse_args(there).no_history


def test_one_may_join_although_a_file_starts_a_swarm(tmp_path: Path) -> None:
    options = serve(tmp_path, toml({"server": {"new-swarm": True}, COMMON: {"lan": True}}), "--no-new-swarm")
    assert (options.new_swarm, options.lan) == (False, True)


def test_no_variable_means_two_things() -> None:
    meanings = {
        (name, command if shared == 0 else COMMON, key_of(action))
        for command in COMMANDS
        for action in options_of(command)
        for shared, name in enumerate(variables_of(action, command, parser_of(command).get_default("renamed") or {}))
    }
    counts = Counter(name for name, _, _ in meanings)
    assert [name for name, count in counts.items() if count > 1] == []
    assert "SWARM_CONFIG" not in counts
    assert "SWARM_GATEWAY_API_KEYS" not in counts, "that one holds the keys themselves"


@pytest.mark.parametrize(
    ("stronger", "weaker"), [(a, b) for a in range(5) for b in range(a + 1, 5)], ids=lambda rank: str(rank)
)
def test_the_stronger_source_counts(stronger: int, weaker: int, tmp_path: Path) -> None:
    """Command line, variable of the command, variable of all, the command's table, the common table."""
    typed, environ, tables = [], {}, {"server": {}, COMMON: {}}  # type: ignore[var-annotated]
    for rank in (stronger, weaker):
        if rank == 0:
            typed = ["--port", "1000"]
        elif rank in (1, 2):
            environ["SWARM_SERVER_PORT" if rank == 1 else "SWARM_PORT"] = str(1000 + rank)
        else:
            tables["server" if rank == 3 else COMMON]["port"] = 1000 + rank
    file = written(tmp_path / "options.toml", toml(tables))
    assert parsed(parser_of("server", environ), "--config", str(file), *typed)["port"] == 1000 + stronger


def serve(tmp_path: Path, text: str, *typed: str, **environ: str) -> argparse.Namespace:
    file = written(tmp_path / "options.toml", text)
    return parser_of("server", environ).parse_args(["--config", str(file), *typed])


def test_a_typed_rival_overrides_a_file(tmp_path: Path) -> None:
    joins = toml({COMMON: {"initial-peers": [PEER]}})
    options = serve(tmp_path, joins, "--new-swarm")
    assert (options.new_swarm, options.initial_peers) == (True, [])
    starts = toml({COMMON: {"initial-peers": [PEER]}, "server": {"new-swarm": True}})
    options = serve(tmp_path, starts)
    assert (options.new_swarm, options.initial_peers) == (True, []), "the command's table is the stronger one"
    options = serve(tmp_path, starts, SWARM_INITIAL_PEERS=PEER)
    assert (options.new_swarm, options.initial_peers) == (False, [PEER])
    blocks = serve(tmp_path, toml({"server": {"blocks": "0:10"}}), "--num-blocks", "4", "--new-swarm")
    assert (blocks.blocks, blocks.num_blocks) == ("auto", 4)
    auto = serve(tmp_path, toml({"server": {"num-blocks": 4}}), "--blocks", "auto", "--new-swarm")
    assert auto.num_blocks == 4, "a default rivals nobody"


def test_a_contradiction_in_one_source_is_an_error(tmp_path: Path) -> None:
    both = toml({"server": {"initial-peers": [PEER], "new-swarm": True}})
    with pytest.raises(ConfigError, match=r"--initial-peers and --new-swarm exclude each other \(file, .*\[server\]\)"):
        serve(tmp_path, both)
    assert serve(tmp_path, both, "--new-swarm").initial_peers == [], "the command line has the last word"


def test_the_doctor_looks_at_the_server_that_is_described(tmp_path: Path) -> None:
    text = toml({COMMON: {"port": 1, "device": "cpu"}, "server": {"port": 2, "num-blocks": 4}, "doctor": {"limit": 5}})
    file = written(tmp_path / "options.toml", text)

    def doctor(**environ: str) -> argparse.Namespace:
        return parser_of("doctor", environ).parse_args(["--config", str(file)])

    assert (doctor().port, doctor().device, doctor().limit) == (2, "cpu", 5)
    assert doctor(SWARM_PORT="3").port == 3
    assert doctor(SWARM_PORT="3", SWARM_SERVER_PORT="4").port == 4
    assert doctor(SWARM_PORT="3", SWARM_SERVER_PORT="4", SWARM_DOCTOR_PORT="5").port == 5
    assert doctor().sources["port"] == f"file, {file} [server]"
    written(file, toml({"server": {"prot": 2}}))
    with pytest.raises(ConfigError, match=r"\[server\]: 'prot' is no option of any command"):
        doctor()


def test_a_flag_can_be_turned_off_again(tmp_path: Path) -> None:
    assert not serve(tmp_path, toml({"server": {"json": True}}), SWARM_SERVER_JSON="0").json
    assert serve(tmp_path, toml({COMMON: {"json": True}, "server": {"json": False}})).json is False


def test_a_file_satisfies_what_is_required(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path / "options.toml", toml({"route": {"cluster": "swarm.json"}}))
    assert parser_of("route").parse_args(["--config", str(file)]).cluster == "swarm.json"
    with pytest.raises(SystemExit):
        parser_of("route").parse_args([])
    assert "required: --cluster" in capsys.readouterr().err


def test_help_shows_options_as_they_were_declared(capsys: pytest.CaptureFixture[str]) -> None:
    """Also while a command line is parsed, when nothing is required and no default counts."""
    parser = parser_of("route")
    parser.add_argument("--hops", type=int, default=3, help="how many (default: %(default)s)")
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    told = capsys.readouterr().out
    assert told.startswith("usage: swarm route --cluster FILE [options]\n")
    assert "(default: 3)" in told


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("[server]\nnum-blokcs = 3", ("[server]", "'num-blokcs'", "did you mean num-blocks?")),
        ("[common]\nmodle = 'demo'", ("[common]", "'modle'", "did you mean model?")),
        ("[sever]\nport = 3", ("[sever]", "did you mean server?")),
        ("port = 3", ("'port' stands in no table", "[common]")),
        ("[server]\nport = 'x'", ("[server], port", "invalid int value: 'x'", "what --port takes")),
        ("[server]\nport = 3.5", ("[server], port", "invalid int value: '3.5'")),
        ("[server]\nport = [1, 2]", ("[server], port", "one value, not a list")),
        ("[server]\nport = true", ("[server], port", "neither text nor a number")),
        ("[server]\ndtype = 'float23'", ("[server], dtype", "invalid choice: 'float23'")),
        ("[server]\nnew-swarm = 1", ("[server], new-swarm", "1 is neither true nor false")),
        ("[server]\nverbose = -1", ("[server], verbose", "no number of times")),
        ("[server]\nnum-blocks = 1\nnum_blocks = 2", ("[server]", "'num-blocks' and 'num_blocks' are one option")),
        ("[server]\nport = \n", ("no TOML", "line 2")),
        ("[server]\nport = 1\nport = 2\n", ("no TOML", "line 3")),
    ],
)
def test_mistakes_in_a_file_name_the_place_and_the_fix(text: str, parts: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        serve(tmp_path, text, "--new-swarm")
    rest = str(caught.value)
    for part in ("options.toml", *parts):
        _, found, rest = rest.partition(part)
        assert found, f"{part!r} is not in {caught.value}, or not in this order"


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("SWARM_SERVER_PORT", "x", "invalid int value: 'x'"),
        ("SWARM_PORT", "tcp://10.0.0.1:80", "invalid int value"),
        ("SWARM_SERVER_NEW_SWARM", "perhaps", "'perhaps' is neither true nor false"),
        ("SWARM_INITIAL_PEERS", "'open", "No closing quotation"),
        ("SWARM_VERBOSE", "very", "no number of times"),
    ],
)
def test_mistakes_in_a_variable_name_it(name: str, text: str, part: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"{name}: ") + ".*" + re.escape(part)):
        parser_of("server", {name: text}).parse_args(["--new-swarm"])


def test_a_stray_variable_is_told_and_an_empty_one_is_none() -> None:
    environ = {"SWARM_SERVER_NUM_BLOKS": "3", "SWARM_SERVER_PORT": "", "SWARM_GATEWAY_API_KEYS": "secret"}
    options = parser_of("server", environ).parse_args(["--new-swarm"])
    assert options.strays == [
        "SWARM_SERVER_NUM_BLOKS is no option of server and does nothing (did you mean SWARM_SERVER_NUM_BLOCKS?)"
    ]
    assert options.port == 0
    gateway = parser_of("gateway", environ).parse_args(["--initial-peers", PEER])
    assert gateway.strays == []
    assert gateway.api_keys is None
    assert "secret" not in repr(gateway)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_bytes(b"\xff")])
def test_a_file_that_cannot_be_read(make: Any, tmp_path: Path) -> None:
    path = tmp_path / "options.toml"
    make(path)
    for typed, environ, by in ((["--config", str(path)], {}, "--config"), ([], {"SWARM_CONFIG": str(path)}, "SWARM_C")):
        with pytest.raises(ConfigError, match=f"options.toml .{by}"):
            parser_of("server", environ).parse_args([*typed, "--new-swarm"])


def test_the_users_own_file_is_read_if_there_is_one(tmp_path: Path) -> None:
    (tmp_path / "swarm").mkdir()
    written(tmp_path / "swarm" / "config.toml", toml({COMMON: {"public-name": "ada", "new-swarm": True}}))
    options = parser_of("server", {"XDG_CONFIG_HOME": str(tmp_path)}).parse_args([])
    assert options.public_name == "ada"
    assert options.sources["public_name"] == f"file, {tmp_path}/swarm/config.toml [common]"
    other = parser_of("server", {"XDG_CONFIG_HOME": str(tmp_path), "SWARM_CONFIG": "/dev/null"})
    assert other.parse_args(["--new-swarm"]).public_name == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_shown_can_be_read_again(command: str, tmp_path: Path) -> None:
    parser = parser_of(command)
    positional = positional_of(parser)
    first = parser.parse_args(["--show-config", "--log-level", "info", *positional])
    file = written(tmp_path / "shown.toml", shown := show_config(parser, first, command))
    assert 'log-level = "info"  # command line' in shown
    second = parser_of(command).parse_args(["--show-config", "--config", str(file), *positional])
    for action in settable(parser):
        assert getattr(second, action.dest) == getattr(first, action.dest), action.dest


def test_the_documents_example_is_right(tmp_path: Path) -> None:
    """Each table that the document shows is accepted by its command, and each variable it names exists."""
    text = DOC.read_text(encoding="utf-8")
    example = "\n".join(re.findall(r"```toml.*?\n(.*?)```", text, re.DOTALL))
    file = written(tmp_path / "config.toml", example)
    tables = re.findall(r"^\[([a-z-]+)\]", example, re.MULTILINE)
    assert {COMMON, "server", "gateway", "bootstrap"} <= set(tables)
    for command in set(tables) - {COMMON}:
        parser = parser_of(command)
        positional = positional_of(parser)
        parser.parse_args(["--show-config", "--config", str(file), *positional])
    names = {n for c in COMMANDS for a in options_of(c)
             for n in variables_of(a, c, parser_of(c).get_default("renamed") or {})}  # fmt: skip
    told = set(re.findall(r"\bSWARM_[A-Z_]+\b(?!_*<)", text)) - {"SWARM_CONFIG", "SWARM_GATEWAY_API_KEYS"}
    assert told
    assert told <= names


def test_every_command_has_options_for_its_settings() -> None:
    for command, (module, _) in COMMANDS.items():
        assert import_module(f"swarm.cli.commands.{module}")
        assert {"log-level", "verbose"} <= {key_of(action) for action in options_of(command)}
    assert {"initial-peers", "num-blocks", "api-keys"} <= _every_key()
