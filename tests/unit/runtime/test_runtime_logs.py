"""Logging: levels, noise, tracebacks and what peers may not do to a terminal."""

from __future__ import annotations

import io
import json
import logging
from pathlib import Path

import pytest

from swarm.core.errors import ConfigError
from swarm.runtime.folders import data_folder
from swarm.runtime.logs import printable, setup_logging


def test_default_is_quiet_and_short() -> None:
    out = io.StringIO()
    setup_logging(stream=out)
    logging.getLogger("swarm.server").info("not this")
    logging.getLogger("hivemind.dht").error("nor this")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("swarm.server").exception("it failed")
    assert out.getvalue().splitlines()[0].endswith("error server: it failed")
    assert len(out.getvalue().splitlines()) == 1


def test_one_v_is_debug_with_tracebacks_and_two_show_others() -> None:
    out = io.StringIO()
    setup_logging("error", verbosity=1, stream=out)
    logging.getLogger("swarm.x").debug("seen")
    logging.getLogger("hivemind.dht").warning("unseen")
    try:
        raise ValueError("boom")
    except ValueError:
        logging.getLogger("swarm.x").exception("it failed")
    assert "seen" in out.getvalue()
    assert "Traceback" in out.getvalue()
    assert "unseen" not in out.getvalue()
    again = io.StringIO()
    setup_logging(verbosity=2, stream=again)
    logging.getLogger("hivemind.dht").debug("now seen")
    logging.getLogger("swarm.x").debug("once")
    assert "now seen" in again.getvalue()
    assert again.getvalue().count("once") == 1
    assert "once" not in out.getvalue()


def test_json_lines_are_json() -> None:
    out = io.StringIO()
    setup_logging("info", json_lines=True, stream=out)
    logging.getLogger("swarm.server").info("a\n%s", "b")
    (line,) = out.getvalue().splitlines()
    event = json.loads(line)
    assert (event["level"], event["logger"], event["message"]) == ("info", "swarm.server", "a\nb")
    assert event["time"] > 1.6e9


def test_an_unknown_level_is_named() -> None:
    with pytest.raises(ConfigError, match="loud"):
        setup_logging("loud")


def test_a_peers_text_stays_on_its_line() -> None:
    out = io.StringIO()
    setup_logging(stream=out)
    logging.getLogger("swarm.x").warning("peer says %s", "hi\n12:00:00 error server: fake \x1b[2J\u202e")
    assert len(out.getvalue().splitlines()) == 1
    assert "\x1b" not in out.getvalue()
    assert printable("plain – text") == "plain – text"
    assert printable("a\tb\ud800") == r"a\tb\ud800"


def test_folders_follow_xdg_and_ignore_relative_paths() -> None:
    assert data_folder({"XDG_DATA_HOME": "/d"}) == Path("/d/swarm")
    assert data_folder({"XDG_DATA_HOME": "d", "HOME": "/home/me"}) == Path("/home/me/.local/share/swarm")
    assert data_folder({"HOME": "/home/me", "XDG_DATA_HOME": ""}) == Path("/home/me/.local/share/swarm")
    assert data_folder({}).name == "swarm"


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: int) -> None:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("pwd.getpwuid", nobody)
    monkeypatch.delenv("HOME")
    with pytest.raises(ConfigError, match="no home folder"):
        data_folder({})
    assert data_folder({"XDG_DATA_HOME": "/d"}) == Path("/d/swarm")
