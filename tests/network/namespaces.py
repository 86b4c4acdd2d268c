"""Network namespaces of this machine, joined by a switch that a test can turn off: then nobody hears anybody, and no
connection is told.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

NETWORK = "10.231.7"
"""The first three numbers of all addresses; they exist inside the namespaces only."""
PUBLIC = "45.231.7"
"""The same, for what is done for public addresses alone."""


class Switch:
    """Some network namespaces, each with one address, and one more that holds the bridge between them."""

    def __init__(self, count: int, network: str) -> None:
        self._prefix = f"swarm{os.getpid()}"
        self._count = count
        self._network = network

    def name(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def address(self, number: int) -> str:
        return f"{self._network}.{number + 1}"

    def inside(self, number: int) -> list[str]:
        """What to put before a command that shall run in namespace ``number``."""
        return ["ip", "netns", "exec", self.name(number)]

    def build(self) -> None:
        """Raises ``OSError`` or ``CalledProcessError`` where that is not allowed."""
        self._ip("netns", "add", self._prefix)
        self._ip("-n", self._prefix, "link", "add", "bridge", "type", "bridge")
        for number in range(self._count):
            name, port = self.name(number), f"port{number}"
            self._ip("netns", "add", name)
            self._ip("-n", self._prefix, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            self._ip("-n", self._prefix, "link", "set", port, "master", "bridge", "up")
            self._ip("-n", name, "address", "add", f"{self.address(number)}/24", "dev", "eth0")
            self._ip("-n", name, "link", "set", "lo", "up")
            self._ip("-n", name, "link", "set", "eth0", "up")
        self.on()

    def on(self) -> None:
        self._ip("-n", self._prefix, "link", "set", "bridge", "up")

    def off(self) -> None:
        """Frames are lost; every cable still seems plugged in."""
        self._ip("-n", self._prefix, "link", "set", "bridge", "down")

    def remove(self) -> None:
        for name in (self._prefix, *map(self.name, range(self._count))):
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def _ip(self, *arguments: str) -> None:
        subprocess.run(["ip", *arguments], capture_output=True, check=True, text=True)


@contextmanager
def switch(count: int, network: str = NETWORK) -> Iterator[Switch]:
    """A switch with ``count`` namespaces; skips the test where there cannot be any."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (iproute2)")
    built = Switch(count, network)
    try:
        try:
            built.build()
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", "") or str(error)
            pytest.skip(f"network namespaces are not allowed here: {reason.strip()}")
        yield built
    finally:
        built.remove()
