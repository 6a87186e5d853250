"""Accepts connections, and bounds those that have not shown yet who they are.

1. `Acceptor` takes connections from a listening socket. When no descriptor is left it turns clients away.
2. `Strangers` counts connections by address from their first moment: a TLS handshake is a descriptor, and tens of KiB
   of memory. One address may have half of a port's room, so that one stranger leaves the other half to others.
3. `Listener` is a port: it gives an admitted connection to a protocol, once the handshake is over. A handshake has
   seconds. Connections that are turned away are counted, and logged once a minute.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol, runtime_checkable

import prometheus_client

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 5.0
"""A client that is not done with its TLS handshake by then is cut. It takes two round trips."""
BACKLOG = 1024
_ACCEPT_AGAIN_S = 0.05
_LOG_EVERY_S = 60.0


class Acceptor:
    """Calls `take` with each connection, which is not blocking, and the address that it came from."""

    def __init__(self, listening: socket.socket, take: Callable[[socket.socket, str], None]) -> None:
        """`listening`: is closed by `close`. On the running loop."""
        listening.setblocking(False)
        self._socket: socket.socket | None = listening
        self._take = take
        self._loop = asyncio.get_running_loop()
        # Given up for a moment to accept a client for which there is no descriptor, and to close its connection: it
        # would wait in the backlog until its own time-out. libuv does the same.
        self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        self._resume()

    def close(self) -> None:
        if self._socket is not None:
            self._loop.remove_reader(self._socket.fileno())
            self._socket.close()
            self._socket = None
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1

    def _resume(self) -> None:
        if self._socket is not None:
            self._loop.add_reader(self._socket.fileno(), self._accept)

    def _accept(self) -> None:
        # One in each turn of the loop: those that came before give their descriptors back meanwhile.
        assert self._socket is not None
        try:
            client, address = self._socket.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            self._turn_away(self._socket)
            return
        client.setblocking(False)
        self._take(client, str(address[0]) if address else "")

    def _turn_away(self, listening: socket.socket) -> None:
        """Close the connection of a client for which there is no descriptor."""
        if self._reserve >= 0:
            os.close(self._reserve)
            self._reserve = -1
            with suppress(OSError):
                listening.accept()[0].close()
        try:
            self._reserve = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            # A file that a thread opens took it. The loop would call at once again.
            self._loop.remove_reader(listening.fileno())
            self._loop.call_later(_ACCEPT_AGAIN_S, self._resume)


class Strangers:
    """Connections that have not shown yet who they are, by network. At most `per_network_max` come from one."""

    def __init__(self, per_network_max: int) -> None:
        self._per_network_max = max(1, per_network_max)
        self._by_network: Counter[str] = Counter()

    def __len__(self) -> int:
        return self._by_network.total()

    def enter(self, network: str) -> bool:
        """False: too many come from this network, and this one is not counted."""
        if self._by_network[network] >= self._per_network_max:
            return False
        self._by_network[network] += 1
        return True

    def leave(self, network: str) -> None:
        """A connection that entered has shown who it is, or is closed."""
        self._by_network[network] -= 1
        if not self._by_network[network]:
            del self._by_network[network]


def network_of(address: str) -> str:
    """The addresses that one stranger is likely to have: an address of IPv4, a /64 of IPv6 (RFC 6177)."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return found.packed[:8].hex()
    return str(found)


@runtime_checkable
class Introduced(Protocol):
    """A connection whose client shows by its first request who it is."""

    introduced: asyncio.Event
    """Set when it has shown that, and when the connection is lost."""


class Listener:
    """A port that listens. `close` ends that; connections stay, and handshakes go on until `abort`."""

    def __init__(
        self, listening: Sequence[socket.socket], new_protocol: Callable[[], asyncio.Protocol],
        refused: prometheus_client.Counter, *, port: str, connections_max: int, connected: Callable[[], int],
        make_room: Callable[[], bool] = lambda: False, tls: ssl.SSLContext | None = None,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
    ) -> None:  # fmt: skip
        """On the running loop. `listening`: bound sockets. `port`: its label in `refused`. `connections_max`: how many
        connections there may be, handshakes included. `connected`: how many there are whose handshake is over; for a
        turn of the loop such a connection counts twice. `make_room`: closes a connection that is idle, for one that
        would be too many; False: there is none. It is not called while strangers have half of the room."""
        self._new_protocol = new_protocol
        self._refused = refused
        self._port = port
        self._connections_max = connections_max
        self._connected = connected
        self._make_room = make_room
        self._tls = tls
        self._handshake_timeout_s = handshake_timeout_s
        self._strangers = Strangers(connections_max // 2)
        self._shaking_hands = 0
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._unlogged: Counter[str] = Counter()
        self._logged_at: dict[str, float] = {}
        self.number = int(listening[0].getsockname()[1])
        """The number of the port."""
        for each in listening:
            each.listen(BACKLOG)
        self._acceptors = [Acceptor(each, self._take) for each in listening]

    @property
    def shaking_hands(self) -> int:
        """How many connections are in their handshake."""
        return self._shaking_hands

    def close(self) -> None:
        """Accept no more connections."""
        for acceptor in self._acceptors:
            acceptor.close()

    def abort(self) -> None:
        """Cut the handshakes that are under way."""
        for task in self._tasks:
            task.cancel()

    def _take(self, client: socket.socket, address: str) -> None:
        network = network_of(address)
        is_full = self._connected() + self._shaking_hands >= self._connections_max
        if not self._strangers.enter(network):
            self._turn_away(client, "address", address)
        elif is_full and (len(self._strangers) > self._connections_max // 2 or not self._make_room()):
            self._strangers.leave(network)
            self._turn_away(client, "full", address)
        else:
            self._shaking_hands += 1
            task = self._loop.create_task(self._serve(client, network, address), name=f"{self._port} connection")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: socket.socket, network: str, address: str) -> None:
        try:
            protocol = await self._connect(client, address)
            if isinstance(protocol, Introduced):
                await protocol.introduced.wait()
        finally:
            self._strangers.leave(network)

    async def _connect(self, client: socket.socket, address: str) -> asyncio.BaseProtocol | None:
        """The protocol, once the handshake is over; None: it failed."""
        options: dict[str, Any] = {}
        if self._tls is not None:
            options = {"ssl": self._tls, "ssl_handshake_timeout": self._handshake_timeout_s}
        try:
            _, protocol = await self._loop.connect_accepted_socket(self._new_protocol, client, **options)
        except ssl.SSLError:
            self._count("handshake", address)
        except ConnectionAbortedError:
            self._count("late", address)
        except OSError:
            client.close()  # the client left
        else:
            return protocol
        finally:
            self._shaking_hands -= 1
        return None

    def _turn_away(self, client: socket.socket, why: str, address: str) -> None:
        client.close()
        self._count(why, address)

    def _count(self, why: str, address: str) -> None:
        self._refused.labels(self._port, why).inc()
        self._unlogged[why] += 1
        now = self._loop.time()
        if now - self._logged_at.get(why, -_LOG_EVERY_S) >= _LOG_EVERY_S:
            self._logged_at[why] = now
            log.warning(
                "connections were turned away",
                extra={"port": self._port, "why": why, "connections": self._unlogged.pop(why), "last_from": address},
            )
