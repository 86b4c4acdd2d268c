"""The identity file and its lock."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from swarm.core.errors import ConfigError, IdentityInUseError
from swarm.runtime.identity import IdentityLock, load_or_create


def test_a_new_identity_is_private_and_stays_the_same(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "er" / "key"
    identity = load_or_create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_or_create(path).peer_id == identity.peer_id
    assert os.listdir(path.parent) == ["key"]  # no draft left
    assert path.read_bytes() == identity.to_protobuf()


def test_racing_creators_agree_on_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        peers = list(pool.map(lambda _: load_or_create(tmp_path / "key").peer_id, range(16)))
    assert len(set(peers)) == 1


def test_an_open_file_is_closed_to_others(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    identity = load_or_create(tmp_path / "key")
    (tmp_path / "key").chmod(0o644)
    assert load_or_create(tmp_path / "key").peer_id == identity.peer_id
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert "readable by others" in caplog.text


@pytest.mark.parametrize("content", [b"", b"hello", b"\x08\x01\x12\x40" + bytes(64), bytes(100_000)])
def test_a_damaged_file_is_named_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "key").write_bytes(content)
    with pytest.raises(ConfigError, match="key") as caught:
        load_or_create(tmp_path / "key")
    assert caught.value.hint
    assert (tmp_path / "key").read_bytes() == content


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match="file/key"):
        load_or_create(tmp_path / "file" / "key")
    with pytest.raises(ConfigError, match="file/key"):
        IdentityLock(tmp_path / "file" / "key").acquire()
    with pytest.raises(ConfigError, match="directory"):
        load_or_create(tmp_path)


def test_the_lock_keeps_a_second_holder_out_and_names_the_first(tmp_path: Path) -> None:
    first, second = IdentityLock(tmp_path / "key"), IdentityLock(tmp_path / "key")
    with first:
        first.acquire()  # again is nothing
        with pytest.raises(IdentityInUseError, match=f"process {os.getpid()}") as caught:
            second.acquire()
        assert "--identity" in caught.value.hint
        with IdentityLock(tmp_path / "another"):
            pass
    with second:
        pass
    second.release()


def test_the_lock_works_between_processes_and_dies_with_its_holder(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sys; from pathlib import Path; from swarm.runtime.identity import IdentityLock\n"
            "IdentityLock(Path(sys.argv[1])).acquire(); print('held', flush=True); sys.stdin.read()",
            str(tmp_path / "key"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(IdentityInUseError, match=f"process {holder.pid}"):
            IdentityLock(tmp_path / "key").acquire()
        holder.kill()
        holder.wait()
    with IdentityLock(tmp_path / "key"):
        pass
