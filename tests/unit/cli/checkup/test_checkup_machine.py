"""The doctor's verdicts on a machine, each fault brought about for real where that can be."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from swarm.cli.apart import apart
from swarm.cli.checkup.compute import judge_device, look_at_device
from swarm.cli.checkup.findings import Check, Finding, Level, Report, ok, run_checks
from swarm.cli.checkup.machine import (
    installed_version,
    judge_memory,
    judge_open_files,
    judge_packages,
    judge_python,
    look_at_packages,
)
from swarm.cli.checkup.storage import check_key, check_reputation, check_writable, free_bytes, judge_disk
from swarm.core.errors import ConfigError
from swarm.engine.survey import Gpu, Survey, survey
from swarm.runtime.clock import SystemClock
from swarm.runtime.identity import load_or_create
from swarm.runtime.reputation import ReputationStore

OLD_DRIVER = "CUDA initialization: The NVIDIA driver on your system is too old (found version 11040)."


def found(*looks: Callable[[Report], Awaitable[None]], limit_s: float = 30.0) -> list[Finding]:
    """What checks report, in the order in which they do."""
    told: list[Finding] = []
    asyncio.run(run_checks([Check("it", look) for look in looks], told.append, limit_s=limit_s))
    return told


def one(finding: Finding, level: Level, *parts: str) -> None:
    """A finding of this level that says ``parts``, and what to do unless all is well."""
    assert finding.level is level, finding
    assert bool(finding.fix) == (level is not Level.OK), finding
    assert all(part in f"{finding.what} {finding.fix}" for part in parts), finding


# -- the running of checks ----------------------------------------------------------------------------------


def test_findings_come_as_they_are_made_and_no_check_stops_another() -> None:
    async def slow(report: Report) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        report(ok("slow", "done"))

    async def wrong(report: Report) -> None:
        raise ConfigError("it is wrong", hint="mend it")

    async def broken(report: Report) -> None:
        raise ZeroDivisionError("by zero")

    async def stuck(report: Report) -> None:
        await asyncio.Event().wait()

    first, second, third, fourth = found(slow, wrong, broken, stuck, limit_s=0.2)
    one(first, Level.ERROR, "it is wrong", "mend it")
    one(second, Level.ERROR, "the check itself failed: ZeroDivisionError: by zero")
    one(third, Level.OK, "done")
    one(fourth, Level.UNKNOWN, "not done in 0.2 s")


def test_a_thread_that_hangs_keeps_no_process_alive() -> None:
    code = """
import asyncio, time
from swarm.cli.apart import apart
from swarm.cli.checkup.findings import Check, run_checks
async def hang(report):
    await apart(lambda: time.sleep(600))
asyncio.run(run_checks([Check("it", hang)], lambda finding: print(finding.level), limit_s=0.1))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("unknown\n", "")


def test_what_a_thread_raises_is_raised() -> None:
    async def ask() -> None:
        assert await apart(lambda: time.sleep(0) or 5) == 5
        with pytest.raises(ConfigError):
            await apart(lambda: load_or_create(Path("/proc/none/key")))

    asyncio.run(ask())


# -- Python, packages, memory, files ------------------------------------------------------------------------


def test_this_very_environment_is_fit() -> None:
    assert {finding.level for finding in found(look_at_packages)} == {Level.OK}


def test_python_and_packages() -> None:
    one(judge_python("3.11.7", ">=3.11"), Level.OK)
    one(judge_python("3.9.1", ">=3.11"), Level.ERROR, "3.9.1", ">=3.11")
    needed = ["numpy<1", "surely-not-there>=2", "msgspec", 'scipy>=99; extra == "test"', 'ruff; python_version < "3"']
    old, missing = judge_packages(needed, installed_version)
    one(old, Level.ERROR, "numpy", "<1 is needed", "pip install 'numpy<1'")
    one(missing, Level.ERROR, "surely-not-there is missing", "pip install 'surely-not-there>=2'")
    [fine] = judge_packages(["msgspec"], installed_version)
    one(fine, Level.OK, "all 1")


def test_memory_and_open_files() -> None:
    one(judge_memory(100_000_000, 8_000_000_000), Level.ERROR, "100.0 MB of 8.0 GB")
    one(judge_memory(1_000_000_000, 8_000_000_000), Level.WARNING)
    one(judge_memory(6_000_000_000, 8_000_000_000), Level.OK)
    one(judge_open_files(-1), Level.OK)
    one(judge_open_files(1024), Level.WARNING, "ulimit -Hn 4096")


