"""A proxy of which a test sees what its fast path did with each request."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from outrider.http.s3.connection import Connection
from outrider.http.s3.exchange import Begun, ColdHit, Recognised
from tests.support.proxy import Proxy
from tests.support.rawhttp import Answer, RawConnection, ask

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from outrider.core.model import Headers
    from outrider.http.wire.sender import SocketSender
    from tests.support.bucket import Bucket

NAME = "fastpath"
BLOCK = 256 * 1024
RAMP = (bytes(range(251)) * (5 * BLOCK // 251 + 1))[: 5 * BLOCK]
# Far more than the sockets of both sides take at once.
LARGE = RAMP * 8
OBJECTS = {
    "a": RAMP[:100_000], "b": RAMP[7 : 7 + 1000], "empty": b"", "two": RAMP[: BLOCK + BLOCK // 2], "large": LARGE,
    "many": RAMP[:BLOCK] * 70, "folder/": b"a folder's own", "a b+%?é\"\\\n": b"odd",
}  # fmt: skip


class Watched:
    """A proxy that has all objects, with a record of the fast path's result for each request since `seen.clear()`.

    True: it answered. False: it left the request to the slow path. Else "begun" or "cold".
    """

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self.results: list[object] = []
        path = proxy.outrider.server.fast_path
        answer = path.answer

        def spied(data: bytes, wire: SocketSender, cold: ColdHit | None = None) -> Any:
            answered = answer(data, wire, cold)
            kinds: dict[type, object] = {Begun: "begun", ColdHit: "cold", Recognised: False}
            self.results.append(answered if isinstance(answered, bool) else kinds[type(answered)])
            return answered

        path.answer = spied  # type: ignore[method-assign]

    @property
    def seen(self) -> list[object]:
        async def copy_of_seen() -> list[object]:
            return list(self.results)

        return list(self.proxy.on_loop(copy_of_seen))  # a reply is sent before the loop has recorded it

    def connect(self) -> RawConnection:
        """A connection whose server side waits for its first request."""
        connection = RawConnection(self.proxy.address)
        self.wait(connection)
        self.results.clear()
        return connection

    def wait(self, connection: RawConnection) -> None:
        """Wait until the server expects the connection's next request or the rest of one: the server does some steps
        after a reply."""
        own = connection.sock.getsockname()

        async def waiting() -> None:
            async with asyncio.timeout(60):
                while True:
                    for connection in self.proxy.outrider.server.connections:
                        assert isinstance(connection, Connection)
                        if connection.peername == own and not connection.has_work:
                            return
                    await asyncio.sleep(0.001)

        self.proxy.on_loop(waiting)

    def connection_of(self, client: RawConnection) -> Connection:
        """The server's side of it."""
        own = client.sock.getsockname()
        (found,) = (each for each in self.proxy.outrider.server.connections if each.peername == own)
        assert isinstance(found, Connection)
        return found

    def ask(self, method: str, target: str, headers: Headers = ()) -> tuple[Answer, object]:
        with self.connect() as connection:
            answer = connection.ask(method, target, headers)
        return answer, self.seen[0] if self.seen else None

    def next(
        self, connection: RawConnection, method: str, target: str, headers: Iterable[tuple[str, str]] = ()
    ) -> Answer:
        """Like `RawConnection.ask`, with an idle server before it."""
        self.wait(connection)
        self.results.clear()
        return connection.ask(method, target, headers)


@contextmanager
def watched_proxy(bucket: Bucket, origin: str | None = None, **settings: Any) -> Iterator[Watched]:
    with Proxy(bucket, origin, **{"block_size": str(BLOCK), "freshness": "immutable", **settings}) as proxy:
        ask(proxy.address, "GET", f"/{NAME}/a")
        proxy.settle()
        ask(proxy.address, "GET", f"/{NAME}/a")
        yield Watched(proxy)
