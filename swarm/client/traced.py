"""What spans tell of a client's work: figures and short peer ids, no text, no name that a stranger chose."""

from __future__ import annotations

from collections.abc import Iterable

from swarm.client.plan import StagePlan
from swarm.client.results import ChainStage, GenerationResult, Heal
from swarm.runtime.tracing import Attributes


def of_result(result: GenerationResult) -> Attributes:
    """A finished answer."""
    return {
        "gen_ai.usage.input_tokens": result.prompt_tokens,
        "gen_ai.usage.output_tokens": len(result.token_ids),
        "gen_ai.response.finish_reasons": (str(result.finish_reason),),
        "swarm.ttft_s": result.ttft_s,
        "swarm.tokens_per_s": result.tokens_per_s,
        "swarm.heals": len(result.heals),
        "swarm.exact": result.exact,
        **of_chain(result.chain),
    }


def of_heal(heal: Heal) -> Attributes:
    """A chain that was mended."""
    return {
        "swarm.lost": _stages(heal.lost),
        "swarm.replaced_by": _stages(heal.replaced_by),
        "swarm.replayed_rows": heal.replayed_rows,
        "swarm.pause_s": heal.pause_s,
    }


def of_chain(chain: Iterable[ChainStage]) -> Attributes:
    """Who serves."""
    stages = _stages(chain)
    return {"swarm.chain": stages, "swarm.chain_length": len(stages)}


def of_stages(stages: Iterable[StagePlan]) -> Attributes:
    """Who was opened."""
    return of_chain(ChainStage(stage.peer, stage.span.start, stage.span.end) for stage in stages)


def _stages(stages: Iterable[ChainStage]) -> tuple[str, ...]:
    return tuple(f"{stage.peer[-8:]}[{stage.start}:{stage.end}]" for stage in stages)
