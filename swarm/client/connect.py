"""Join a real swarm as a client: a libp2p node, the directory, and the model's small files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, TypedDict

from swarm.client.auditing.checking import audit_traffic, check_proofs
from swarm.client.model import AsyncSwarmModel
from swarm.client.parts import ClientOptions, ClientParts
from swarm.client.tokenizer import Tokenizer
from swarm.core.clock import Clock
from swarm.core.errors import ConfigError, NetworkError, SwarmError
from swarm.models.files import ModelFiles
from swarm.models.progress import Progress as BytesProgress
from swarm.models.progress import silent
from swarm.models.resolve import resolve
from swarm.runtime.calibrations import find_calibration
from swarm.runtime.clock import SystemClock
from swarm.runtime.identity import load_or_create
from swarm.runtime.reputation import ReputationStore, open_reputation
from swarm.runtime.tracing import span
from swarm.transport.lan import check_swarm_name, find_peers
from swarm.verification.verdicts.calibration import Calibration
from swarm.wire.fields import Codec

CHOICES = {"head": ("auto", "local", "remote"), "compression": ("none", "int8"), "numerics": ("same", "any")}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectOptions:
    """How to join: through ``initial_peers``, addresses that servers print, or through whoever is near.

    ``lan`` looks for servers on the local network that run with ``--lan`` as well, a name for those of that name.

    ``head`` auto means remote: only ``local`` loads weights here. ``compression`` of what travels makes the answer
    inexact, and so does ``numerics`` any, which lets a chain mix them. ``busy_timeout_s`` is how long to wait for room
    in a full swarm, ``heal_timeout_s`` for somebody to take over what a chain has lost in the middle of an answer,
    ``step_timeout_s`` for one step before its server is replaced. ``host`` is the address to listen on, ``identity`` a
    key file (None: a new key each time), ``progress`` is told of bytes loaded.

    ``audit_my_traffic`` has other servers compute some of this client's rows again: they see them, and cheaters are
    found by it. It takes a calibration of the model on this machine, and ``audit_mb`` megabytes an hour at most.

    ``reputation`` is the file of what is known of servers, whom nobody routes to and why; ``":memory:"`` keeps nothing,
    None is the one in the data folder, which all of this user's clients share.
    """

    initial_peers: Sequence[str] = ()
    lan: bool | str = False
    head: Literal["auto", "local", "remote"] = "auto"
    revision: str | None = None
    compression: Literal["none", "int8"] = "none"
    numerics: Literal["same", "any"] = "same"
    busy_timeout_s: float = 60.0
    heal_timeout_s: float = 60.0
    step_timeout_s: float = 60.0
    host: str = "0.0.0.0"
    identity: Path | None = None
    audit_my_traffic: bool = False
    audit_mb: float = 500.0
    reputation: Path | str | None = None
    progress: BytesProgress = silent


class FurtherOptions(TypedDict, total=False):
    """What ``SwarmModel.connect`` takes beside its own arguments, for type checkers. See ``ConnectOptions``."""

    lan: bool | str
    compression: Literal["none", "int8"]
    numerics: Literal["same", "any"]
    busy_timeout_s: float
    heal_timeout_s: float
    step_timeout_s: float
    host: str
    audit_my_traffic: bool
    audit_mb: float
    reputation: Path | str | None
    progress: BytesProgress


class JoinOptions(FurtherOptions, total=False):
    """All of them. See ``ConnectOptions``."""

    initial_peers: Sequence[str]
    head: Literal["auto", "local", "remote"]
    revision: str | None
    identity: Path | None


async def connect(model: str, options: ConnectOptions) -> AsyncSwarmModel:
    """A client of the swarm that serves ``model`` (``demo``, a folder, or a hub id), ready to generate.

    Fetches the tokenizer and configuration, and with ``head="local"`` embeddings and LM head. Raises ``ConfigError``
    without anybody to join or for an unknown choice, ``ModelError`` for a model that cannot be opened,
    ``PeerUnreachableError`` if no initial peer answers, or nobody is near.
    """
    _check(options)
    with span("swarm.connect", {"swarm.initial_peers": len(options.initial_peers)}) as seen:
        files = await asyncio.to_thread(resolve, model, revision=options.revision, progress=options.progress)
        joined = await join(files, Tokenizer.of(files), options)
        seen.set(joined.traced)
    return joined


async def join(files: ModelFiles, tokenizer: Tokenizer, options: ConnectOptions) -> AsyncSwarmModel:
    """A client like ``connect``'s, for whoever has opened the model already. ``options.revision`` does not matter."""
    _check(options)
    calibration = await asyncio.to_thread(_calibration, files, options)
    clock = SystemClock()
    reputation = await asyncio.to_thread(open_reputation, options.reputation, clock)
    try:
        parts = await _parts(files, tokenizer, options, clock, reputation)
    except BaseException:
        reputation.close()
        raise
    model = AsyncSwarmModel(parts, _client_options(options))
    if calibration is not None:
        check_proofs(model, calibration)
        if options.audit_my_traffic:
            audit_traffic(model, calibration, mb_per_h=options.audit_mb)
    return model


