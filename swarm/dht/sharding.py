"""How a model's records are spread over keys, and what one node knows of it. Pure: time and chance come in.

A key holds few records (256, 512 KiB), and every answer carries all of them, so N servers are spread by the hash of
their peer id over 2^depth keys of about ``SERVERS_PER_SHARD``. Nobody decides the depth: every writer derives it from
the servers it last saw, so writers disagree by one for a while, and readers read one depth less and one more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from swarm.core.metrics import METRICS_LIFETIME_S, Metrics

SERVERS_PER_SHARD = 32
MAX_DEPTH = 10
"""Up to 32,768 servers a model at ``SERVERS_PER_SHARD``, eight times as many before keys are full."""
METRICS_WRITES_PER_S = 400.0
ANNOUNCEMENTS_PER_S = 100.0
"""Of all servers of a model together: 500 writes a second in all (DESIGN 4)."""
SCOUTS = 8
"""Shards of one depth that tell how many servers there are: 8 of 32 servers, so within 6 % (one sigma)."""
_SHALLOWER_AT = 0.75
_LIFETIME_INTERVALS = 2.4


def depth_for(servers: int) -> int:
    """``ceil(log2(servers / 32))``, from 0 to ``MAX_DEPTH``."""
    return min((max(servers - 1, 0) // SERVERS_PER_SHARD).bit_length(), MAX_DEPTH)


def depth_range(depth: int) -> range:
    """The depths at which records may stand while writers disagree by one."""
    return range(max(depth - 1, 0), min(depth + 1, MAX_DEPTH) + 1)


def shards_at(depth: int) -> list[str]:
    """All 2^``depth`` shards of one depth."""
    return [f"{number:0{depth}b}" for number in range(2**depth)] if depth else [""]


def scouting_shards(path: str) -> list[str]:
    """A few shards whose counts tell how many servers there are when nothing is known.

    All of depths 0 and 1, and one of every deeper depth: a prefix of ``path``, ``MAX_DEPTH`` random zeros and ones. A
    reader that looked at few servers' favourite depth only could be shown a small swarm of strangers' making.
    """
    return [*shards_at(0), *shards_at(1), *(path[:depth] for depth in range(2, MAX_DEPTH + 1))]


def sample_shards(depth: int, paths: Sequence[str]) -> list[str]:
    """Shards around ``depth`` along each of several random paths, each once: a closer estimate."""
    return sorted({path[:near] for path in paths for near in depth_range(depth)})


def estimate(counts: Mapping[str, int]) -> int:
    """How many servers there are, from the records counted in some shards: per depth, mean count times 2^depth.

    Unbiased, since peer ids hash evenly; exact where all shards of a depth were counted. Whoever wants to raise it
    must announce as many servers.
    """
    by_depth: defaultdict[int, list[int]] = defaultdict(list)
    for shard, count in counts.items():
        by_depth[len(shard)].append(count)
    return round(sum(sum(found) / len(found) * 2.0**depth for depth, found in by_depth.items()))


def announce_interval_s(servers: int, base_s: float) -> float:
    """Seconds between two announcements of one server: ``base_s``, longer where all would write too often."""
    return max(base_s, servers / ANNOUNCEMENTS_PER_S)


def metrics_interval_s(servers: int, base_s: float) -> float:
    """Least seconds between two metrics records of one of ``servers`` servers of a model.

    ``max(base_s, servers / 400)``: with announcements (``announce_interval_s``) all writes of the model stay under 500
    a second (DESIGN 4). It stretches 1 s above 400 servers, 4 s above 1600.
    """
    return max(base_s, servers / METRICS_WRITES_PER_S)


def metrics_lifetime_s(interval_s: float) -> float:
    """How long a metrics record lives when one is written every ``interval_s``: 10 s, longer if writes are rarer.

    At most ``Metrics.LIFETIME_S``, so beyond 24,000 servers of one model some are missed between two writes.
    """
    return min(max(METRICS_LIFETIME_S, _LIFETIME_INTERVALS * interval_s), Metrics.LIFETIME_S)


class Spread:
    """What one node knows of the spread of one model's records. Times are monotonic seconds.

    ``depth`` is where this node writes, and the middle of where it reads. It is deeper as soon as there are too many
    servers for it, and shallower only when they are well below, so that it does not flutter at a threshold.
    """

    def __init__(self, *, survey_every_s: float, neighbours_every_s: float) -> None:
        self.depth = 0
        self._survey_every_s = survey_every_s
        self._neighbours_every_s = neighbours_every_s
        self._surveyed_s: float | None = None
        self._neighbours_s: float | None = None
        self._astray = False

    def survey_due(self, now_s: float) -> bool:
        """Whether to look again for records at depths that are not read otherwise."""
        return self._surveyed_s is None or now_s >= self._surveyed_s + self._survey_every_s

    def surveyed(self, servers: int, now_s: float) -> None:
        """Take in an estimate from a survey: the depth may change by any amount."""
        self._surveyed_s = now_s
        wanted = depth_for(servers)
        if abs(wanted - self.depth) > 1:
            self._move(wanted)
        else:
            self.counted(servers)

    def counted(self, servers: int) -> None:
        """Take in how many servers a read has found: one depth less at a time, since a read may miss some."""
        wanted = depth_for(servers)
        if wanted > self.depth:
            self._move(wanted)
        elif wanted < self.depth and servers <= _SHALLOWER_AT * SERVERS_PER_SHARD * 2 ** (self.depth - 1):
            self._move(self.depth - 1)

    def to_read(self, now_s: float) -> list[str]:
        """The shards of one whole read.

        Those of the neighbouring depths only every ``neighbours_every_s``, which is less than any record lives, unless
        some records do stand there.
        """
        due = self._neighbours_s is None or now_s >= self._neighbours_s + self._neighbours_every_s
        if not (due or self._astray):
            return shards_at(self.depth)
        return [shard for depth in depth_range(self.depth) for shard in shards_at(depth)]

    def was_read(self, counts: Mapping[str, int], started_s: float) -> None:
        """Take in what a read of ``to_read``, begun at ``started_s``, found in each shard."""
        if any(len(shard) != self.depth for shard in counts):
            self._neighbours_s = started_s
            self._astray = any(count for shard, count in counts.items() if len(shard) != self.depth)

    def _move(self, depth: int) -> None:
        self.depth = depth
        self._neighbours_s = None
