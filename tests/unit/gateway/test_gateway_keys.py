"""API keys."""

from __future__ import annotations

import hmac

import pytest

from swarm.core.errors import ConfigError
from swarm.gateway.errors import HttpError
from swarm.gateway.keys import KeyRing, read_keys


def test_a_file_of_keys() -> None:
    assert read_keys("# ours\n\n first-key \nsecond-key\n") == ("first-key", "second-key")
    assert read_keys("") == ()


@pytest.mark.parametrize("line", ["short", "with a space in it", "schlüssel-schlüssel", "tab\tbed-key"])
def test_what_is_no_key(line: str) -> None:
    with pytest.raises(ConfigError, match="number 2") as caught:
        read_keys(f"a-good-key\n{line}")
    assert line not in str(caught.value), "even a wrong key may be somebody's secret"


def test_without_keys_everybody_may_ask() -> None:
    KeyRing(()).check(None)


def test_every_key_is_compared_whichever_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the time tells nothing: neither how much of a key is right, nor which one it is."""
    keys = [f"key-number-{number}" for number in range(5)]
    ring = KeyRing(keys)
    compared: list[tuple[bytes, bytes]] = []
    real = hmac.compare_digest

    def counting(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return real(a, b)

    monkeypatch.setattr(hmac, "compare_digest", counting)
    for key in (keys[0], keys[4]):
        compared.clear()
        ring.check(f"Bearer {key}")
        assert len(compared) == 5
        assert all(len(a) == len(b) == 32 for a, b in compared)
    compared.clear()
    with pytest.raises(HttpError):
        ring.check("Bearer \udcff\udcfe")
    assert len(compared) == 5
