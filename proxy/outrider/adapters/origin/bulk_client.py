"""Receives large bodies of the origin in threads: a thread that waits in `recv_into` or `pwrite` holds no GIL.

Each request is sent, and its reply's head read, on a blocking socket. The body is then received into one buffer and
handed on from there (`ports.ByteSink`), all in one thread. The event loop learns how far it is, and moves no bytes. The
large body of a request is sent in the same way (`pass_on`), in one of a few threads of their own.

Over https each TLS record (16 KiB) releases and takes the GIL, and threads on several cores then wait for each other:
neither TLS sockets in threads nor threads that decrypt from memory were faster than the event loop (docs/benchmarks.md,
the receiving path). So processes of their own speak TLS, and here their lines are read as plain http (`receivers`).
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from urllib.parse import urlsplit

from outrider.adapters.origin.blocking_connection import BlockingConnection
from outrider.adapters.origin.bulk_reply import BodyThreads, BulkReply, NoThread
from outrider.adapters.origin.connector import Connector
from outrider.adapters.origin.endpoint import Endpoint
from outrider.adapters.origin.http_reply import Counts
from outrider.adapters.origin.idle_connections import IdleConnections
from outrider.adapters.origin.receivers import Receivers
from outrider.core.errors import Broke, OriginBroke
from outrider.futures import retrieve_failure
from outrider.ports import BodyInThread

# Threads that send bodies. More uploads than that go through the event loop: the clients of some may be slow.
_SENDERS = 32


class BulkClient:
    """Owns the threads and the idle connections. Called on the event loop's thread."""

    def __init__(
        self, threads: int, connector: Connector, counts: Counts, *, small_bytes: int = 0,
        receivers: Receivers | None = None, idle_max: int = sys.maxsize,
    ) -> None:  # fmt: skip
        """`threads`: how many requests may be under way. One more is refused, and never waits for a thread.
        `small_bytes`: bodies up to this size are received with the head of their reply, by one hop to a thread.
        `receivers` None: none, and nothing comes here over https."""
        self._counts = counts
        self._connector = connector
        self._receivers = receivers
        self._free = threads
        self.threads = BodyThreads(threads, "outrider-receive")
        self._senders = BodyThreads(_SENDERS, "outrider-send")
        self._senders_free = _SENDERS
        self._small_bytes = small_bytes
        self.idle: IdleConnections[BlockingConnection] = IdleConnections(most=idle_max)

    async def ask(
        self, target: Endpoint, request: bytes, timeout_s: float, body: BodyInThread | None = None
    ) -> BulkReply | None:  # fmt: skip
        """Send a GET, or a request whose body a thread takes from the client. None: nothing was sent, since no thread
        or no receiver is free, and the body is where it was. `timeout_s` bounds each wait for the server.

        Raises:
            OriginBroke: no reply came, or none that can be read; or the body failed.
        """
        if not await self._takes(target, body):
            return None
        self._free -= 1
        self._senders_free -= body is not None
        connection: BlockingConnection | None = None
        asking: asyncio.Future[None] | None = None
        try:
            is_answered = False
            while not is_answered:
                kept = self.idle.take(target.key)
                connection = kept or await self._connected(target)
                ask = partial(connection.ask, request, timeout_s, body=body, small_bytes=self._small_bytes)
                asking = (self.threads if body is None else self._senders).begin(ask)
                try:
                    await asyncio.shield(asking)
                    is_answered = True
                except OriginBroke as error:
                    # The server closed an idle connection in the moment in which it was used. A GET may be sent again.
                    is_sent_again = kept is not None and body is None and error.cause is Broke.OTHER
                    if not is_sent_again or connection.reader.has_begun:
                        raise
                    connection.close()
        except BaseException as error:
            if isinstance(error, NoThread) and connection is not None:
                self.idle.put(target.key, connection)
                connection = None
            if asking is None or asking.done() or connection is None:
                self._failed(connection, body)
            else:
                connection.abort()
                asking.add_done_callback(partial(self._failed, connection, body))
            if not isinstance(error, NoThread):
                raise
            if body is None:
                return None
            raise OriginBroke(f"no thread: {error}") from error
        assert connection is not None
        self._sent(body)
        return BulkReply(self.threads, connection, self._counts, partial(self._give_back, target, connection))

    async def _connected(self, target: Endpoint) -> BlockingConnection:
        sock = await self._connector.socket_to(target)
        if target.is_plain:
            return BlockingConnection(sock)
        assert self._receivers is not None
        return await self._receivers.secured(sock, urlsplit(target.base).hostname or "", self._connector.timeout_s)

    async def _takes(self, target: Endpoint, body: BodyInThread | None) -> bool:
        """Whether a thread is free, and a receiver where TLS is spoken. The body is taken, too, if there is one."""
        if not target.is_plain:
            # None speaks TLS with a forward proxy before the server.
            is_direct = target.proxy.url is None or target.proxy.url.scheme == "http"
            if body is not None or not is_direct or self._receivers is None or not await self._receivers.ready():
                return False
        # Threads hang where the disk does.
        return bool(self._free) and (body is None or (self._senders_free > 0 and body.begin()))

    def _failed(
        self,
        connection: BlockingConnection | None,
        body: BodyInThread | None,
        asking: asyncio.Future[None] | None = None,
    ) -> None:
        if asking is not None:
            retrieve_failure(asking)
        if connection is not None:
            connection.close()
        self._free += 1
        self._sent(body)

    def _sent(self, body: BodyInThread | None) -> None:
        if body is not None:
            self._senders_free += 1
            body.end()

    def _give_back(self, target: Endpoint, connection: BlockingConnection) -> None:
        """A reply is over, and its thread free."""
        self._free += 1
        if connection.is_read and connection.reader.keeps:
            self.idle.put(target.key, connection)
        else:
            connection.close()

    def close(self) -> None:
        """No request is under way any more."""
        self.idle.close()
        if self._receivers is not None:
            self._receivers.close()
        self.threads.pool.shutdown(wait=False, cancel_futures=True)
        self._senders.pool.shutdown(wait=False, cancel_futures=True)
