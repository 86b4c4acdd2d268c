"""What a volunteer allows a server to take: memory, upload, and when."""

from __future__ import annotations

import argparse
import time

from swarm.core.errors import ConfigError
from swarm.core.hours import DAY_MIN, Hours

LEAST_UPLINK_MBPS = 0.1
"""Below, a server's own no-ops and receipts would be in each other's way."""


def add_limits(parser: argparse.ArgumentParser) -> None:
    """The options of a server's share of this machine."""
    limits = parser.add_argument_group("what this machine gives, at most (`swarm pause` takes it all back for a while)")
    limits.add_argument("--memory-share", type=float, default=1.0, metavar="X", help="of all the device's memory, what "
                        "weights and KV together may take, like 0.5 (default: what is free)")  # fmt: skip
    limits.add_argument("--uplink-mbps", type=float, metavar="N", help="upload in Mbit/s, of all sessions together; "
                        "single tokens before prompts (default: no limit). Others are not relayed then")  # fmt: skip
    limits.add_argument("--schedule", default="", metavar="HOURS", help="serve only then, by this machine's clock: "
                        '"22:00-08:00", or "mon-fri 18:00-08:00, sat-sun". Otherwise it rests: sessions end as with '
                        "Ctrl-C, the layers stay in memory, and it comes back by itself")  # fmt: skip
    limits.add_argument("--quiet", action="store_true", help="no line about how things are while nothing happens")


def check_limits(options: argparse.Namespace) -> None:
    """Raise ``ConfigError`` for a limit that is none."""
    share, uplink_mbps = options.memory_share, options.uplink_mbps
    if not 0 < share <= 1:
        raise ConfigError(f"--memory-share is {share:g}", hint="give a share above 0, up to 1")
    if share < 1 and options.max_memory:
        raise ConfigError("--memory-share and --max-memory say the same twice", hint="leave one of the two out")
    if uplink_mbps is not None and not LEAST_UPLINK_MBPS <= uplink_mbps < float("inf"):
        raise ConfigError(f"--uplink-mbps is {uplink_mbps:g}", hint=f"give Mbit/s, {LEAST_UPLINK_MBPS:g} or more")
    hours_of(options)


def hours_of(options: argparse.Namespace) -> Hours | None:
    """``--schedule``, None without one. Raises ``ConfigError`` if it cannot be read."""
    return Hours.parse(options.schedule) if options.schedule else None


def limits_text(options: argparse.Namespace) -> str:
    """The limits that were set, for the banner; empty if none was."""
    parts = []
    if options.memory_share < 1:
        parts.append(f"{100 * options.memory_share:g} % of the memory")
    if options.uplink_mbps is not None:
        parts.append(f"{options.uplink_mbps:g} Mbit/s of upload")
    if options.schedule:
        parts.append(f"hours {options.schedule}")
    return ", ".join(parts)


def wall_minute(at_s: float) -> int:
    """Which minute of the week this machine's clock on the wall shows at ``at_s`` (seconds since 1970)."""
    local = time.localtime(at_s)
    return local.tm_wday * DAY_MIN + local.tm_hour * 60 + local.tm_min


def local_time(at_s: float) -> str:
    """``Tue 22:00``."""
    return time.strftime("%a %H:%M", time.localtime(at_s))
