"""TLS for servers on loopback: a certificate with its authority, and a front before a plain server."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Self

import trustme

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Certificate:
    """PEM files: `chain` and `key` are the server's, `authority` is the one that its clients are to trust."""

    authority: Path
    chain: Path
    key: Path


def certify(directory: Path, name: str = "127.0.0.1") -> Certificate:
    """A new authority, and a certificate signed by it for `name`; their files stay in `directory`.

    A single self-signed certificate would not do: rustls accepts no authority as a server's certificate.
    """
    made = Certificate(*(directory / name for name in ("authority.pem", "chain.pem", "key.pem")))
    authority = trustme.CA()
    server = authority.issue_cert(name)
    authority.cert_pem.write_to_path(made.authority)
    server.private_key_pem.write_to_path(made.key)
    for number, certificate in enumerate(server.cert_chain_pems):
        certificate.write_to_path(made.chain, append=number > 0)
    return made


class TlsFront:
    """Hands each connection on to `target`, on a thread and a loop of its own. A context."""

    def __init__(self, target: tuple[str, int], certificate: Certificate, piece_bytes: int = 64 * 1024) -> None:
        """`piece_bytes`: how many bytes are handed on at once."""
        self._target = target
        self._piece_bytes = piece_bytes
        self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._tls.load_cert_chain(certificate.chain, certificate.key)
        self._loop = asyncio.new_event_loop()
        self._go_on = asyncio.Event()
        self.is_ragged = False
        """Connections end without TLS's own end, as those of many load balancers do."""
        self.cut_after: Callable[[], int] | None = None
        """Asked at each connection: it is reset once it has brought so many bytes."""
        self._held_after = -1
        self._times_held = 0
        self.held = threading.Event()
        """A reply is held up."""
        self.resumed: list[bool] = []
        """For each handshake, whether it took up an earlier session."""
        self.port = 0
        self._writers: list[asyncio.StreamWriter] = []

    @property
    def endpoint(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def hold(self, after_bytes: int) -> None:
        """Each connection is held up once it has brought so many more bytes, until `release`."""
        self.held.clear()
        self._times_held += 1
        self._go_on.clear()
        self._held_after = after_bytes

    def release(self) -> None:
        self._held_after = -1
        self._loop.call_soon_threadsafe(self._go_on.set)

    def renew(self, certificate: Certificate) -> None:
        """Show another certificate from now on, and cut the connections."""

        async def renewed() -> None:
            self._tls.load_cert_chain(certificate.chain, certificate.key)
            for writer in self._writers:
                writer.transport.abort()

        asyncio.run_coroutine_threadsafe(renewed(), self._loop).result(60)

    def __enter__(self) -> Self:
        listening = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(listening,))
        self._thread.start()
        assert listening.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    def _run(self, listening: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._serve(listening))
        self._loop.close()

    async def _serve(self, listening: threading.Event) -> None:
        self._over = asyncio.Event()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self.port = server.sockets[0].getsockname()[1]
        listening.set()
        await self._over.wait()
        server.close()
        if others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
        for writer in self._writers:
            writer.transport.abort()
        # An aborted connection is closed a step later, below TLS another one.
        for _ in range(4):
            await asyncio.sleep(0)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.resumed.append(bool(writer.get_extra_info("ssl_object").session_reused))
        with suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection(*self._target)
            self._writers += [writer, far_writer]
            await asyncio.gather(self._pump(reader, far_writer), self._replies(far_reader, writer))

    async def _replies(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        brought, times_held = 0, 0
        cut_after = inf if self.cut_after is None else self.cut_after()
        try:
            while data := await source.read(self._piece_bytes):
                if times_held != self._times_held:
                    brought, times_held = 0, self._times_held
                if 0 <= self._held_after <= brought:
                    self.held.set()
                    await self._go_on.wait()
                brought += len(data)
                sink.write(data)
                await sink.drain()
                if (cut_after := cut_after - len(data)) <= 0:
                    sink.transport.abort()
        finally:
            if self.is_ragged:
                raw = sink.transport.get_extra_info("socket")
                # Once all has gone out; the transport's own close would end TLS first.
                while sink.transport.get_write_buffer_size():
                    await asyncio.sleep(0)
                with socket.socket(fileno=os.dup(raw.fileno())) as own:
                    own.shutdown(socket.SHUT_WR)
                await self._over.wait()
            sink.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(self._piece_bytes):
                sink.write(data)
                await sink.drain()
        finally:
            sink.close()
