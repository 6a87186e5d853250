"""A port of which each connection is counted from its first moment: handshakes are bounded in number, by address and in
time."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from ipaddress import IPv4Address, IPv6Address
from typing import cast

import pytest
import trustme
import uvloop
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from outrider.adapters.process.listening import bind
from outrider.http.wire.acceptor import Listener, Strangers, network_of
from outrider.metrics import refused_connections

ROOM = 6
HALF = ROOM // 2
LONG_S = 30.0
LOOPS = pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])


class Echo(asyncio.Protocol):
    def __init__(self, connected: set[Echo]) -> None:
        self._connected = connected
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._connected.add(self)

    def data_received(self, data: bytes) -> None:
        assert self.transport is not None
        self.transport.write(data)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connected.discard(self)


class Port:
    """An echo over TLS."""

    def __init__(self, handshake_timeout_s: float) -> None:
        self._authority = trustme.CA()
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._authority.issue_cert("127.0.0.1").configure_cert(context)
        self.connected: set[Echo] = set()
        self._registry = CollectorRegistry()
        self.listener = Listener(
            [bind("127.0.0.1", 0)], lambda: Echo(self.connected), refused_connections(self._registry), port="echo",
            connections_max=ROOM, connected=lambda: len(self.connected), tls=context,
            handshake_timeout_s=handshake_timeout_s,
        )  # fmt: skip

    def refused(self, why: str) -> float:
        labels = {"port": "echo", "why": why}
        return self._registry.get_sample_value("outrider_refused_connections_total", labels) or 0.0

    async def silent(self, source: str = "127.0.0.1") -> socket.socket:
        """A client that connects and sends nothing."""
        with ExitStack() as stack:
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.bind((source, 0))
            await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", self.listener.number))
            stack.pop_all()
            return client

    async def shake_hands(self, source: str = "127.0.0.1") -> asyncio.StreamWriter:
        """A client whose bytes come back. Raises OSError: it is turned away."""
        context = ssl.create_default_context()
        self._authority.configure_trust(context)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.listener.number, ssl=context, server_hostname="127.0.0.1", local_addr=(source, 0)
        )
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        return writer


async def is_cut(client: socket.socket) -> bool:
    try:
        async with asyncio.timeout(LONG_S):
            return await asyncio.get_running_loop().sock_recv(client, 1) == b""
    except ConnectionResetError:
        return True


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0)


@asynccontextmanager
async def port(handshake_timeout_s: float = LONG_S) -> AsyncIterator[tuple[Port, ExitStack]]:
    """The port, and a stack for its clients."""
    made = Port(handshake_timeout_s)
    with ExitStack() as clients:
        yield made, clients
    made.listener.close()
    made.listener.abort()
    for each in list(made.connected):
        assert each.transport is not None
        each.transport.abort()
    await until(lambda: not made.connected and not made.listener.shaking_hands)


@contextmanager
def running(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[asyncio.Runner]:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        yield runner


@LOOPS
def test_silent_clients_of_one_address_leave_half_of_the_room_to_others(
    new_loop: Callable[[], asyncio.AbstractEventLoop], caplog: pytest.LogCaptureFixture
) -> None:
    async def scene() -> None:
        async with port() as (echo, clients):
            silent = [clients.enter_context(await echo.silent()) for _ in range(HALF + 20)]
            for refused in silent[HALF:]:
                assert await is_cut(refused)
            assert (echo.listener.shaking_hands, echo.refused("address")) == (HALF, 20)
            writers = [await echo.shake_hands("127.0.0.2") for _ in range(HALF)]
            assert len(echo.connected) == HALF
            # A connection whose handshake is over is none that an address is bounded in. The room is full now.
            assert await is_cut(clients.enter_context(await echo.silent("127.0.0.3")))
            assert echo.refused("full") == 1
            # The room of one that has left is there for others.
            writers.pop().close()
            await until(lambda: len(echo.connected) < HALF)
            writers.append(await echo.shake_hands("127.0.0.3"))
            for writer in writers:
                writer.close()

    caplog.set_level(logging.WARNING)
    with running(new_loop) as runner:
        runner.run(scene())
    warnings = [record for record in caplog.records if record.message == "connections were turned away"]
    assert [vars(record)["why"] for record in warnings] == ["address", "full"], "once a minute for each reason"


@LOOPS
def test_a_handshake_has_seconds(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def scene() -> None:
        async with port(handshake_timeout_s=0.05) as (echo, clients):
            silent = [clients.enter_context(await echo.silent()) for _ in range(HALF)]
            for client in silent:
                assert await is_cut(client)
            await until(lambda: not echo.listener.shaking_hands)
            assert echo.refused("late") == HALF
            (await echo.shake_hands()).close()

    with running(new_loop) as runner:
        runner.run(scene())


@LOOPS
def test_a_handshake_that_fails_is_counted_and_one_that_is_broken_off_is_not(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def scene() -> None:
        async with port() as (echo, clients):
            clients.enter_context(await echo.silent()).send(b"GET / HTTP/1.1\r\n\r\n")
            await until(lambda: echo.refused("handshake") == 1)
            client = await echo.silent()
            await until(lambda: echo.listener.shaking_hands == 1)
            client.close()
            await until(lambda: not echo.listener.shaking_hands)
            assert (echo.refused("handshake"), echo.refused("late")) == (1, 0)

    with running(new_loop) as runner:
        runner.run(scene())


async def test_an_end_cuts_handshakes_and_leaves_connections() -> None:
    async with port() as (echo, clients):
        silent, writer = clients.enter_context(await echo.silent()), await echo.shake_hands()
        await until(lambda: echo.listener.shaking_hands == 1)
        echo.listener.close()
        with pytest.raises(ConnectionRefusedError):
            await echo.silent()
        echo.listener.abort()
        assert await is_cut(silent)
        assert len(echo.connected) == 1
        writer.close()


# -- addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8::1", "20010db800000000"),
        ("2001:db8::ffff:1", "20010db800000000"),
        ("fe80::1%eth0", "fe80000000000000"),
        ("", ""),
    ],
)
def test_an_address_is_of_a_network(address: str, network: str) -> None:
    assert network_of(address) == network


@given(st.ip_addresses(v=6), st.integers(0, 2**64 - 1))
def test_all_addresses_of_a_64_are_one_network(address: IPv6Address | IPv4Address, host: int) -> None:
    other = IPv6Address(int(address) >> 64 << 64 | host)
    mapped = [each for each in (address, other) if isinstance(each, IPv6Address) and each.ipv4_mapped]
    assert mapped or network_of(str(address)) == network_of(str(other))


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=60))
def test_no_network_has_more_than_its_part(per_network_max: int, acts: list[tuple[bool, str]]) -> None:
    """Against lists of those that entered."""
    strangers, inside = Strangers(per_network_max), dict.fromkeys("abc", 0)
    for enters, network in acts:
        if enters:
            assert strangers.enter(network) is (inside[network] < per_network_max)
            inside[network] = min(per_network_max, inside[network] + 1)
        elif inside[network]:
            strangers.leave(network)
            inside[network] -= 1
        assert len(strangers) == sum(inside.values())
