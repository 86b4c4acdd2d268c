"""``python -m swarm.gateway``: any OpenAI client asks a swarm through this process, and so does a browser."""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from swarm.cli.joining import add_joining, check_joining, joining_text, lan_of
from swarm.cli.options.http_options import add_http, base_url, check_http, is_loopback, known_hosts
from swarm.cli.output.console import Console, HumanConsole, JsonConsole
from swarm.cli.output.tables import option_name
from swarm.cli.signals import STOPPED_EARLY, Signals, first_of, stop_imports, unless_stopped
from swarm.core.errors import ConfigError
from swarm.gateway.keys import read_keys
from swarm.gateway.options import GatewayOptions

if TYPE_CHECKING:
    from swarm.client.model import AsyncSwarmModel
    from swarm.gateway.service import Gateway

DEFAULTS = GatewayOptions(model_names=())
KEYS_VARIABLE = "SWARM_GATEWAY_API_KEYS"
EXAMPLES = f"""\
examples:
  a gateway for programs on this machine, and a chat page at http://127.0.0.1:8000/:
    python -m swarm.gateway --model demo --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...
  one for a network, which asks for a key:
    python -m swarm.gateway --model demo --initial-peers ... --host 0.0.0.0 --api-keys keys.txt

Any OpenAI client works with base_url http://127.0.0.1:8000/v1; docs/gateway.md says which fields are supported. API
keys are those of --api-keys and of the environment variable {KEYS_VARIABLE} (separated by commas).

what an answer is worth: servers are strangers. Their replies are *attributed* to the peer ids of the `swarm` field,
*spot-checked* only as far as it says, and never *confidential*: whoever holds the first layers can read the prompts.
The gateway itself speaks plain HTTP: put a proxy with TLS before it where others may listen.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Serve the OpenAI API and a chat page over a swarm."
    parser.epilog = EXAMPLES
    parser.set_defaults(renamed={"api_keys": "api-keys-file"}, variables=(KEYS_VARIABLE,))
    where = parser.add_argument_group("whom to ask")
    where.add_argument("--model", default="demo",
                       help="demo (default), a folder, or a Hugging Face id, optionally ID@REVISION")  # fmt: skip
    add_joining(where)
    where.add_argument("--head", choices=("auto", "local", "remote"), default="auto",
                       help="who embeds and samples: the servers (auto, remote), or this machine (local)")  # fmt: skip
    where.add_argument("--compression", choices=("none", "int8"), default="none", help="of rows on their way: int8 "
                       "takes a quarter of float32, and is lossy (default: none)")  # fmt: skip
    where.add_argument("--identity", type=Path,
                       help="key file of this client, made if missing (default: a new key each time)")  # fmt: skip
    _add_http(parser.add_argument_group("who may ask"))
    _add_bounds(parser.add_argument_group("how much"))
    parser.add_argument("--json", action="store_true", help="print events as JSON, one a line")


def _add_http(group: argparse._ArgumentGroup) -> None:
    add_http(group, port=8000, page="chat page", share=DEFAULTS.connections_per_address)
    group.add_argument("--api-keys", type=Path, metavar="FILE", help="ask for one of these keys, one a line")


def _add_bounds(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--concurrent", type=int, default=DEFAULTS.concurrent, metavar="N",
                       help=f"answers at once (default: {DEFAULTS.concurrent})")  # fmt: skip
    group.add_argument("--queue", type=int, default=DEFAULTS.queue, metavar="N",
                       help=f"requests that may wait (default: {DEFAULTS.queue}); others come back later")  # fmt: skip
    group.add_argument("--queue-timeout", type=float, default=DEFAULTS.queue_timeout_s, metavar="S",
                       help=f"how long each waits for its turn (default: {DEFAULTS.queue_timeout_s:g} s)")  # fmt: skip
    group.add_argument("--max-tokens", type=int, default=DEFAULTS.new_tokens, metavar="N",
                       help=f"length of an answer that asks for none (default: {DEFAULTS.new_tokens})")  # fmt: skip
    group.add_argument("--max-body-kb", type=int, default=DEFAULTS.max_body_bytes // 1024, metavar="N",
                       help=f"of a request (default: {DEFAULTS.max_body_bytes // 1024} kB of 1024 bytes)")  # fmt: skip
    group.add_argument("--drain-timeout", type=float, default=30.0, metavar="S",
                       help="how long Ctrl-C lets answers end (default: 30 s); a second one cuts them")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    check_joining(options)
    checked = gateway_options(options, os.environ.get(KEYS_VARIABLE, ""))
    console: Console = JsonConsole(sys.stdout) if options.json else HumanConsole(sys.stdout)
    # What the loop needs takes seconds to import: mistakes are told before that.
    with stop_imports(), console.waiting("loading libraries"):
        for name in ("swarm.client.connect", "swarm.dht.hivemind_directory", "swarm.gateway.service"):
            import_module(name)
    return asyncio.run(_serve(options, checked, console))


def gateway_options(options: argparse.Namespace, keys: str) -> GatewayOptions:
    """The gateway's options, checked; ``keys`` are those of the environment. ``ConfigError`` names what is wrong."""
    for flag in ("concurrent", "max_tokens", "max_body_kb"):
        if getattr(options, flag) < 1:
            raise ConfigError(f"{option_name(flag)} is {getattr(options, flag)}", hint="give at least 1")
    if options.queue < 0:
        raise ConfigError(f"--queue is {options.queue}", hint="give 0 or more")
    for flag in ("queue_timeout", "drain_timeout"):
        if not 0 <= getattr(options, flag) < float("inf"):  # a NaN fails this too
            raise ConfigError(f"{option_name(flag)} is {getattr(options, flag)}", hint="give seconds from 0 on")
    check_http(options)
    return GatewayOptions(
        model_names=(options.model,),
        concurrent=options.concurrent,
        queue=options.queue,
        queue_timeout_s=options.queue_timeout,
        new_tokens=options.max_tokens,
        max_body_bytes=options.max_body_kb * 1024,
        keys=(*_file_keys(options.api_keys), *read_keys(keys.replace(",", "\n"))),
        hosts=known_hosts(options),
        origins=tuple(options.cors_origin),
        page=not options.no_page,
        connections_per_address=options.connections_per_address,
    )


