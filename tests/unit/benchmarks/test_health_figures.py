"""The benchmark of the health page: a patch tells what changed."""

from __future__ import annotations

import argparse

from benchmarks.health import add_arguments, measure


def test_a_patch_grows_with_what_changed() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    sizes = []
    for share in ("0", "0.5", "1"):
        figures = measure(parser.parse_args(["--servers", "20", "--changed", share]))
        assert figures["state"]["packed_kB"] < figures["state"]["kB"]
        [patch] = [value for name, value in figures.items() if name.startswith("patch")]
        sizes.append(patch["kB"] / figures["state"]["kB"])
    assert sizes[0] < 0.1
    assert 0.4 < sizes[1] < 0.6
    assert 0.9 < sizes[2] < 1.1
