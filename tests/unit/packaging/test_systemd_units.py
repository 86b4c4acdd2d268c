"""The units of packaging/systemd: what systemd thinks of them, and that they say what the commands understand."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from swarm.cli.main import main
from swarm.server.config import ServerConfig

FOLDER = Path(__file__).parents[3] / "packaging" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
EXAMPLES = sorted(FOLDER.glob("*.env"))
INSTALLED = "/opt/swarm/venv/bin/python"
MAX_EXPOSURE = 20
"""Of 100, as ``systemd-analyze security`` counts: 0 is a service that can do nothing."""


def read(path: Path) -> dict[str, dict[str, list[str]]]:
    """Sections, keys and their values in order; fails on a line that is none of these."""
    sections: dict[str, dict[str, list[str]]] = {}
    for line in path.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), defaultdict(list))
        else:
            key, equals, value = line.partition("=")
            assert equals, line
            section[key].append(value)
    return sections


def installed(unit: Path, folder: Path) -> Path:
    """The unit as it would stand in /etc/systemd/system, its program being one that exists here."""
    there = folder / unit.name.replace("@.", "@main.")
    there.write_text(unit.read_text().replace(INSTALLED, sys.executable))
    return there


def test_there_is_a_unit_for_each_service() -> None:
    names = [unit.name for unit in UNITS]
    assert names == [
        "swarm-bootstrap.service",
        "swarm-gateway.service",
        "swarm-health.service",
        "swarm-server@.service",
    ]


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_unit(unit: Path) -> None:
    service = read(unit)["Service"]
    [command] = service["ExecStart"]
    assert command.startswith(f"{INSTALLED} -m swarm")
    for key, value in {
        "DynamicUser": "yes", "NoNewPrivileges": "yes", "ProtectSystem": "strict", "ProtectHome": "yes",
        "CapabilityBoundingSet": "", "KillSignal": "SIGINT", "Restart": "on-failure",
    }.items():  # fmt: skip
        assert service[key] == [value], key
    [patience] = service["TimeoutStopSec"]
    assert int(patience) > ServerConfig().drain_timeout_s
    [state] = service["StateDirectory"]
    assert f"XDG_DATA_HOME=%S/{state}" in " ".join(service["Environment"])
    [options] = service["EnvironmentFile"]
    example = FOLDER / Path(options).name.replace("-%i", "")
    assert example in EXAMPLES


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd on this machine")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_systemd_takes_the_unit_and_finds_it_tight(unit: Path, tmp_path: Path) -> None:
    there = installed(unit, tmp_path)
    verified = subprocess.run(["systemd-analyze", "verify", there], capture_output=True, text=True, check=False)
    assert (verified.returncode, verified.stderr) == (0, "")
    judged = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={MAX_EXPOSURE}", "--no-pager", there],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert judged.returncode == 0, judged.stdout + judged.stderr


def settings(path: Path) -> list[tuple[str, str]]:
    """The variables of an example, those too that are commented out."""
    lines = [line.removeprefix("#") for line in path.read_text().splitlines()]
    return [(name, value) for name, _, value in (line.partition("=") for line in lines) if name.startswith("SWARM_")]


@pytest.mark.parametrize(
    ("command", "name", "value"), [(path.stem, *pair) for path in EXAMPLES for pair in settings(path)]
)
def test_each_variable_of_an_example_is_an_option(
    command: str, name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value or "x")
    assert main([command, "--config", "/dev/null", "--show-config"]) == 0
    said = capsys.readouterr()
    assert name in said.out or name == "SWARM_GATEWAY_API_KEYS"  # which holds keys, and is not shown
    assert said.err == ""
