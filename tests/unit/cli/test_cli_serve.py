"""What a server may be told about its blocks, and how it says what it chose."""

from __future__ import annotations

import argparse

import pytest

from swarm.cli.blocks import fields, sentence
from swarm.cli.serve import add_arguments, check
from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.scheduling.intents import Choice


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(["--new-swarm", *words])


def test_blocks_are_chosen_unless_told() -> None:
    parsed = options()
    check(parsed)
    assert (parsed.blocks, parsed.num_blocks, parsed.no_rebalance) == ("auto", None, False)
    check(options("--num-blocks", "10", "--region", "eu", "--rebalance-every", "5", "--claim-wait", "0.5"))
    check(options("--blocks", "0:10", "--no-rebalance", "--replay-mb", "0"))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--blocks", "0-10"), "0-10"),
        (("--blocks", "0:10", "--num-blocks", "3"), "--num-blocks"),
        (("--num-blocks", "0"), "--num-blocks"),
        (("--rebalance-every", "0"), "--rebalance-every"),
        (("--rebalance-every", "nan"), "--rebalance-every"),
        (("--claim-wait", "inf"), "--claim-wait"),
        (("--replay-mb", "-1"), "--replay-mb"),
        (("--replay-mb", "nan"), "--replay-mb"),
        (("--region", "a\nb"), "--region"),
        (("--region", "x" * 65), "--region"),
    ],
)
def test_what_makes_no_sense_is_named(words: tuple[str, ...], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        check(options(*words))


def test_the_choice_in_one_sentence_and_in_figures() -> None:
    choice = Choice(Span(10, 20), "nobody held layers 10 to 19", 0.0, 12.345)
    assert sentence("Taking", choice) == (
        "Taking layers 10 to 19: nobody held layers 10 to 19. The swarm's predicted 0 tokens/s become 12.3."
    )
    assert fields(choice) == {
        "span": [10, 20], "why": choice.why, "tokens_per_s_before": 0.0, "tokens_per_s_after": 12.345,
    }  # fmt: skip
    same = Choice(Span(0, 1), "it held them before", 5.0, 5.0)
    assert sentence("Taking", same) == "Taking layer 0: it held them before. The swarm's predicted 5 tokens/s stay."