def _file_keys(path: Path | None) -> tuple[str, ...]:
    if path is None:
        return ()
    try:
        keys = read_keys(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"cannot read {path}: {error}", hint="--api-keys wants a text file, one key a line"
        ) from error
    if not keys:
        raise ConfigError(f"{path} holds no API key", hint="write one a line, or leave --api-keys out")
    return keys


async def _serve(options: argparse.Namespace, checked: GatewayOptions, console: Console) -> int:
    from swarm.client.connect import ConnectOptions, connect
    from swarm.gateway.service import Gateway

    signals = Signals(asyncio.get_running_loop())
    connecting = ConnectOptions(
        initial_peers=options.initial_peers,
        lan=lan_of(options),
        head=options.head,
        compression=options.compression,
        identity=options.identity,
        busy_timeout_s=options.queue_timeout,
        progress=console.progress,
    )
    with console.waiting(joining_text(options.initial_peers)):
        model = await unless_stopped(signals.stop, connect(options.model, connecting))
    if model is None:
        return STOPPED_EARLY
    try:
        checked = _named(checked, model.parts.files.name)
        gateway = Gateway(model, checked)
        try:
            port = await gateway.listen(options.host, options.port)
            _announce(options, checked, port, console)
            await _until_the_end(model, signals)
            await _leave(gateway, signals, options.drain_timeout, console)
        finally:
            await gateway.stop(0.0)
    finally:
        await model.close()
    return 0


async def _until_the_end(model: AsyncSwarmModel, signals: Signals) -> None:
    """Return when told to stop; raises ``NetworkError`` if the libp2p daemon dies, without which nothing works."""
    from swarm.transport.libp2p import Libp2pTransport

    transport = model.parts.transport
    if not isinstance(transport, Libp2pTransport):
        await signals.stop.wait()
        return
    broken = asyncio.create_task(transport.wait_broken())
    try:
        await first_of(signals.stop, broken)
        if broken.done():
            raise broken.result()
    finally:
        broken.cancel()


def _named(options: GatewayOptions, name: str) -> GatewayOptions:
    """Clients may call the model as the command line does, if that is no path, or by its own name."""
    given = () if Path(options.model_names[0]).is_dir() else options.model_names
    return replace(options, model_names=tuple(dict.fromkeys((*given, name))))


async def _leave(gateway: Gateway, signals: Signals, drain_timeout_s: float, console: Console) -> None:
    """End in good order; a second signal cuts the answers."""
    console.event("draining", f"Letting answers end, for {drain_timeout_s:g} s at most (Ctrl-C again: at once)…")
    stopping = asyncio.create_task(gateway.stop(drain_timeout_s))
    await first_of(signals.hurry, stopping)
    if not stopping.done():
        gateway.hurry()
    await stopping
    console.event("left", "Left.")


def _announce(options: argparse.Namespace, checked: GatewayOptions, port: int, console: Console) -> None:
    """Say where, and how to ask."""
    url = base_url(options.host, port)
    model = checked.model_names[0]
    key = " -H 'Authorization: Bearer KEY'" if checked.keys else ""
    body = f'{{"model": "{model}", "messages": [{{"role": "user", "content": "Hello"}}]}}'
    curl = f"curl {url}/v1/chat/completions -H 'Content-Type: application/json'{key} -d {shlex.quote(body)}"
    page = f"a chat page:  {url}/\n" if checked.page else ""
    text = f"listening on {url}, model {model}\nOpenAI clients: base_url={url}/v1\n{page}try:  {curl}"
    console.event("listening", text, url=url, port=port, model=model, curl=curl)
    if not checked.keys and not is_loopback(options.host):
        console.warning("anybody who reaches this address may ask: --api-keys FILE keeps strangers out")
