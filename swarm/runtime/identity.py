"""The identity file: one Ed25519 key in libp2p's protobuf form, readable by its owner only, used by one process."""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
from pathlib import Path
from types import TracebackType

from swarm.core.errors import ConfigError, IdentityInUseError
from swarm.core.keys import SEED_BYTES, Identity

_MAX_FILE_BYTES = 4096
MAX_PID = 2**22
"""Of Linux, and above those of other systems. To signal process 0 is to signal one's own group."""

_log = logging.getLogger(__name__)


def load_or_create(path: Path) -> Identity:
    """The identity in ``path``; a new one is drawn and written (0600, whole or not at all) if there is no file.

    Two processes that create it at once get the same key. Raises ``ConfigError`` that names the file if it cannot be
    read or written or holds something else.
    """
    try:
        if not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _create(path)
        return _load(path)
    except OSError as error:
        raise ConfigError(
            f"cannot use the identity file {path}: {error.strerror or error}", hint="choose another with --identity"
        ) from error


def _create(path: Path) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(Identity(secrets.token_bytes(SEED_BYTES)).to_protobuf())
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)  # unlike a rename, never replaces another process's key
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)


def _load(path: Path) -> Identity:
    with path.open("rb") as file:
        mode = os.fstat(file.fileno()).st_mode & 0o777
        if mode & 0o077:
            _log.warning("the identity file %s was readable by others (mode %o): now 0600", path, mode)
            os.fchmod(file.fileno(), 0o600)
        data = file.read(_MAX_FILE_BYTES)
    try:
        return Identity.from_protobuf(data)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error.message}", hint=error.hint) from error


def holder_of(path: Path) -> int | None:
    """The process that holds the identity in ``path`` now, None if none does. Raises ``ConfigError`` if its lock cannot
    be read."""
    try:
        descriptor = os.open(path.with_name(path.name + ".lock"), os.O_RDONLY)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read the lock of {path}: {error.strerror}") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        holder = os.read(descriptor, 32).decode("ascii", errors="replace").strip()
        return int(holder) if holder.isdecimal() and 0 < int(holder) <= MAX_PID else None
    finally:
        os.close(descriptor)
    return None


class IdentityLock:
    """Holds an identity file for this process, so that no second one on this machine announces with the same key.

    An exclusive ``flock`` on ``<file>.lock``, which the system releases when the process ends, however it ends. The
    lock file stays: removing it would let a third process lock another file of the same name.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_name(path.name + ".lock")
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; ``IdentityInUseError`` (with the holder's process id) if another process or lock has it."""
        if self._descriptor is not None:
            return
        try:
            self._lock_path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(self._lock_path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise ConfigError(
                f"cannot lock the identity {self._path}: {error.strerror}",
                hint="name a key file that this user may write with --identity, or set XDG_DATA_HOME to such a folder",
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 32).decode("ascii", errors="replace").strip()
            os.close(descriptor)
            by = f" by process {holder}" if holder.isdecimal() else ""
            raise IdentityInUseError(
                f"the identity {self._path} is in use{by}", hint="stop it, or start this one with its own --identity"
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode("ascii"))
        self._descriptor = descriptor

    def release(self) -> None:
        """Give the lock back. Idempotent."""
        if self._descriptor is not None:
            os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None

    def __enter__(self) -> IdentityLock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
