"""Sending to a client: once it is gone, each way to send fails as its connection does."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from outrider.http.wire.sender import SocketSender


async def test_each_send_to_a_client_that_is_gone_is_a_connection_error() -> None:
    ours, theirs = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=ours)
    with theirs, ThreadPoolExecutor(1) as readers:
        wire = SocketSender(transport, readers)
        wire.lost()
        now = (
            partial(wire.send_now, b"a"), partial(wire.send_parts_now, b"a", b"b"),
            partial(wire.send_file_now, theirs.fileno(), 0, 1), wire.second_socket,
        )  # fmt: skip
        for send in now:
            with pytest.raises(ConnectionResetError):
                send()
        for sent in (wire.send(b"a"), wire.send_parts(b"a", b"b")):
            with pytest.raises(ConnectionResetError):
                await sent
        transport.abort()
