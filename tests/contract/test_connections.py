"""The client's connections: how each way to break is reported, the way through a tunnel, and bodies that are sent."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import TYPE_CHECKING, Any

import pytest
from yarl import URL

from outrider.adapters.origin.client import HttpClient
from outrider.adapters.origin.endpoint import Endpoint
from outrider.adapters.origin.forward_proxy import ForwardProxy
from outrider.adapters.origin.http_reply import ReceivedReply
from outrider.core.errors import Broke, OriginBroke
from outrider.metrics import Metrics
from tests.contract.http_origins import Serve, listening
from tests.contract.test_odd_heads import PLAIN
from tests.support.fakes import pieces_of
from tests.support.tls import certify

if TYPE_CHECKING:
    from pathlib import Path

HELLO = PLAIN % 5 + b"hello"


@asynccontextmanager
async def client_of() -> AsyncIterator[HttpClient]:
    with closing(HttpClient(Metrics(), lambda kind, name: None, threads=2, connect_timeout_s=20)) as client:
        yield client


def at(port: int, scheme: str = "http", proxy: str | None = None) -> Endpoint:
    return Endpoint(f"{scheme}://127.0.0.1:{port}", "", ForwardProxy(None if proxy is None else URL(proxy)))


async def body_of(reply: ReceivedReply) -> bytes:
    with closing(reply):
        return b"".join([chunk async for chunk in pieces_of(reply)])


async def replies(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.readuntil(b"\r\n\r\n"):
        writer.write(HELLO)


async def hangs_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")


async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


async def stops_in_the_body(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(HELLO[:-2])
    await reader.read()


async def babbles(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
    await reader.read()


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize(
    ("serve", "cause", "lasting"),
    [(hangs_up, Broke.OTHER, False), (says_nothing, Broke.LATE, False), (stops_in_the_body, Broke.LATE, False),
     (babbles, Broke.UNREADABLE, True), (None, Broke.CONNECT, False)],
)  # fmt: skip
async def test_the_type_of_a_failure_says_how_it_came(
    serve: Serve | None, cause: Broke, lasting: bool, bulk: bool
) -> None:
    async with listening(serve or replies) as port, client_of() as client:
        with pytest.raises(OriginBroke) as broke:
            await body_of(await client.ask(at(port if serve else 9), "GET", "/", {"host": "x"}, 0.2, bulk=bulk))
    assert (broke.value.cause, broke.value.lasting) == (cause, lasting)


async def test_a_slow_server_that_goes_on_is_waited_for_on_a_connection_that_is_used_again() -> None:
    asked = 0

    async def slowly(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        while await reader.readuntil(b"\r\n\r\n"):
            asked += 1
            for byte in HELLO[:12], HELLO[12:-3], HELLO[-3:]:
                with suppress(TimeoutError):
                    await asyncio.wait_for(reader.readuntil(b"never"), 0.15)
                writer.write(byte)
            return

    async with listening(slowly) as port, client_of() as client:
        assert await body_of(await client.ask(at(port), "GET", "/", {"host": "x"}, 0.3)) == b"hello"
    assert asked == 1


@pytest.mark.parametrize("secure_proxy", [False, True])
async def test_a_server_behind_a_tunnel_is_asked_over_its_own_tls(secure_proxy: bool, tmp_path: Path) -> None:
    made = certify(tmp_path)
    theirs, ours = (
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH),
        ssl.create_default_context(cafile=made.authority),
    )
    theirs.load_cert_chain(made.chain, made.key)
    tunnels: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tunnels.append(await reader.readuntil(b"\r\n\r\n"))
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with closing(sink):
                while data := await source.read(65536):
                    sink.write(data)

        await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)

    async with (
        listening(replies, theirs) as port,
        listening(tunnel, theirs if secure_proxy else None) as near,
        client_of() as client,
    ):
        target = at(port, "https", f"http{'s' * secure_proxy}://127.0.0.1:{near}")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("outrider.adapters.origin.connector.trusted", lambda: ours)
            for _ in range(2):
                assert await body_of(await client.ask(target, "GET", "/", {"host": "x"}, 20, tls=ours)) == b"hello"
    assert [head.split(b"\r\n")[0] for head in tunnels] == [f"CONNECT 127.0.0.1:{port} HTTP/1.1".encode()]


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


async def test_a_body_of_unknown_length_is_sent_in_chunks() -> None:
    got = []

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got.append(await reader.readuntil(b"0\r\n\r\n"))
        writer.write(HELLO)
        await reader.read()

    async with listening(take) as port, client_of() as client:
        asking = client.ask(at(port), "PUT", "/", {"host": "x"}, 20, body=pieces(b"abc", b"", b"0123456789abcdef"))
        assert await body_of(await asking) == b"hello"
    head, _, body = got[0].partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in head
    assert body == b"3\r\nabc\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n"


async def endless() -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.Event().wait()


@pytest.mark.parametrize("expect", [False, True])
async def test_an_answer_before_the_body_is_the_reply_and_ends_the_connection(expect: bool) -> None:
    ended = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HELLO)
        rest = await reader.read()
        assert rest == (b"" if expect else b"first")
        ended.set()

    headers = {"host": "x", "content-length": "9"} | ({"expect": "100-continue"} if expect else {})
    async with listening(refuse) as port, client_of() as client:
        reply = await client.ask(at(port), "PUT", "/", headers, 20, body=endless())
        for _ in range(20):
            await asyncio.sleep(0)
        assert await body_of(reply) == b"hello"
        await asyncio.wait_for(ended.wait(), 20)


async def test_a_body_is_sent_once_the_server_asks_for_it() -> None:
    async def ask_for_it(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.readexactly(3) == b"abc"
        writer.write(HELLO)
        await reader.read()

    headers = {"host": "x", "content-length": "3", "expect": "100-continue"}
    async with listening(ask_for_it) as port, client_of() as client:
        assert await body_of(await client.ask(at(port), "PUT", "/", headers, 20, body=pieces(b"abc"))) == b"hello"


async def test_a_body_that_nobody_reads_is_left_in_the_socket() -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PLAIN % 50_000_000)
        while True:
            writer.write(bytes(500_000))
            await writer.drain()

    async with listening(pour) as port, client_of() as client:
        reply = await client.ask(at(port), "GET", "/", {"host": "x"}, 20)
        for _ in range(500):
            await asyncio.sleep(0)
        connection = connection_of(reply)
        assert connection.held_bytes <= 512 * 1024
        reply.close()


async def test_a_reply_that_broke_is_never_whole_afterwards() -> None:
    async with listening(stops_in_the_body) as port, client_of() as client:
        with closing(await client.ask(at(port), "GET", "/", {"host": "x"}, 0.05)) as reply:
            assert await reply.some() == b"hel"
            for _ in range(2):
                with pytest.raises(OriginBroke):
                    await reply.some()


@pytest.mark.parametrize("bulk", [False, True])
@pytest.mark.parametrize("breaks", ["stalls", "resets"])
async def test_a_body_until_the_end_is_whole_by_an_orderly_end_alone(breaks: str, bulk: bool) -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        if breaks == "resets":
            sock = writer.get_extra_info("socket")
            await read.wait()
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            await reader.read()

    read = asyncio.Event()
    async with listening(pour) as port, client_of() as client:
        with closing(await client.ask(at(port), "GET", "/", {"host": "x"}, 0.2, bulk=bulk)) as reply:
            assert await reply.some() == b"hello"
            read.set()
            with pytest.raises(OriginBroke):
                await reply.some()


async def test_a_get_on_idle_connections_that_hang_is_given_up_after_one_of_them() -> None:
    asked = 0

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HELLO)
        while await reader.readuntil(b"\r\n\r\n"):
            asked += 1

    async with listening(once) as port, client_of() as client:
        asking = [client.ask(at(port), "GET", "/", {"host": "x"}, 0.2, bulk=True) for _ in range(2)]
        for reply in await asyncio.gather(*asking):
            await body_of(reply)
        with pytest.raises(OriginBroke) as broke:
            await client.ask(at(port), "GET", "/", {"host": "x"}, 0.2, bulk=True)
    assert (broke.value.cause, asked) == (Broke.LATE, 1)


async def test_a_connection_whose_reply_was_left_unread_notices_that_the_server_ends_it() -> None:
    size = 100_000

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PLAIN % size + bytes(size))
        await left.wait()

    left = asyncio.Event()
    async with listening(once) as port, client_of() as client:
        reply = await client.ask(at(port), "GET", "/", {"host": "x"}, 20)
        connection = connection_of(reply)
        await until(lambda: connection.held_bytes == size)
        reply.close()
        left.set()
        await until(lambda: not connection.is_open)


def connection_of(reply: Any) -> Any:
    return reply._connection


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not holds():
            await asyncio.sleep(0)


async def test_a_body_until_the_end_is_not_whole_because_it_was_given_up() -> None:
    async def pour(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nhello")
        await reader.read()

    async with listening(pour) as port, client_of() as client:
        reply = await client.ask(at(port), "GET", "/", {"host": "x"}, 20)
        assert await reply.some() == b"hello"
        reading = asyncio.create_task(reply.some())
        await asyncio.sleep(0)
        reply.close()
        with pytest.raises(OriginBroke):
            await reading


async def more_and_more() -> AsyncIterator[bytes]:
    while True:
        yield bytes(100_000)


@pytest.mark.parametrize("expect", [False, True])
async def test_a_server_that_neither_takes_the_body_nor_asks_for_it_is_late(expect: bool) -> None:
    async def take_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await given_up.wait()

    given_up = asyncio.Event()
    headers = {"host": "x", "content-length": "999999999"} | ({"expect": "100-continue"} if expect else {})
    async with listening(take_nothing) as port, client_of() as client:
        with pytest.raises(OriginBroke) as broke:
            async with asyncio.timeout(20):
                await client.ask(at(port), "PUT", "/", headers, 0.2, body=more_and_more())
        given_up.set()
    assert broke.value.cause is Broke.LATE


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_name_that_is_none_is_no_connection_for_good(bulk: bool) -> None:
    target = Endpoint(f"http://{'a' * 64}.example", "", ForwardProxy())
    async with client_of() as client:
        with pytest.raises(OriginBroke) as broke:
            await client.ask(target, "GET", "/", {"host": "x"}, 20, bulk=bulk)
    assert (broke.value.cause, broke.value.lasting) == (Broke.CONNECT, True)


@pytest.mark.parametrize("bulk", [False, True])
async def test_a_reply_that_outlives_its_client_ends_its_connection(bulk: bool) -> None:
    ended = asyncio.Event()

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HELLO)
        await reader.read()
        ended.set()

    async with listening(once) as port:
        async with client_of() as client:
            reply = await client.ask(at(port), "GET", "/", {"host": "x"}, 20, bulk=bulk)
        assert await body_of(reply) == b"hello"
        await asyncio.wait_for(ended.wait(), 20)


@pytest.mark.parametrize("unasked", [HELLO, b""])
async def test_no_request_meets_what_the_server_did_before_the_loop_noticed(unasked: bytes) -> None:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        async with client_of() as client:
            for _ in range(2):
                asking = asyncio.create_task(client.ask(at(server.getsockname()[1]), "PUT", "/", {"host": "x"}, 20))
                async with asyncio.timeout(20):
                    connection, _ = await loop.sock_accept(server)
                    assert await loop.sock_recv(connection, 1000)
                    await loop.sock_sendall(connection, PLAIN % 4 + b"this")
                    assert await body_of(await asking) == b"this"
                # The loop does nothing between this and the next request.
                with connection:
                    connection.send(unasked)


async def test_an_answer_that_came_before_the_connection_broke_under_the_body_is_the_reply() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        async def refused_meanwhile() -> AsyncIterator[bytes]:
            yield b"first"
            connection, _ = server.accept()
            with connection:
                connection.send(HELLO)
            # The bytes not read reset the connection. The loop does nothing between that and the next pieces.
            for _ in range(3):
                yield b"more"

        async with client_of() as client:
            headers = {"host": "x", "content-length": "99"}
            asking = client.ask(at(server.getsockname()[1]), "PUT", "/", headers, 20, body=refused_meanwhile())
            assert await body_of(await asking) == b"hello"
