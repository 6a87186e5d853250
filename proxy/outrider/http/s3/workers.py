"""The workers (`--workers`): threads with loops of their own that answer hits and send long bodies on more cores.

The engine stays on one loop, with one flight table, one index and one budget. A worker understands only the requests
that the fast path recognises. A connection with any other request moves to the engine's loop, together with the bytes
that it sent, and comes back once it asks for hits alone. Threads are enough because the kernel does the copying:
`sendfile` holds no lock. Small requests are work for Python; on a build with the global interpreter lock workers
neither speed them up nor slow them down (`docs/benchmarks.md`).
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, cast

from outrider.core.errors import S3Error, Signal
from outrider.engine.read.body_pieces import Body, EarlyPiece, FilePiece, Piece
from outrider.http.record.record import Sent
from outrider.http.s3.fast_path import FastPath
from outrider.http.s3.port import WorkerPort
from outrider.http.s3.slow_path_handoff import Begun
from outrider.http.wire.acceptor import Acceptor
from outrider.http.wire.sender import SocketSender

log = logging.getLogger(__name__)

T = TypeVar("T")

_SWEEP_S = 60.0


NewLoop = Callable[[], asyncio.AbstractEventLoop]


class Worker:
    """One thread, its loop and its connections."""

    def __init__(
        self, fast_path: FastPath, port: WorkerPort, readers: Executor, new_loop: NewLoop, idle_s: float, number: int
    ) -> None:
        self._idle_s = idle_s
        self.fast_path = fast_path
        self.port = port
        self.readers = readers
        self.main = asyncio.get_running_loop()
        self.connections: set[WorkerConnection] = set()
        self.tasks: set[asyncio.Task[None]] = set()
        self.load = 0
        self.is_ending = False
        self._loop = new_loop()
        self._thread = threading.Thread(target=self._run, name=f"outrider-worker-{number}", daemon=True)
        self._thread.start()

    def adopt(self, client: socket.socket) -> None:
        """Called on the engine's loop: serve this connection."""
        self.load += 1
        self._loop.call_soon_threadsafe(lambda: self.spawn(self._connect(client)))

    async def on_main(self, act: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(act(), self.main))

    async def stop(self) -> None:
        """Called on the engine's loop: close all connections and end the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        # Joined in another thread: the worker needs this loop to give back the bodies that it was lent.
        await asyncio.get_running_loop().run_in_executor(None, self._thread.join)

    def end(self) -> None:
        """Called on the engine's loop: idle connections are closed, and the others end with the request under way."""
        self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self.is_ending = True
        self._close_idle(0.0)

    def left(self) -> None:
        """A connection of this worker was closed or moved away."""
        self.main.call_soon_threadsafe(self._unload)

    def _unload(self) -> None:
        self.load -= 1

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self.spawn(self._sweep())
        try:
            self._loop.run_forever()
            for connection in list(self.connections):
                connection.abort()
            for task in list(self.tasks):
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*self.tasks, return_exceptions=True))
        finally:
            self.fast_path.stop()
            self._loop.close()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _connect(self, client: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(lambda: WorkerConnection(self), client)
        except OSError:
            client.close()
            self.left()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(min(_SWEEP_S, self._idle_s))
            self._close_idle(self._idle_s)

    def _close_idle(self, older_than_s: float) -> None:
        now = time.monotonic()
        for connection in list(self.connections):
            if not connection.sending and now - connection.used >= older_than_s:
                connection.abort()


class WorkerConnection(asyncio.Protocol):
    """A client's connection as long as it asks for hits."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._held = b""
        self.sending = False
        self.used = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._wire = SocketSender(self._transport, self._worker.readers)
        self._worker.connections.add(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._wire.lost()
        self._worker.connections.discard(self)
        self._worker.left()

    def data_received(self, data: bytes) -> None:
        if self.sending:
            # Few bytes, because reading is paused. They are answered after the reply under way.
            self._held += data
            return
        if self._worker.is_ending:
            # The engine's loop answers, and tells the client that this was the last request. A connection that was
            # closed right after the reply before would be reset by a request on its way, and its client would lose the
            # part of that reply that it had not read.
            self._move(data)
            return
        self.used = time.monotonic()
        try:
            answered = self._worker.fast_path.answer(data, self._wire)
        except OSError:
            self.abort()
            return
        if isinstance(answered, Begun):
            self.sending = True
            self._transport.pause_reading()
            self._worker.spawn(self._finish(answered))
        elif answered is not True:
            # A hit that waits for the disk moves as well: a stop knows only of those on the engine's loop.
            self._move(data)

    def _move(self, data: bytes) -> None:
        client = self._wire.release()
        self._transport.abort()
        self._worker.main.call_soon_threadsafe(self._worker.port.take, client, data)

    def abort(self) -> None:
        self._transport.abort()

    async def _finish(self, begun: Begun) -> None:
        """Send the rest that the socket did not take at once; the engine supplies the pieces."""
        sent: Sent = Counter(disk=begun.sent)
        cut: str | None = "stopped"
        body: LentBody | None = None
        full_s = self._wire.full_s
        try:
            body = await LentBody.ask(self._worker, begun)
            await self._wire.send(begun.head, more=begun.rest.length > 0)
            async for piece in body:
                await self._send(piece, sent)
            cut = None if sent.total() == begun.sent + begun.rest.length else "the body ended early"
        except ConnectionError:
            cut = "client left"
        except (Signal, S3Error, OSError) as error:
            cut = f"{type(error).__name__}: {error}"
        except Exception:
            cut = "our own error"
            log.exception("reply failed")
        finally:
            if cut is not None:
                self.abort()
            begun.full_s = self._wire.full_s - full_s
            self._wire.ended = time.perf_counter()
            if body is not None:
                await asyncio.shield(body.close(begun, sent, cut))
        self._resume()

    async def _send(self, piece: Piece, sent: Sent) -> None:
        if isinstance(piece, FilePiece):
            piece.sent = await self._wire.send_file(piece.fd, piece.offset, piece.count, is_remote=piece.is_remote)
            sent[piece.source] += piece.sent
        else:
            data, source = (piece.data, piece.source) if isinstance(piece, EarlyPiece) else (piece, "origin")
            await self._wire.send(data)
            sent[source] += len(data)

    def _resume(self) -> None:
        self.sending = False
        if self._transport.is_closing():
            return
        self._transport.resume_reading()
        held, self._held = self._held, b""
        if held:
            self.data_received(held)


class LentBody:
    """A body that the engine lends: each piece, which is a block of some MiB, is fetched on the engine's loop."""

    def __init__(self, worker: Worker, body: Body) -> None:
        self._worker = worker
        self._body = body
        self._pieces = aiter(body)

    @classmethod
    async def ask(cls, worker: Worker, begun: Begun) -> LentBody:
        async def lend() -> Body:
            return worker.port.lend(begun)

        return cls(worker, await worker.on_main(lend))

    def __aiter__(self) -> LentBody:
        return self

    async def __anext__(self) -> Piece:
        piece = await self._worker.on_main(self._next)
        if piece is None:
            raise StopAsyncIteration
        return piece

    async def _next(self) -> Piece | None:
        return await anext(self._pieces, None)

    async def close(self, begun: Begun, sent: Sent, cut: str | None) -> None:
        async def end() -> None:
            await self._body.aclose()
            self._worker.port.returned(begun, sent, cut)

        await self._worker.on_main(end)


class Workers:
    """Accepts connections and gives each to the loop with the fewest, the engine's own included."""

    def __init__(
        self, fast_paths: list[FastPath], port: WorkerPort, readers: Executor, new_loop: NewLoop,
        own_load: Callable[[], int], idle_s: float,
    ) -> None:  # fmt: skip
        self._port = port
        self._own_load = own_load
        self._workers = [
            Worker(fast_path, port, readers, new_loop, idle_s, number) for number, fast_path in enumerate(fast_paths, 1)
        ]
        self._acceptor: Acceptor | None = None

    def listen(self, listening: socket.socket) -> None:
        self._acceptor = Acceptor(listening, lambda client, _: self.place(client))

    def place(self, client: socket.socket) -> None:
        worker = min(self._workers, key=lambda worker: worker.load)
        # The engine's loop refuses a connection beyond the limit: a worker cannot write an error reply.
        if self._own_load() <= worker.load or self._port.spare_connections <= 0:
            self._port.take(client, b"")
        else:
            worker.adopt(client)

    def lend_out(self, client: socket.socket) -> None:
        """The least loaded worker takes over a connection that asks for hits alone."""
        min(self._workers, key=lambda worker: worker.load).adopt(client)

    def loads(self) -> list[int]:
        """How many connections each worker has."""
        return [worker.load for worker in self._workers]

    def stop_listening(self) -> None:
        """Accept no more connections. Idle ones are closed, the others end with their next request."""
        if self._acceptor is not None:
            self._acceptor.close()
        for worker in self._workers:
            worker.end()

    async def stop(self) -> None:
        for worker in self._workers:
            await worker.stop()