async def _parts(
    files: ModelFiles, tokenizer: Tokenizer, options: ConnectOptions, clock: Clock, reputation: ReputationStore
) -> ClientParts:
    """A node of its own in the swarm."""
    from swarm.dht.hivemind_directory import HivemindDirectory
    from swarm.transport.libp2p import Libp2pTransport
    from swarm.transport.options import NatOptions

    peers = await peers_to_join(options.initial_peers, lan=options.lan, host=options.host)
    with TemporaryDirectory(prefix="swarm-") as folder:  # a new key is in a file as well, but no longer than it takes
        key_path = options.identity or Path(folder) / "key"
        identity = load_or_create(key_path)
        transport = await Libp2pTransport.create(
            key_path,
            host=options.host,
            initial_peers=peers,
            nat=NatOptions(dht_mode="client", serve_relay=False, port_map=False),
        )
    try:
        directory = await HivemindDirectory.create(transport.p2p, peers, clock, client_mode=True)
    except BaseException:
        await transport.close()
        raise
    return ClientParts(transport, directory, clock, files, tokenizer, reputation, identity)


async def peers_to_join(given: Sequence[str], *, lan: bool | str, host: str = "0.0.0.0") -> tuple[str, ...]:
    """``given``, and with ``lan`` those who are near: on the interface that has the address ``host``, or on any.

    Raises ``PeerUnreachableError`` if that is nobody, ``NetworkError`` if the local network cannot be searched.
    """
    if not lan:
        return tuple(given)
    from swarm.transport.lan_mdns import MdnsNetwork

    try:
        network = await MdnsNetwork.open(host=host, swarm=lan if isinstance(lan, str) else "")
        try:
            return (*given, *await find_peers(network, SystemClock()))
        finally:
            await network.close()
    except NetworkError:
        if given:
            return tuple(given)
        raise


def _client_options(options: ConnectOptions) -> ClientOptions:
    codec: Codec = "int8" if options.compression == "int8" else "raw"
    return ClientOptions(
        remote_head=options.head != "local",
        codec=codec,
        mixed_numerics=options.numerics == "any",
        busy_timeout_s=options.busy_timeout_s,
        heal_timeout_s=options.heal_timeout_s,
        step_timeout_s=options.step_timeout_s,
        progress=options.progress,
    )


def _calibration(files: ModelFiles, options: ConnectOptions) -> Calibration | None:
    """This machine's, if it has one. A damaged one is only in the way of who asked for audits."""
    try:
        found = find_calibration(files.model_id)
    except SwarmError:
        if options.audit_my_traffic:
            raise
        return None
    if found is None and options.audit_my_traffic:
        raise ConfigError(
            f"no calibration of {files.name} on this machine, and audits need one",
            hint="fetch the swarm's, or run `python -m swarm calibrate`",
        )
    return found


def _check(options: ConnectOptions) -> None:
    if isinstance(options.lan, str):
        check_swarm_name(options.lan)
    if isinstance(options.initial_peers, str) or not (options.initial_peers or options.lan):
        given = "no initial peers given" if not options.initial_peers else "initial_peers is one string, not a list"
        raise ConfigError(given, hint='pass addresses that servers printed, like ["/ip4/…/tcp/…/p2p/…"], or lan=True')
    for name, known in CHOICES.items():
        if getattr(options, name) not in known:
            raise ConfigError(f"{name} is {getattr(options, name)!r}", hint=f"choose {' or '.join(known)}")
    for name in ("busy_timeout_s", "heal_timeout_s", "step_timeout_s", "audit_mb"):
        if not getattr(options, name) >= 0:  # a NaN fails this too
            unit = "megabytes" if name == "audit_mb" else "seconds"
            raise ConfigError(f"{name} is {getattr(options, name)!r}", hint=f"give {unit}, 0 or more")
