"""The configuration file as it lies there: read to its end, bounded, and never waited for without end."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from swarm.cli.options.config_file import MAX_FILE_BYTES, read_tables
from swarm.core.errors import ConfigError


def test_a_pipe_is_read_to_its_end(tmp_path: Path) -> None:
    """As a shell's ``<(…)`` gives it; more than what a pipe holds at once."""
    pipe, text = tmp_path / "pipe", "[common]\nport = 7\n" + "# word\n" * 30_000
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=(text,))
    writer.start()
    assert read_tables(pipe, "--config") == {"common": {"port": 7}}
    writer.join()


def test_a_pipe_that_nobody_writes_to_or_ends_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match=r"pipe \(--config\) is a pipe that did not end within 0.01 s"):
        read_tables(pipe, "--config", pipe_s=0.01)
    held = os.open(pipe, os.O_RDWR)
    os.write(held, b"[common]")
    with pytest.raises(ConfigError, match=r"did not end within 0.01 s"):
        read_tables(pipe, "--config", pipe_s=0.01)
    os.close(held)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/tty", "/dev/ptmx"])
def test_a_device_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match=f"{device} .SWARM_CONFIG. is a device or a socket"):
        read_tables(Path(device), "SWARM_CONFIG")


def test_the_empty_device_is_an_empty_file() -> None:
    assert read_tables(Path(os.devnull), "--config") == {}


def test_a_file_has_a_largest_size(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"#" * MAX_FILE_BYTES)
    assert read_tables(file, "--config") == {}
    file.write_bytes(b"#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match=f"over {MAX_FILE_BYTES} bytes"):
        read_tables(file, "--config")
