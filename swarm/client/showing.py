"""How results look in a notebook. Everything that came from elsewhere, the text too, is escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from swarm.client.results import GenerationResult

_TEXT = "white-space: pre-wrap; margin: 0 0 .4em"
_SMALL = "font-size: .85em; opacity: .75"


def result_html(result: GenerationResult) -> str:
    """The answer's text, and in small letters how it came about."""
    chain = " → ".join(map(str, result.chain))
    facts = [
        f"{result.prompt_tokens} + {len(result.token_ids)} tokens ({result.finish_reason})",
        f"first after {result.ttft_s:.2f} s, then {result.tokens_per_s:.1f} tokens/s",
        *([f"healed {len(result.heals)} times"] if result.heals else []),
        *([] if result.exact else ["not exact: numerics were mixed, or the wire was lossy"]),
        chain,
    ]
    return f'<div style="{_TEXT}">{escape(result.text)}</div><div style="{_SMALL}">{escape(" · ".join(facts))}</div>'
