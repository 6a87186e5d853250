"""Sends the body of a request from a thread, as it comes from the client, until the origin has it or answers before."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from outrider.ports import BodyInThread, Buffer

# Above the head of any interim reply.
_HEAD_BYTES_MAX = 4096


def pass_on(
    body: BodyInThread, send_head: Callable[[], None], origin: socket.socket, timeout_s: float
) -> bool:  # fmt: skip
    """Send all of `body` to `origin`, and wait for its reply. False: the reply, or the end of the connection, came
    before that.

    The head is sent when the first piece is here. SeaweedFS stores an empty object if none comes after the head.

    Raises:
        S3Error: the body failed. OSError: the connection broke, or the origin took nothing for `timeout_s`.
    """
    look = select.poll()
    look.register(origin, select.POLLIN | select.POLLOUT)
    is_sent = False
    while (pieces := body.read(origin.fileno())) is not None:
        if not pieces and _has_answered(origin):
            # Before its head, a request gets no answer.
            if not is_sent:
                raise ConnectionAbortedError("closed")
            return False
        if pieces and not is_sent:
            is_sent = True
            send_head()
        for piece in pieces:
            if not _send(piece, origin, look, timeout_s):
                return False
    look.modify(origin, select.POLLIN)
    while not _has_answered(origin):
        if not look.poll(timeout_s * 1e3):
            raise TimeoutError("timed out")
    return True


def _send(piece: Buffer, origin: socket.socket, look: select.poll, timeout_s: float) -> bool:
    rest = memoryview(piece)
    while rest:
        try:
            rest = rest[origin.send(rest, socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            events = look.poll(timeout_s * 1e3)
            if not events:
                raise TimeoutError("timed out") from None
            if events[0][1] & ~select.POLLOUT and _has_answered(origin):
                return False
        except ConnectionError:
            # The answer may have come before the end of the connection.
            if not _has_answered(origin):
                raise
            return False
    return True


def _has_answered(origin: socket.socket) -> bool:
    """Whether a reply, or the end of the connection, can be read. An interim reply (1xx) is read and dropped."""
    try:
        peeked = origin.recv(_HEAD_BYTES_MAX, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    end = peeked.find(b"\r\n\r\n") + 4
    if peeked[:7] != b"HTTP/1." or peeked[9:10] != b"1" or end < 4:
        return True
    origin.recv(end)
    return _has_answered(origin)
