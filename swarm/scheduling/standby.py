"""Who would take over a stage whose server dies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from swarm.core.ids import PeerId
from swarm.core.limits import MAX_STAGES
from swarm.scheduling.routing_arrays import Arrays
from swarm.scheduling.routing_links import Bools, Floats
from swarm.scheduling.routing_price import entry_s, exit_s, hop_s, inner_s
from swarm.scheduling.routing_search import Costs, Part, Search
from swarm.scheduling.routing_types import RouteNeeds, Stage, Standby


def standbys(
    arrays: Arrays, parts: Sequence[Part], group: Bools, needs: RouteNeeds, costs: Costs
) -> tuple[Standby | None, ...]:
    """For every stage the fastest sub-chain over its span, perhaps of several servers, that stands in for it.

    Among the nodes of ``group`` that serve no stage of the chain, priced from the stage's predecessor to its successor
    (the client at the ends); None where there is none. Exact, as ``Search`` is; together all stages take about as long
    as one search, for their spans tile the model.
    """
    spare = group.copy()
    spare[[index for index, _ in parts]] = False
    return tuple(_standby(arrays, parts, place, spare, needs, costs) for place in range(len(parts)))


def _standby(
    arrays: Arrays, parts: Sequence[Part], place: int, spare: Bools, needs: RouteNeeds, costs: Costs
) -> Standby | None:
    links, everyone = arrays.links, np.arange(len(arrays.nodes))
    before, after = (
        [index for index, _ in parts[place - 1 : place]],
        [index for index, _ in parts[place + 1 : place + 2]],
    )
    enter_s: Floats = links.block(np.array(before), everyone)[0] if before else costs.enter_s
    leave_s: Floats = links.block(everyone, np.array(after))[:, 0] if after else costs.leave_s
    fixed_s = np.where(spare, costs.fixed_s, np.inf)
    search = Search(arrays.layout, links, parts[place][1], Costs(enter_s, leave_s, fixed_s, costs.tau_s))
    found = search.best()
    if found is None or len(found) > MAX_STAGES:
        return None
    cluster, nodes = arrays.cluster, arrays.nodes
    first, last = nodes[found[0][0]], nodes[found[-1][0]]
    latency_s = inner_s(cluster, [(nodes[index], len(span)) for index, span in found])
    latency_s += hop_s(cluster, nodes[before[0]], first) if before else entry_s(cluster, first, needs)
    latency_s += hop_s(cluster, last, nodes[after[0]]) if after else exit_s(cluster, last, needs)
    return Standby(tuple(Stage(PeerId(nodes[index].id), span) for index, span in found), latency_s)
