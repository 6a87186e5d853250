"""One client's connection to the S3 port: aiohttp parses requests and keeps the connection alive; the fast path, the
error replies and the sending are our own."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, cast

from aiohttp import StreamReader
from aiohttp.http_parser import HttpParser, HttpRequestParser
from aiohttp.web_protocol import MAX_MSG_QUEUE_SIZE, RequestHandler, RequestPayloadError
from aiohttp.web_request import BaseRequest
from aiohttp.web_response import StreamResponse
from aiohttp.web_server import Server

from outrider.http.s3.exchange import DISK_WAIT_S, Begun, ColdHit, Recognised
from outrider.http.s3.fast_path import FastPath
from outrider.http.s3.handler import S3Handler
from outrider.http.wire.request_guards import NoParser, guarded, refused_for
from outrider.http.wire.sender import SocketSender, TlsSender, wire_of

# Far above the longest head within S3's own limits (a key, a session token, 2 KiB of metadata).
_HEAD_BYTES_MAX = 64 * 1024
# A connection beyond the limit has this long to send its request and to be refused.
_TURNED_AWAY_S = 2.0


class S3Port(Server):
    """The port as its connections see it."""

    def __init__(
        self, handler: S3Handler, fast_path: FastPath, *, connections_max: int, turned_away_max: int,
        client_timeout_s: float, client_idle_s: float, readers: ThreadPoolExecutor,
    ) -> None:  # fmt: skip
        """`turned_away_max`: so many connections beyond `connections_max` are refused with a reply, which costs little;
        more are cut. `readers`: the threads for block files whose pages are not in memory."""
        super().__init__(handler.handle)
        self.handler = handler
        self.fast_path = fast_path
        self.client_timeout_s = client_timeout_s
        self.client_idle_s = client_idle_s
        self.readers = readers
        self.connections_max = connections_max
        self.turned_away_max = turned_away_max
        self.is_ending = False
        """A connection that is made from now on serves one request."""
        self.left_alone: set[asyncio.Task[None]] = set()
        """Requests whose client left. They go on, because a write under way must not be broken off."""

    @property
    def spare_connections(self) -> int:
        """How many more clients may connect; a negative number counts the connections that are being turned away."""
        return self.connections_max - len(self.connections)


class Connection(RequestHandler):
    """Owned by aiohttp's server. `wire` sends on it, as long as it is open.

    It reads and sets attributes that aiohttp (3.14) keeps to itself. The fast path may answer only between two
    requests, when the parser holds no byte, and nothing public shows that. A protocol of our own in front of aiohttp's
    would have to know the same. One in its place would have to do what aiohttp does for slow requests: pipelining,
    100 Continue, lingering, shutdown.
    """

    __slots__ = (
        "_cold", "_cold_timer", "_early", "_head_bytes", "_head_timer", "_parser_is_clean", "_readying", "begun",
        "closed", "is_ending", "is_one_too_many", "only_reads", "port", "recognised", "wire",
    )  # fmt: skip

    def __init__(self, port: S3Port, **options: Any) -> None:
        super().__init__(port, **options)
        self._parser = guarded(self._parser)
        self.port = port
        # Bytes that were received while they could not be answered, and the hit that waits for the disk, if it is that.
        self._early = b""
        self._cold: ColdHit | None = None
        self._cold_timer: asyncio.TimerHandle | None = None
        self._readying: asyncio.Future[None] | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._head_bytes = 0
        self._parser_is_clean = True
        self.begun: Begun | None = None
        self.recognised: Recognised | None = None
        self.closed = asyncio.Event()
        self.only_reads = False
        self.is_ending = False
        """The request that is under way is the last one."""
        self.is_one_too_many = False
        """There are as many connections as allowed without this one: its first request is refused, and it is closed."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        spare = self.port.spare_connections
        self.is_one_too_many = spare <= 0
        self.is_ending = self.port.is_ending
        super().connection_made(transport)
        assert self._task_handler is not None
        self._task_handler.add_done_callback(self._is_over)
        # A cast, not an assertion: uvloop's transports are no subclasses of asyncio's.
        self.wire = wire_of(cast(asyncio.Transport, transport), self.port.readers)
        if spare <= -self.port.turned_away_max:
            self.wire.abort()
        elif self.is_one_too_many:
            self._start_head_timer(min(_TURNED_AWAY_S, self.port.client_timeout_s))

    def _is_over(self, _: object) -> None:
        """The task of the connection has ended. aiohttp (3.14) would leave the connection open, and read nothing, if
        the task was cancelled or failed."""
        if self.transport is not None and not self.transport.is_closing():
            self.force_close()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._take_early()
        self._stop_head_timer()
        self.wire.lost()
        self.closed.set()
        if self._task_handler is not None and self._waiter is not None and self._waiter.done():
            # A request came in the same moment: aiohttp (3.14) would begin it although the connection is lost.
            self._task_handler.cancel()
        elif self._task_handler is not None and self._request_in_progress:
            if self.only_reads:
                # Nobody waits for the reply any more, so that a fill may give up an origin that is away.
                self._task_handler.cancel()
            else:
                self.port.left_alone.add(self._task_handler)
                self._task_handler.add_done_callback(self.port.left_alone.discard)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        waiter = self._waiter  # `_is_idle`, written out: here a call more would slow each hit
        if (
            self._parser_is_clean
            and waiter is not None
            and not waiter.done()
            and not self._early
            and self._answered_at_once(data)
        ):
            return
        if self._early:
            data = self._take_early() + data
        elif data and self._is_between():
            self._early = data
            self._loop.call_soon(self._is_no_longer_early)
            return
        self._parse(data)

    def _is_no_longer_early(self, cold: ColdHit | None = None) -> None:
        data = self._take_early()
        if data and not (self._is_idle() and self._answered_at_once(data, cold)):
            self._parse(data)

    @property
    def has_work(self) -> bool:
        """A request is under way or about to begin, or bytes of a reply are unsent.

        A parsed request begins some turns of the loop later, and a hit that waits for the disk is counted nowhere else.
        """
        # Before all else: a closing connection still sends those bytes.
        if self.wire.has_unsent:
            return True
        if self.transport is None or self.transport.is_closing():
            return False
        return bool(self._early) or not self._is_waiting()

    def _take_early(self) -> bytes:
        data, self._early, self._cold = self._early, b"", None
        if self._readying is not None:
            # This ends the work that no thread has begun; its result is not needed any more.
            self._readying.cancel()
            self._readying = None
        if self._cold_timer is not None:
            self._cold_timer.cancel()
            self._cold_timer = None
        return data

    def _wait_for_disk(self, data: bytes, cold: ColdHit) -> None:
        self._early, self._cold = data, cold
        ready = partial(self._is_ready, cold)
        self._cold_timer = self._loop.call_later(DISK_WAIT_S, ready)
        if cold.page_in is not None:
            self._readying = self._loop.run_in_executor(self.port.readers, cold.page_in)
        else:
            assert cold.prepare is not None
            self._readying = self._loop.create_task(cold.prepare(), name="prepare")
        self._readying.add_done_callback(ready)
        # To aiohttp the connection is idle meanwhile, and must not be closed for that.
        self._next_keepalive_close_time = self._loop.time() + DISK_WAIT_S + self._keepalive_timeout

    def _is_ready(self, cold: ColdHit, _: object = None) -> None:
        if self._cold is cold:
            self._is_no_longer_early(cold)

    def _parse(self, data: bytes) -> None:
        if self.recognised is not None and self.recognised.head is not data:
            # The findings are about other bytes than those of the next request.
            self.recognised = None
        body = self._last_body()
        fed = 0 if body is None else body.total_bytes
        super().data_received(data)
        if data:  # aiohttp also calls without data, to let the parser go on with the bytes that it holds
            self._parser_is_clean = self._ends_a_request(data, body, fed)
        # aiohttp bounds the silence between requests only, and generously. An unfinished head must not hold a
        # connection for as long, nor grow without bound.
        if self._parser_is_clean:
            self._stop_head_timer()
        elif self._head_timer is None:
            self._start_head_timer(self.port.client_timeout_s)
        self._head_bytes = self._head_bytes + len(data) if self._is_waiting() else 0
        if self._head_bytes > _HEAD_BYTES_MAX:
            self.force_close()

    def _process_keepalive(self) -> None:
        # aiohttp (3.14) does not see requests that the fast path answers, and would close the connection as idle.
        idle_s = time.perf_counter() - self.wire.ended
        close_at = self._loop.time() - idle_s + self._keepalive_timeout
        self._next_keepalive_close_time = max(self._next_keepalive_close_time, close_at)
        super()._process_keepalive()

    def _is_idle(self) -> bool:
        """No request is under way, and the parser holds no part of one."""
        return self._is_waiting() and self._parser_is_clean

    def _is_waiting(self) -> bool:
        """The connection waits for a request, or for the rest of its head."""
        # The waiter of a closing connection is cancelled. Between the turn in which a request was parsed and its first
        # step, only the waiter shows that there is a request.
        return self._waiter is not None and not self._waiter.done()

    def _is_between(self) -> bool:
        """The last reply was sent, and its task does not yet wait for the next request; or the connection looks so.

        A client on the same machine is fast enough to send its next request in this moment. If that took the slow path,
        so would all requests after it (64 KiB ranges, 1 in 100 over two blocks: a third of the requests a second).
        """
        under_way = self._request_in_progress or bool(self._messages)
        return self._waiter is None and not under_way and self._parser_is_clean

    def _last_body(self) -> StreamReader | None:
        """The body of the last request that is not answered yet."""
        if self._messages:
            return self._messages[-1][1]
        return None if self._current_request is None else self._current_request.content

    def _ends_a_request(self, data: bytes, body: StreamReader | None, fed: int) -> bool:
        """Whether `data`, now in the parser, ended with the end of a request, so that the next byte begins another one.
        `body`: the body that was under way before, of which `fed` bytes had come.

        The parser does not show which bytes it holds. If this were True too often, a header's value of a request that
        is split over packets could be taken for a request. It may be False although it is true.
        """
        last = self._last_body()
        if last is None or not last.is_eof():
            return False
        # The request has no body, or one in chunks. Bytes that came after it and end so would be a whole head.
        if data.endswith(b"\r\n\r\n"):
            return True
        if last is body:
            return last.total_bytes - fed == len(data)
        begins = data.find(b"\r\n\r\n") + 4
        return (
            self._parser_is_clean
            and body is None
            and len(self._messages) == 1
            and last.total_bytes == len(data) - begins
        )

    def _answered_at_once(self, data: bytes, cold: ColdHit | None = None) -> bool:
        """The fast path has answered `data`; or it will, before the next request, once the block is ready
        to be sent."""
        wire = self.wire
        # In these cases the reply is a refusal or closes the connection, which only the slow path does.
        unusual = self.port.handler.are_full or self.is_one_too_many or self.is_ending
        if not isinstance(wire, SocketSender) or unusual:
            return False
        answered = self.port.fast_path.answer(data, wire, cold)
        if answered is True:
            return True
        if isinstance(answered, ColdHit):
            if answered.is_ready:
                return self._answered_at_once(data, answered)
            self._wait_for_disk(data, answered)
            return True
        if isinstance(answered, Begun):
            self.begun = answered
        elif answered is not False:
            self.recognised = answered
        return False

    # -- a body that a thread reads: see `body_socket.BodyConnection` --------------------------------------------------

    def second_socket(self) -> socket.socket | None:
        if not isinstance(self.wire, SocketSender):
            return None
        try:
            return self.wire.second_socket()
        except OSError:
            return None

    def stop_reading(self) -> None:
        if self.transport is not None:
            self.transport.pause_reading()

    def read_on(self, content: StreamReader, *, is_whole: bool) -> None:
        if self.transport is None:
            return
        if is_whole:
            # The old parser still waits for the body. aiohttp (3.14) makes its own in the same way.
            self._parser = guarded(HttpRequestParser(
                self, self._loop, self._read_bufsize, max_line_size=self.max_line_size,
                max_field_size=self.max_field_size, max_headers=self.max_headers,
                payload_exception=RequestPayloadError, auto_decompress=False, max_msg_queue_size=MAX_MSG_QUEUE_SIZE,
            ))  # fmt: skip
            self._parser_is_clean = True
            self._stop_head_timer()
            content.feed_eof()
        else:
            self._parser = cast(HttpParser[Any], NoParser())
            self.is_ending = True
            self.transport.resume_reading()

    def end(self) -> None:
        """The request that is under way, or that has come by now, is the last one. Without one, the connection is
        closed.
        """
        self.is_ending = True
        if self._early:
            # Bytes that wait do not count as a request; the slow path makes them one.
            self._parse(self._take_early())
        if self._is_waiting():
            # aiohttp's `close` would leave the connection open until the drain has ended, and read nothing: a client's
            # next request would wait as long.
            self.force_close()
        elif self._parser_is_clean and not self._messages:
            # `close` stops reading, and nothing is lost by that here. In the other cases a body is on its way, for
            # which its request would wait without end, or a request has not begun; its reply then closes the
            # connection. For the turn in which aiohttp (3.14, on Python 3.11) makes a task of a request, nothing shows
            # whose body it is.
            super().close()

    def _start_head_timer(self, after_s: float) -> None:
        self._head_timer = asyncio.get_running_loop().call_later(after_s, self._head_is_late)

    def _head_is_late(self) -> None:
        self._head_timer = None
        if self._is_waiting():
            self.force_close()
        else:
            # A body has a time limit of its own, and an unfinished head behind a request waits for the end of that one.
            self._start_head_timer(self.port.client_timeout_s)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if isinstance(self.wire, TlsSender):
            self.wire.paused(True)

    def resume_writing(self) -> None:
        super().resume_writing()
        if isinstance(self.wire, TlsSender):
            self.wire.paused(False)

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> StreamResponse:
        """Bytes that aiohttp's parser refuses are answered with an S3 error, and the connection is closed. A `message`
        of None: the handler raised; its client is gone, or has a part of the reply, and the connection is cut.

        Raises ConnectionResetError: the connection was cut.
        """
        if message is None:
            self.wire.reset()
            raise ConnectionResetError from exc
        return self.port.handler.refuse_unparsed(request, self.wire, refused_for(message or ""))
