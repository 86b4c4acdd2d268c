"""What a server that joins should hold, and who yields when several want the same. Pure: no clock, no coordinator.

Every newcomer publishes a claim before it loads, and computes from the claims it sees what *all* of them should hold;
since that is a function of the view alone, newcomers with the same view agree, and whoever finds its own claim in the
result may load.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from swarm.core.errors import ConfigError
from swarm.core.spans import Span
from swarm.scheduling.allocation.strategies import allocate
from swarm.scheduling.cluster import Cluster, Node
from swarm.scheduling.intents_future import (
    PlacingOptions,
    fresh,
    is_joining_claim,
    is_move_claim,
    priority,
    settle,
    settled,
    with_guessed_power,
)
from swarm.scheduling.intents_windows import SAME, Quality, Rates, best_window, quality, rates_of
from swarm.scheduling.reasons import layers_text

Claims = dict[str, Span]
_MOST_ROUNDS = 16
"""Of mending: every change gains by the threshold, so it seldom takes more than three."""


@dataclass(frozen=True, slots=True)
class Choice:
    """A span to hold, why (a sentence for people, without a full stop), and the swarm's tokens per second by it.

    ``tokens_per_s_before`` is what the rest of the swarm, its intents included, is predicted to serve without this
    server there.
    """

    span: Span
    why: str
    tokens_per_s_before: float
    tokens_per_s_after: float


def choose_span(
    cluster: Cluster, self_id: str, options: PlacingOptions, *, now_s: float, remembered: Span | None = None
) -> Choice:
    """What ``self_id``, a node of ``cluster`` with state ``JOINING``, should hold by this view.

    Its ``intent`` is what it claims so far (None before the first claim: then ``remembered`` counts as that, if it
    still fits). Raises ``ConfigError`` if it has room for no layer. Deterministic, whatever the nodes' order. O(claims
    · layers · capacity), plus one allocation.
    """
    me = next(node for node in cluster.nodes if node.id == self_id)
    if me.capacity_layers < 1:
        raise ConfigError("no layer fits into this machine's memory", hint="use --quantization, or --num-blocks 1")
    if me.intent is None:
        me = replace(me, intent=_fitting(remembered, me, cluster.layers))
    fixed = settled(cluster, options, now_s)
    fixed.pop(self_id, None)
    for node in cluster.nodes:  # a would-be mover with the smaller hash goes first, so it counts as moved
        if is_move_claim(node) and node.id in fixed and fresh(node, options, now_s) and priority(node) < priority(me):
            fixed[node.id] = settle(node, node.intent)
    placing = _Placing(cluster.layers, list(fixed.values()), _claimants(cluster, me, options, now_s), options)
    claims, planned = placing.resolve()
    others = [*placing.fixed, *(settle(node, claims[node.id]) for node in placing.claimants if node.id != self_id)]
    return describe(others, placing.named(self_id), claims[self_id], cluster.layers, remembered, planned=planned)


def describe(
    others: Sequence[Node], me: Node, span: Span, layers: int, remembered: Span | None, *, planned: bool = False
) -> Choice:
    """The choice of ``span`` beside ``others``, with the reason that is worth telling."""
    rates = rates_of(others, layers)
    after = rates_of([*others, settle(me, span)], layers)
    why = "it held them before" if span == remembered else reason_for(rates, span, planned=planned)
    return Choice(span, why, _least(rates), _least(after))


def reason_for(rates: Rates, span: Span, *, planned: bool = False) -> str:
    """Why ``span`` is the place for one more server in a swarm of these ``rates``, as a sentence without its stop."""
    least = _least(rates)
    missing = _runs((rates[span.start : span.end] == 0).tolist(), span.start)
    slowest = _runs((rates <= least * (1 + SAME)).tolist(), 0)
    reached = [run for run in slowest if run.start < span.end and span.start < run.end]
    if len(span) < len(rates) and planned:
        return "the plan for all servers that join now gives it these"
    if missing:
        return "nobody held " + (layers_text(missing) if (rates > 0).any() else "any layer")
    if len(span) == len(rates):
        return "it has room for them all"
    if len(slowest[0]) == len(rates):
        return f"every layer had the same {least:.3g} tokens/s"
    if not reached:
        return "they are where it adds the most"
    verb = "was" if len(reached) == 1 and len(reached[0]) == 1 else "were"
    return f"{layers_text(reached)} {verb} the slowest at {least:.3g} tokens/s"


def _least(rates: Rates) -> float:
    return float(rates.min(initial=float("inf")))


def _runs(mask: Iterable[bool], offset: int) -> list[Span]:
    """Maximal runs of true, shifted by ``offset``."""
    runs: list[Span] = []
    for index, true in enumerate(mask, offset):
        if true and runs and runs[-1].end == index:
            runs[-1] = Span(runs[-1].start, index + 1)
        elif true:
            runs.append(Span(index, index + 1))
    return runs


def _fitting(span: Span | None, node: Node, layers: int) -> Span | None:
    return span if span is not None and span.end <= layers and len(span) <= node.capacity_layers else None


def _claimants(cluster: Cluster, me: Node, options: PlacingOptions, now_s: float) -> list[Node]:
    """Whoever has yet to choose, the smallest hash first: ``me``, and the newcomers whose claims are fresh."""
    others = [
        node
        for node in cluster.nodes
        if node.id != me.id and is_joining_claim(node) and fresh(node, options, now_s) and node.capacity_layers >= 1
    ]
    first = sorted(others, key=priority)[: options.most_claims]
    return sorted([*first, me], key=priority)


class _Placing:
    """One view: what is fixed, and who has yet to choose."""

    def __init__(self, layers: int, fixed: list[Node], claimants: list[Node], options: PlacingOptions) -> None:
        self.layers = layers
        self.options = options
        powers = {node.id: node.power for node in with_guessed_power([*fixed, *claimants])}
        self.fixed = sorted((node for node in fixed if node.span is not None), key=lambda node: node.id)
        self.claimants = [replace(node, power=powers[node.id]) for node in claimants]
        self._base = rates_of(self.fixed, layers)

    def named(self, node_id: str) -> Node:
        return next(node for node in self.claimants if node.id == node_id)

    def resolve(self) -> tuple[Claims, bool]:
        """What every claimant should hold, and whether that is a joint plan rather than one choice after the other.

        The claims as they stand if nothing is better by more than the threshold: else the claims with those changed
        that gain by it, the largest hash (which yields to the others) first; else whatever is best.
        """
        kept = self._fill({node.id: node.intent for node in self.claimants if node.intent is not None})
        mended = self._mend(kept)
        filled = self._mend(self._fill({}))
        planned = self._mend(self._plan())
        candidates = [(self.worth(claims), claims) for claims in (kept, mended, filled, planned)]
        best = candidates[0][0]
        for worth, _ in candidates:
            best = worth if worth.better_than(best) else best
        for worth, claims in candidates:
            if not best.better_than(worth, self.options.threshold):
                return claims, claims is planned
        return candidates[-1][1], True

    def worth(self, claims: Mapping[str, Span]) -> Quality:
        return quality(self._rates(claims))

    def _rates(self, claims: Mapping[str, Span], without: str = "") -> Rates:
        rates = self._base.copy()
        for node in self.claimants:
            if node.id in claims and node.id != without:
                span = claims[node.id]
                rates[span.start : span.end] += node.power / len(span)
        return rates

    def _best(self, node: Node, claims: Mapping[str, Span]) -> Span:
        return best_window(self._rates(claims, node.id), node.capacity_layers, node.power)

    def _fill(self, start: Mapping[str, Span]) -> Claims:
        """Give everybody who is not in ``start`` its best place, the smallest hash first."""
        claims = {node.id: span for node in self.claimants if (span := _fitting(start.get(node.id), node, self.layers))}
        for node in self.claimants:
            if node.id not in claims:
                claims[node.id] = self._best(node, claims)
        return claims

    def _mend(self, start: Mapping[str, Span]) -> Claims:
        """Let claimants, the largest hash first, take what is better for the swarm by the threshold, until none is.

        To the end, or those who have agreed would find more to change when they look again.
        """
        claims = dict(start)
        for _ in range(_MOST_ROUNDS):
            before = claims
            for node in reversed(self.claimants):
                changed = claims | {node.id: self._best(node, claims)}
                if self.worth(changed).better_than(self.worth(claims), self.options.threshold):
                    claims = changed
            if claims == before:
                break
        return claims

    def _plan(self) -> Claims:
        """Whole pipelines of the claimants alone, as phase 1 builds them; whoever is left over fills up."""
        alone = Cluster(layers=self.layers, nodes=tuple(settle(node, None) for node in self.claimants))
        plan = allocate(alone)
        return self._fill({share.id: share.span for pipeline in plan.pipelines for share in pipeline})
