"""How many files and sockets this process may hold."""

from __future__ import annotations

import resource

WANTED_OPEN_FILES = 65536
"""Every stream takes a descriptor here and one in the libp2p daemon, which inherits the limit."""


def raise_open_file_limit(wanted: int = WANTED_OPEN_FILES) -> int:
    """Raise the soft limit of open files towards ``wanted``, within the hard one; returns what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ceiling = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < ceiling:
        resource.setrlimit(resource.RLIMIT_NOFILE, (ceiling, hard))
        return ceiling
    return soft
