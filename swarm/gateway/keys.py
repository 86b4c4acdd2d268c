"""API keys: who may ask."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from swarm.core.errors import ConfigError
from swarm.gateway.errors import HttpError
from swarm.gateway.options import MAX_KEYS

FEWEST_CHARS = 8
BEARER = "bearer "


def read_keys(text: str) -> tuple[str, ...]:
    """The keys of a file, one a line; blank lines and those that begin with ``#`` are passed over.

    Raises ``ConfigError`` for a key that is short, or not printable ASCII without spaces: no header could carry it.
    """
    lines = [line.strip() for line in text.splitlines()]
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    for number, key in enumerate(keys, start=1):
        if len(key) < FEWEST_CHARS or not (key.isascii() and key.isprintable()) or " " in key:
            raise ConfigError(
                f"API key number {number} is not {FEWEST_CHARS} or more printable ASCII characters without spaces",
                hint="make one with: python -c 'import secrets; print(secrets.token_urlsafe(24))'",
            )
    if len(keys) > MAX_KEYS:
        raise ConfigError(f"{len(keys)} API keys", hint=f"at most {MAX_KEYS}")
    return keys


class KeyRing:
    """Checks what a request says against the known keys, in a time that tells nothing about them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def check(self, authorization: str | None) -> None:
        """Return if the ``Authorization`` header holds a key, or none is needed; ``HttpError`` 401 otherwise."""
        if not self._digests:
            return
        if authorization is None or authorization[: len(BEARER)].lower() != BEARER:
            raise HttpError(401, "this gateway asks for an API key: Authorization: Bearer KEY", code="missing_api_key")
        given = _digest(authorization[len(BEARER) :].strip())
        matches = [hmac.compare_digest(given, known) for known in self._digests]  # all of them, whichever it is
        if not any(matches):
            raise HttpError(401, "this gateway does not know that API key", code="invalid_api_key")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
