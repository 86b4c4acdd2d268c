"""Who replays to whom, and which patches fit."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.chains.mend_plan import check_patches, clash, replays
from swarm.client.plan import Patch, StagePlan
from swarm.core.errors import MisuseError
from swarm.core.spans import Span


@pytest.mark.parametrize(
    ("lacks", "dry", "fed", "asks"),
    [
        ("...", "", -1, {}),
        (".x.", "", -1, {0: 0}),
        ("..x", "", -1, {1: 0}),
        ("x..", "", 0, {}),
        ("xx.", "", 1, {}),
        (".xx", "", -1, {0: 1}),
        ("xxx", "", 2, {}),
        (".x.x", "", -1, {0: 0, 2: 0}),
        ("x.x.", "", 0, {1: 0}),
        (".x.", "0", 1, {}),
        (".x.x", "0", 1, {2: 0}),
        (".x.x", "2", 3, {}),
        ("x.xx", "1", 3, {}),
        (".xx.x.x", "3", 4, {5: 0}),
    ],
)
def test_who_replays(lacks: str, dry: str, fed: int, asks: dict[int, int]) -> None:
    found = replays([letter == "x" for letter in lacks], set(map(int, dry)))
    assert (found.fed, found.asks) == (fed, asks)


def test_a_server_that_replays_into_what_the_client_feeds_clashes() -> None:
    lacks = [False, True, False, True]
    before = replays(lacks)
    assert not clash(before, replays(lacks, {0}), {0})  # the other one goes on behind what is fed
    assert clash(before, replays(lacks, {2}), {2})  # the first one replays to a place on the way
    assert not clash(before, replays(lacks, {0, 2}), {0, 2})
    assert not clash(before, before, set())


@given(lacks=st.lists(st.booleans(), min_size=1, max_size=12), data=st.data())
def test_rows_come_to_everybody_who_lacks_them_once(lacks: list[bool], data: st.DataObject) -> None:
    """From the client or the log of a server that has one, and the last of each row of servers says so."""
    dry = data.draw(st.sets(st.integers(0, len(lacks) - 1)))
    found = replays(lacks, dry)
    sources: list[list[int]] = [[] for _ in lacks]
    for place in range(found.fed + 1):
        sources[place].append(-1)
    for source, hops in found.asks.items():
        assert not lacks[source]
        assert source not in dry
        for place in range(source + 1, source + 2 + hops):
            sources[place].append(source)
    last = {}
    for place, (lacking, given_by) in enumerate(zip(lacks, sources, strict=True)):
        assert len(given_by) <= 1
        if lacking:
            assert given_by
        for source in given_by:
            last[source] = place
            assert lacking or source == -1
    assert set(last.values()) == found.targets
    assert all(lacks[place] for place in found.targets)
    assert clash(replays(lacks), found, dry) == any(
        source < found.fed and source not in dry for source in replays(lacks).asks
    )


# -- patches ----------------------------------------------------------------------------------------------------


def stage(start: int, end: int) -> StagePlan:
    announcement: Any = None
    return StagePlan(announcement, b"", Span(start, end))


CHAIN = [stage(0, 2), stage(2, 5), stage(5, 6)]


@pytest.mark.parametrize(
    "patches",
    [
        [Patch(0, 1, (stage(0, 2),))],
        [Patch(1, 2, (stage(2, 3), stage(3, 5)))],
        [Patch(0, 3, (stage(0, 6),))],
        [Patch(0, 1, (stage(0, 2),)), Patch(1, 3, (stage(2, 6),))],
        [],
    ],
)
def test_patches_that_fit(patches: list[Patch]) -> None:
    check_patches(CHAIN, patches, {place for patch in patches for place in range(patch.first, patch.end)})


@pytest.mark.parametrize(
    "patches",
    [
        [],
        [Patch(0, 1, (stage(0, 2),))],
        [Patch(1, 1, (stage(2, 5),))],
        [Patch(1, 2, ())],
        [Patch(1, 2, (stage(2, 4),))],
        [Patch(1, 2, (stage(1, 5),))],
        [Patch(1, 2, (stage(2, 4), stage(3, 5)))],
        [Patch(1, 2, (stage(2, 3), stage(4, 5)))],
        [Patch(1, 4, (stage(2, 6),))],
        [Patch(-1, 2, (stage(0, 5),))],
        [Patch(2, 1, (stage(2, 5),))],
        [Patch(1, 2, (stage(2, 5),)), Patch(0, 1, (stage(0, 2),))],
        [Patch(1, 2, (stage(2, 5),)), Patch(1, 2, (stage(2, 5),))],
        [Patch(1, 3, tuple(stage(2 + i, 3 + i) for i in range(300)))],
    ],
)
def test_patches_that_do_not(patches: list[Patch]) -> None:
    with pytest.raises(MisuseError):
        check_patches(CHAIN, patches, {1})
