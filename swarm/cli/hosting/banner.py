"""What a server says of itself once it has loaded its span."""

from __future__ import annotations

from swarm.cli.output.console import Console
from swarm.core.announcement import Announcement
from swarm.engine.opening import OpenedSpan
from swarm.models.progress import human_bytes
from swarm.transport.addresses import join_peer


def show_banner(console: Console, opened: OpenedSpan, announced: Announcement, model: str, limits: str = "") -> None:
    """Who and what it is, and how others join it; ``model`` is what they give as ``--model``, ``limits`` its own."""
    info = opened.engine.info
    if opened.note:
        console.warning(opened.note)
    joins = [join_peer(address, announced.peer_id) for address in announced.addresses]
    kv_bytes = announced.kv_tokens * info.kv_bytes_per_token
    lines = [
        f"peer id   {announced.peer}",
        f"model     {announced.model}",
        f"span      {info.span} of {info.layer_count} layers"
        + (", with embeddings" if info.embeddings else "")
        + (", with LM head" if info.head else ""),
        f"device    {' and '.join(opened.devices)}, {announced.numerics}",
        f"memory    {human_bytes(info.memory_bytes)} of weights, KV for {announced.kv_tokens} tokens "
        f"(up to {human_bytes(kv_bytes)})",
        f"reach     {announced.reach.value}",
    ]
    if limits:
        lines.append(f"limits    {limits}")
    if joins:
        join = f"--model {model} --initial-peers {joins[0]}"
        lines += ["", "Others join with:", f"  python -m swarm.server {join}"]
        lines += ["and ask with:", f'  python -m swarm generate "Hello" {join}']
    console.event(
        "banner",
        "\n".join(lines),
        peer=announced.peer,
        model=announced.model,
        span=[info.span.start, info.span.end],
        device=",".join(opened.devices),
        numerics=str(announced.numerics),
        memory_bytes=info.memory_bytes,
        kv_tokens=announced.kv_tokens,
        reach=announced.reach.value,
        limits=limits,
        addresses=joins,
    )
