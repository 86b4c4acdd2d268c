"""Tells a server's owner what others accuse it of: whoever is ejected must be able to see why."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from dataclasses import dataclass
from typing import NoReturn

from swarm.core.accusation import Accusation
from swarm.core.clock import Clock
from swarm.core.errors import BusyError, NetworkError, PeerError, SwarmError
from swarm.core.ids import ModelId, PeerId
from swarm.dht.protocol import Directory
from swarm.transport.proofs import fetch_proof
from swarm.transport.protocol import Transport
from swarm.verification.allegation import ProofKind, read_charge

LOOK_EVERY_S = 60.0
MAX_TOLD = 64
"""Different accusations that are told in one life of a process: anybody may make up any number of them."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SelfWatchParts:
    """The server's place in the network, and its model."""

    transport: Transport
    directory: Directory
    clock: Clock
    model: ModelId


class SelfWatch:
    """Reads accusations of this server and logs each once, with the proof's digest and what it says. Acts on none."""

    def __init__(self, parts: SelfWatchParts) -> None:
        self._parts = parts
        self._told: set[bytes] = set()
        self._sought: set[bytes] = set()

    async def run(self) -> NoReturn:
        """Look until cancelled."""
        while True:
            try:
                await self.look()
            except SwarmError as error:
                log.debug("could not look for accusations of this server: %s", error)
            await self._parts.clock.sleep(LOOK_EVERY_S)

    async def look(self) -> None:
        """Read what is said now, and tell what is new. Raises ``NetworkError`` if the directory does not answer."""
        parts = self._parts
        me = parts.transport.peer_id
        for record in await parts.directory.accusations(parts.model, [me]):
            if record.evidence:
                await self._tell("equivocation", hashlib.sha256(record.evidence).digest(), record)
            for proof in record.proofs:
                await self._tell("fraud", proof.digest, record, proof.size)

    async def _tell(self, kind: ProofKind, digest: bytes, record: Accusation, size: int = 0) -> None:
        if digest in self._told or len(self._told | self._sought) >= MAX_TOLD:
            return
        name = digest.hex()[:16]
        try:
            data = record.evidence or await self._fetched(record, digest, size)
            charge = await asyncio.to_thread(read_charge, kind, data)
            if charge.subject != self._parts.transport.peer_id:
                raise PeerError("it is about somebody else")
        except (NetworkError, BusyError) as error:
            if digest not in self._sought:
                self._sought.add(digest)
                log.warning("%s says to have proof %s against this server: %s", record.peer, name, error)
            return  # perhaps next time
        except SwarmError as error:
            self._told.add(digest)
            log.info("%s accuses this server by proof %s, which proves nothing: %s", record.peer, name, error)
            return
        self._told.add(digest)
        fate = "whoever reads it ejects this server"
        if kind == "fraud":
            fate = "whoever finds the same with the model's weights strikes this server, and ejects it the second time"
        log.warning("%s accuses this server: %s (proof %s); %s", record.peer, charge.what, name, fate)
        if len(self._told) >= MAX_TOLD:
            log.warning("no more accusations are told")

    async def _fetched(self, record: Accusation, digest: bytes, size: int) -> bytes:
        holder = PeerId(record.peer)
        return await fetch_proof(self._parts.transport, holder, digest, addresses=record.addresses, size=size)
