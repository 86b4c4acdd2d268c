"""How a model's records are spread over keys, and what one node knows of it. Pure: time and chance come in.

A key holds few records (256, 512 KiB), and every answer carries all of them, so N servers are spread by the hash of
their peer id over 2^depth keys of about ``SERVERS_PER_SHARD``. Nobody decides the depth: every writer derives it from
the servers it last saw, so writers disagree by one for a while, and readers read one depth less and one more.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from swarm.core.metrics import METRICS_IDLE_S, METRICS_LIFETIME_S, Metrics
from swarm.core.records import shard_of

SERVERS_PER_SHARD = 32
MAX_DEPTH = 10
"""Up to 32,768 servers a model at ``SERVERS_PER_SHARD``, eight times as many before keys are full."""
METRICS_WRITES_PER_S = 400.0
ANNOUNCEMENTS_PER_S = 100.0
"""Of all servers of a model together: 500 writes a second in all (DESIGN 4)."""
PATHS = 16
"""Of which the number of servers of a large swarm is estimated."""
_SHALLOWER_AT = 0.75
_FEW = 0.05
"""The share of servers for whose sake another depth is read."""
_LIFETIME_INTERVALS = 2.4


def depth_for(servers: int) -> int:
    """``ceil(log2(servers / 32))``, from 0 to ``MAX_DEPTH``."""
    return min((max(servers - 1, 0) // SERVERS_PER_SHARD).bit_length(), MAX_DEPTH)


def most_servers(depth: int) -> int:
    """So many servers are spread at ``depth`` at most: the largest number with this ``depth_for``."""
    return SERVERS_PER_SHARD << depth


def depth_range(depth: int) -> range:
    """The depths at which records may stand while writers disagree by one."""
    return range(max(depth - 1, 0), min(depth + 1, MAX_DEPTH) + 1)


def shards_at(depth: int) -> list[str]:
    """All 2^``depth`` shards of one depth."""
    return [f"{number:0{depth}b}" for number in range(2**depth)] if depth else [""]


def scouting_shards(path: str) -> list[str]:
    """A few shards that tell where a model's records stand when nothing is known.

    All of depths 0 and 1, and one of every deeper depth: a prefix of ``path``, ``MAX_DEPTH`` random zeros and ones. A
    reader that looked at the usual depths only could be shown a small swarm of strangers' making.
    """
    return [*shards_at(0), *shards_at(1), *(path[:depth] for depth in range(2, MAX_DEPTH + 1))]


def inhabited_depth(counts: Mapping[str, int]) -> int:
    """The depth at which most records stand, from the records counted in some shards; the shallowest of equals."""
    by_depth: defaultdict[int, list[int]] = defaultdict(list)
    for shard, count in counts.items():
        by_depth[len(shard)].append(count)
    total = {depth: sum(found) / len(found) * 2.0**depth for depth, found in by_depth.items()}
    return max(sorted(total), key=total.__getitem__, default=0)


def sample_shards(depth: int, paths: Sequence[str]) -> list[str]:
    """The shards around ``depth`` along each of several random paths, each once."""
    return sorted({path[:near] for path in paths for near in depth_range(depth)})


def estimate(peers: Iterable[str], depth: int, paths: Sequence[str]) -> int:
    """How many servers there are, from the ``peers`` found in ``sample_shards(depth, paths)``.

    The deepest shard of each path is the part of all that was seen whole, at every depth a record may stand, so the
    peers that belong there are counted, once each, and scaled up. Unbiased, since peer ids hash evenly; the relative
    error is about ``(2^deepest / (servers * len(paths))) ** 0.5``, 8 % for 16 paths. Whoever wants to raise it must
    announce as many servers.
    """
    deepest = depth_range(depth)[-1]
    seen = Counter(shard_of(peer, deepest) for peer in set(peers))
    parts = {path[:deepest] for path in paths}
    return round(sum(seen[part] for part in parts) / max(len(parts), 1) * 2.0**deepest)


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


def longest_metrics_life_s(depth: int) -> float:
    """How long metrics written at a depth of sharding live at most, by how many servers that depth is for."""
    return metrics_lifetime_s(metrics_interval_s(most_servers(depth), METRICS_IDLE_S))


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
        self._at_depth: dict[int, int] = {}

    def survey_due(self, now_s: float) -> bool:
        """Whether to look again for records at depths that are not read otherwise."""
        return self._surveyed_s is None or now_s >= self._surveyed_s + self._survey_every_s

    def surveyed(self, depth: int, now_s: float) -> None:
        """Take in the depth at which a survey found most records; it matters if they are not read as it is."""
        self._surveyed_s = now_s
        if depth not in depth_range(self.depth):
            self._move(depth)

    def counted(self, servers: int, at_depth: Mapping[int, int] | None = None) -> None:
        """Take in how many servers are known, and the depths of their newest records.

        The depth becomes one less at a time, since a read may miss some.
        """
        if at_depth is not None:
            self._at_depth = dict(at_depth)
        wanted = depth_for(servers)
        if wanted > self.depth:
            self._move(wanted)
        elif wanted < self.depth and servers <= _SHALLOWER_AT * SERVERS_PER_SHARD * 2 ** (self.depth - 1):
            self._move(self.depth - 1)

    def to_read(self, now_s: float) -> list[str]:
        """The shards of one whole read.

        Besides ``depth``, the neighbouring ones where known servers write, and farther ones where more than a few still
        do. The other neighbouring ones only every ``neighbours_every_s``, which is less than any record lives.
        """
        near = depth_range(self.depth)
        few = _FEW * sum(self._at_depth.values())
        depths = {depth for depth, count in self._at_depth.items() if depth in near or count > few}
        if self._neighbours_s is None or now_s >= self._neighbours_s + self._neighbours_every_s:
            depths.update(near)
        return [shard for depth in sorted(depths | {self.depth}) for shard in shards_at(depth)]

    def was_read(self, depth: int, shards: Iterable[str], started_s: float) -> None:
        """Take in that ``shards`` were read, from ``started_s`` on, when the depth was ``depth``."""
        if depth == self.depth and set(depth_range(depth)) <= set(map(len, shards)):
            self._neighbours_s = started_s

    def _move(self, depth: int) -> None:
        self.depth = depth
        self._neighbours_s = None