def test_a_process_that_may_open_few_files() -> None:
    code = """
import asyncio, resource
from swarm.cli.checkup.machine import look_at_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
asyncio.run(look_at_open_files(lambda finding: print(finding.level, finding.what)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith("error 200 at most"), done.stderr


# -- disks --------------------------------------------------------------------------------------------------


def test_folders(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    one(check_writable("data folder", tmp_path, "XDG_DATA_HOME"), Level.OK, "can be written")
    one(check_writable("data folder", tmp_path / "a" / "b", "XDG_DATA_HOME"), Level.OK, "can be made")
    one(check_writable("data folder", tmp_path / "file" / "a", "XDG_DATA_HOME"), Level.ERROR, "XDG_DATA_HOME")
    one(check_writable("data folder", Path("/proc/1/swarm"), "XDG_DATA_HOME"), Level.ERROR, "cannot be written")
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing is left behind"


def test_keys(tmp_path: Path) -> None:
    key = tmp_path / "a.key"
    one(check_key(key), Level.OK, "made at the first start")
    assert not key.exists()
    peer = load_or_create(key).peer_id
    one(check_key(key), Level.OK, peer[-8:])
    key.chmod(0o644)
    one(check_key(key), Level.WARNING, "mode 644", "chmod 600")
    assert key.stat().st_mode & 0o777 == 0o644, "a check changes nothing"
    key.write_bytes(b"no key")
    one(check_key(key), Level.ERROR, "holds no key")
    one(check_key(tmp_path), Level.ERROR, "cannot be read: Is a directory")


def test_reputation(tmp_path: Path) -> None:
    store = tmp_path / "reputation.sqlite"
    one(check_reputation(store), Level.OK, "nothing is remembered")
    assert not store.exists()
    ReputationStore(store, SystemClock()).close()
    one(check_reputation(store), Level.OK, "no server")
    store.write_bytes(b"this is no database" * 100)

    async def look(report: Report) -> None:
        report(await apart(lambda: check_reputation(store)))

    [damaged] = found(look)
    one(damaged, Level.ERROR, str(store))


def test_disks(tmp_path: Path) -> None:
    one(judge_disk(10_000, 50_000, "/cache"), Level.ERROR, "10.0 kB free", "50.0 kB to be fetched", "XDG_CACHE_HOME")
    one(judge_disk(500_000_000, 0, "/cache"), Level.WARNING)
    one(judge_disk(50_000_000_000, 20_000_000_000, "/cache"), Level.OK)
    assert free_bytes(tmp_path / "not" / "there") == pytest.approx(free_bytes(tmp_path), rel=0.1)


# -- torch --------------------------------------------------------------------------------------------------

GPU = Gpu("NVIDIA H200", 100_000_000_000, 150_000_000_000)


@pytest.mark.parametrize(
    ("seen", "device", "driver", "level", "parts"),
    [
        (Survey("2.7", "CUDA 12.8", (GPU,)), "auto", True, Level.OK, ("NVIDIA H200", "100.0 of 150.0 GB")),
        (Survey("2.7", "CUDA 12.8", (GPU, GPU)), "cuda:1", True, Level.OK, ("of 2 GPUs",)),
        (Survey("2.7", "CUDA 12.8", (GPU,)), "cuda:1", True, Level.ERROR, ("sees 1 GPUs", "cuda:0")),
        (Survey("2.7", "CUDA 12.8", complaint=OLD_DRIVER), "auto", True, Level.WARNING, ("too old", "update")),
        (Survey("2.7", "CUDA 12.8", complaint=OLD_DRIVER), "cuda", True, Level.ERROR, ("too old", "update")),
        (Survey("2.7", ""), "auto", True, Level.WARNING, ("there is an NVIDIA GPU", "CPU build", "pytorch.org")),
        (Survey("2.7", ""), "cuda", False, Level.ERROR, ("CPU build", "pytorch.org")),
        (Survey("2.7", "CUDA 12.8"), "auto", True, Level.WARNING, ("does not see it",)),
        (Survey("2.7", "CUDA 12.8"), "cuda", False, Level.ERROR, ("nvidia-smi",)),
        (Survey("2.7", "", threads=8), "auto", False, Level.WARNING, ("8 threads", "--device cpu")),
        (Survey("2.7", "", threads=8), "cpu", False, Level.OK, ("8 threads",)),
        (Survey("2.7", "", apple=True), "auto", False, Level.OK, ("Apple",)),
        (Survey("2.7", ""), "mps", False, Level.ERROR, ("Apple",)),
        (Survey("2.7", "ROCm 6.3", (GPU,)), "cuda", False, Level.OK, ()),
        (Survey("2.7", ""), "tpu", False, Level.ERROR, ("no device 'tpu'",)),
        (Survey("2.7", ""), "cpu:1", False, Level.ERROR, ("no device 'cpu:1'",)),
    ],
)
def test_devices(seen: Survey, device: str, driver: bool, level: Level, parts: tuple[str, ...]) -> None:
    one(judge_device(seen, device, nvidia_driver=driver), level, *parts)


def test_torch_of_this_machine() -> None:
    torch, device, speed = found(partial(look_at_device, "cpu", "none", speed=True))
    one(torch, Level.OK, survey().torch)
    one(device, Level.OK, "the CPU")
    one(speed, Level.OK, "GB/s")
    if not survey().gpus:
        one(found(partial(look_at_device, "cuda", "none"))[1], Level.ERROR)


def test_a_torch_that_does_not_load(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libtorch_cpu.so: cannot open shared object file')")
    code = """
import asyncio
from swarm.cli.checkup.compute import look_at_device
asyncio.run(look_at_device("auto", "none", lambda finding: print(finding.level, finding.check, finding.what)))
"""
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environ)
    assert done.stdout == "error torch torch cannot be imported: libtorch_cpu.so: cannot open shared object file\n"
