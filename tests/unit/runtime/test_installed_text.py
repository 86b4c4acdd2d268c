"""Prose of installed packages."""

from __future__ import annotations

from swarm.runtime.installed_text import installed_descriptions


def test_packages_describe_themselves() -> None:
    """At least those this package needs are there, once each, in order."""
    found = list(installed_descriptions())
    names = [name for name, _ in found]
    assert names == sorted(set(names))
    assert {"numpy", "msgspec"} <= set(names)
    assert all(text.strip() for _, text in found)
