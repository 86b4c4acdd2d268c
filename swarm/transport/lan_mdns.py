"""The local network over multicast DNS: a service of type ``_swarm._tcp.local.`` for each node (RFC 6762 and 6763)."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import Sequence

from zeroconf import Error, InterfaceChoice, IPVersion, ServiceStateChange, Zeroconf
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from swarm.core.errors import ConfigError, NetworkError
from swarm.transport.addresses import is_loopback
from swarm.transport.lan import MAX_HEARD, Hearing, Notice, advertised, write_notice
from swarm.transport.subnets import own_subnets

SERVICE = "_swarm._tcp.local."
ASK_S = 3.0
"""How long to ask a name for its TXT record."""

_log = logging.getLogger(__name__)


class MdnsNetwork:
    """``LocalNetwork`` by multicast DNS. Create it with ``open``."""

    def __init__(self, zeroconf: AsyncZeroconf, hearing: Hearing) -> None:
        self._zeroconf = zeroconf
        self._hearing = hearing
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._closed = False
        self._browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[self._changed])

    @classmethod
    async def open(cls, *, host: str = "0.0.0.0", swarm: str = "") -> MdnsNetwork:
        """Listen on the interface that has the address ``host``, or on all; hear of nodes of the swarm ``swarm``.

        Raises ``NetworkError`` if multicast cannot be used here.
        """
        try:
            address = ipaddress.ip_address(host)
        except ValueError as error:
            raise ConfigError(f"{host!r} is not an IP address", hint="listen on 0.0.0.0, which is all") from error
        try:
            zeroconf = AsyncZeroconf(
                interfaces=InterfaceChoice.All if address.is_unspecified else [host],
                ip_version=IPVersion.V4Only if address.version == 4 else IPVersion.All,
            )
        except (OSError, Error) as error:
            raise NetworkError(
                f"cannot listen to the local network: {error}", hint="give an address with --initial-peers instead"
            ) from error
        return cls(zeroconf, Hearing(swarm, loopback=address.is_loopback, subnets=own_subnets()))

    async def advertise(self, notice: Notice) -> None:
        """See ``LocalNetwork.advertise``."""
        self._hearing.ignore(notice.peer)
        near = advertised(notice.addresses, self._hearing.subnets)
        if not near or (is_loopback(near[0]) and not self._hearing.loopback):  # others pass over loopback, as we do
            raise NetworkError(
                "it has no address that machines near by can dial",
                hint="have them join with --initial-peers",
            )
        info = AsyncServiceInfo(
            SERVICE,
            f"{notice.peer}.{SERVICE}",
            port=int(near[0].split("/")[4]),
            properties=write_notice(Notice(notice.peer, near, self._hearing.swarm), self._hearing.subnets),
            parsed_addresses=list(dict.fromkeys(address.split("/")[2] for address in near)),
            server=f"swarm-{notice.peer[-12:].lower()}.local.",
        )
        try:
            await self._zeroconf.async_register_service(info, strict=False)
        except (OSError, Error, TimeoutError) as error:
            raise NetworkError(f"cannot tell the local network of this node: {error!r}") from error

    def heard(self) -> Sequence[Notice]:
        """See ``LocalNetwork.heard``."""
        return self._hearing.heard()

    async def wait_news(self) -> None:
        """See ``LocalNetwork.wait_news``."""
        await self._hearing.wait_news()

    async def close(self) -> None:
        """See ``LocalNetwork.close``."""
        if self._closed:
            return
        self._closed = True
        await self._browser.async_cancel()
        for task in self._asking.values():
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)
        await self._zeroconf.async_close()

    def _changed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:  # the names are zeroconf's, which passes them by keyword
        if state_change is ServiceStateChange.Removed:
            self._hearing.forget(name)
            if (task := self._asking.pop(name, None)) is not None:
                task.cancel()
        elif name not in self._asking and len(self._asking) < MAX_HEARD and not self._closed:
            self._asking[name] = asyncio.get_running_loop().create_task(self._ask(name), name=f"ask {name[:60]!r}")

    async def _ask(self, name: str) -> None:
        try:
            info = AsyncServiceInfo(SERVICE, name)
            if await info.async_request(self._zeroconf.zeroconf, ASK_S * 1000):
                self._hearing.hear(name, info.properties)
        except Exception as error:  # zeroconf's parser meets strangers' bytes: whatever it raises is theirs
            _log.debug("a neighbour's notice cannot be read: %r", error)
        finally:
            self._asking.pop(name, None)
