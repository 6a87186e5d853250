"""The members at all addresses that a name has: headless Services, Consul, ECS, Compose."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator, Sequence

from aiohttp.abc import AbstractResolver

from outrider.adapters.cluster.member_lists import Outages, SourceUnreachable, polled
from outrider.adapters.process.file_reload import Sleep
from outrider.core.cluster.member import ListedMember
from outrider.settings.members import DnsPeers

# Records of cluster DNS live for 5 s (Kubernetes) to 60 s (ECS).
_EVERY_S = 5.0
# The name has no address, now: a headless Service without endpoints.
_NO_ADDRESS = {socket.EAI_NONAME, socket.EAI_NODATA}


class DnsSource:
    """`resolver`: raises OSError as `getaddrinfo` does. A name without an address is an empty list; a server that does
    not answer gives none."""

    def __init__(
        self, peers: DnsPeers, outages: Outages, *, resolver: AbstractResolver, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._peers = peers
        self._outages = outages
        self._resolver = resolver
        self._sleep = sleep

    def lists(self) -> AsyncGenerator[Sequence[ListedMember], None]:
        return polled(self._ask, self._outages, self._sleep, _EVERY_S)

    async def _ask(self) -> list[ListedMember]:
        name, port = self._peers.name, self._peers.port
        try:
            found = await self._resolver.resolve(name, port, family=socket.AF_UNSPEC)
        except OSError as error:
            if isinstance(error, socket.gaierror) and error.errno in _NO_ADDRESS:
                return []
            raise SourceUnreachable(f"{name}: {error.strerror or error}") from error
        return [ListedMember(f"{_host(record['host'])}:{port}") for record in found]


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address
