"""Makes connections: names to addresses, an attempt at each of them, and the way through a forward proxy and TLS."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Sequence
from functools import cache, partial
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohappyeyeballs import AddrInfoType, start_connection
from aiohttp.abc import AbstractResolver
from aiohttp.resolver import ThreadedResolver
from cachetools import TTLCache

from outrider.adapters.origin.connection import LoopConnection
from outrider.adapters.origin.endpoint import Endpoint
from outrider.core.errors import Broke, OriginBroke
from outrider.core.origin.reply_reader import ReplyReader
from outrider.futures import retrieve_failure

_NAMES_MAX, _NAMES_TTL_S = 1000, 30.0
# An address that does not answer holds the next one up for so long. Source: RFC 8305.
_NEXT_ADDRESS_S = 0.25
# All that a socket has, most of the time: each piece of a body costs some sixty calls. A quarter of it took a tenth
# more CPU for cold objects over https, and 3 MB less memory.
_LANDING_BYTES = 1024 * 1024
_HEAD_BYTES = 16 * 1024
# TimeoutError is an OSError. uvloop raises RuntimeError, and a name that is none a ValueError.
_NO_CONNECTION = (OSError, RuntimeError, ValueError)
_PORTS = {"http": 80, "https": 443}


class Connector:
    """Called on the event loop's thread. Each method raises OriginBroke: there is no connection."""

    def __init__(self, timeout_s: float, resolver: AbstractResolver | None = None) -> None:
        """`timeout_s` bounds a connect with its TLS, and not the look-up of a name. `resolver` None: the machine's."""
        self.timeout_s = timeout_s
        self._landing = memoryview(bytearray(_LANDING_BYTES))
        self._resolver = resolver
        self._names: TTLCache[tuple[str, int], asyncio.Task[Sequence[AddrInfoType]]] = TTLCache(
            _NAMES_MAX, _NAMES_TTL_S
        )

    async def socket_to(self, target: Endpoint) -> socket.socket:
        """A connection to a server, or to the proxy before a plain one, on which nothing was said yet."""
        try:
            addresses = await self._addresses(*_near(target)[1:])
            async with asyncio.timeout(self.timeout_s):
                sock = await _connected(addresses)
        except _NO_CONNECTION as error:
            raise _refused(error) from error
        if target.proxy.url is not None and not target.is_plain:
            await _tunnel_through(sock, target, self.timeout_s)
        return sock

    async def connect(self, target: Endpoint, tls: ssl.SSLContext | None) -> LoopConnection:
        """`tls` None: the certificates of the system are trusted."""
        is_secure, proxy = target.base.startswith("https:"), target.proxy.url
        scheme, host, port = _near(target)
        loop = asyncio.get_running_loop()
        sock: socket.socket | None = None
        connection: LoopConnection | None = None
        try:
            addresses = await self._addresses(host, port)
            async with asyncio.timeout(self.timeout_s):
                sock = await _connected(addresses)
                to_proxy = trusted() if proxy is not None else tls or trusted()
                near_tls = to_proxy if scheme == "https" else None
                _, connection = await loop.create_connection(
                    partial(LoopConnection, self._landing), sock=sock, ssl=near_tls,
                    server_hostname=host if near_tls is not None else None,
                )  # fmt: skip
                if proxy is not None and is_secure:
                    await _open_tunnel(connection, target, tls or trusted(), self.timeout_s)
            return connection
        except BaseException as error:
            if connection is not None:
                connection.abort()
            elif sock is not None:
                sock.close()
            if isinstance(error, _NO_CONNECTION):
                raise _refused(error) from error
            raise

    async def _addresses(self, host: str, port: int) -> Sequence[AddrInfoType]:
        try:
            family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
            return [(family, socket.SOCK_STREAM, 0, "", (host, port))]
        except ValueError:
            pass
        resolving = self._names.get((host, port))
        if resolving is None:
            resolving = self._names[host, port] = asyncio.create_task(self._resolve(host, port))
            resolving.add_done_callback(retrieve_failure)
        return await asyncio.shield(resolving)

    async def _resolve(self, host: str, port: int) -> Sequence[AddrInfoType]:
        try:
            found = await (self._resolver or ThreadedResolver()).resolve(host, port, family=socket.AF_UNSPEC)
            return [(each["family"], socket.SOCK_STREAM, 0, "", (each["host"], each["port"])) for each in found]
        except BaseException:
            self._names.pop((host, port), None)
            raise


async def _connected(addresses: Sequence[AddrInfoType]) -> socket.socket:
    sock = await start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return sock


async def _open_tunnel(connection: LoopConnection, target: Endpoint, tls: ssl.SSLContext, timeout_s: float) -> None:
    _check_tunnel(await connection.ask(_connect(target), timeout_s=timeout_s, without_body=True))
    await connection.start_tls(tls, urlsplit(target.base).hostname or "")


async def _tunnel_through(sock: socket.socket, target: Endpoint, timeout_s: float) -> None:
    loop, reader = asyncio.get_running_loop(), ReplyReader(without_body=True)
    try:
        async with asyncio.timeout(timeout_s):
            await loop.sock_sendall(sock, _connect(target))
            while not reader.status:
                if not (data := await loop.sock_recv(sock, _HEAD_BYTES)):
                    reader.end()
                reader.feed(data)
        _check_tunnel(reader)
    except _NO_CONNECTION as error:
        sock.close()
        raise _refused(error) from error
    except BaseException:
        sock.close()
        raise


def _connect(target: Endpoint) -> bytes:
    at = f"{target.host if urlsplit(target.base).port else f'{target.host}:443'}"
    lines = [f"CONNECT {at} HTTP/1.1", f"Host: {at}"]
    lines += [f"{name}: {value}" for name, value in (target.proxy.connect_headers or {}).items()]
    return "\r\n".join((*lines, "", "")).encode()


def _check_tunnel(reader: ReplyReader) -> None:
    if reader.status != 200:
        raise OriginBroke(f"cannot connect: its proxy answers {reader.status}", cause=Broke.CONNECT, lasting=True)


def _near(target: Endpoint) -> tuple[str, str, int]:
    """Scheme, host and port of the server, or of the proxy on the way."""
    if (proxy := target.proxy.url) is not None:
        return proxy.scheme, proxy.host or "", proxy.port or _PORTS[proxy.scheme]
    parts = urlsplit(target.base)
    return parts.scheme, parts.hostname or "", parts.port or _PORTS[parts.scheme]


def _refused(error: Exception) -> OriginBroke:
    why = "timed out" if isinstance(error, TimeoutError) else _words(error) or type(error).__name__
    lasting = isinstance(error, ssl.SSLCertVerificationError | ValueError)
    return OriginBroke(f"cannot connect: {why}", cause=Broke.CONNECT, lasting=lasting)


def _words(error: Exception) -> str:
    """As the system says it: event loops add numbers and addresses, which are the log's."""
    if isinstance(error, socket.gaierror):
        return error.strerror or str(error)
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError) and error.errno:
        return os.strerror(error.errno)
    return str(error)


@cache
def trusted() -> ssl.SSLContext:
    """The certificates of the system."""
    return ssl.create_default_context()
