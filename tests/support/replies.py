"""Sends bytes, however wrong, and reads all that comes back with a strict HTTP parser."""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from tests.support.rawhttp import Answer, RawConnection

if TYPE_CHECKING:
    from collections.abc import Iterator


def answers_to(address: tuple[str, int], *wire: bytes) -> list[Answer]:
    """All that comes back until the connection ends. The end is waited for; a connection that stays open is an
    error."""
    received = bytearray()
    with RawConnection(address) as connection:
        # The proxy closed the connection. Its bytes before that may be lost to the reset, or be here all the same.
        with contextlib.suppress(ConnectionError):
            for piece in wire:
                connection.send(piece)
        with contextlib.suppress(ConnectionError):
            while data := connection.sock.recv(65536):
                received += data
    return list(parsed(bytes(received), has_head=b"HEAD" in b"".join(wire)))


def parsed(received: bytes, *, has_head: bool) -> Iterator[Answer]:
    """`has_head`: one of the answers may be to a HEAD, which has no body whatever its length says."""
    while received:
        head, end, received = received.partition(b"\r\n\r\n")
        assert end, f"a reply ends in its head: {head[:200]!r}"
        first, *lines = head.decode("latin-1").split("\r\n")
        assert re.fullmatch(r"HTTP/1\.1 [1-5][0-9]{2} [A-Za-z -]*", first), first
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        status = int(first.split(" ")[1])
        if status == 100:
            continue
        length = int(headers.get("content-length", 0)) if status not in (204, 304) else 0
        if has_head and (not received or received.startswith(b"HTTP/1.1 ")):
            length = 0
        if "transfer-encoding" in headers and length == 0 and received and not received.startswith(b"HTTP/1.1 "):
            body, end, received = received.partition(b"0\r\n\r\n")
            assert end, "chunks without an end"
        else:
            body, received = received[:length], received[length:]
            assert len(body) == length, f"{len(body)} of {length} bytes came after {head[:200]!r}"
        yield Answer(status, headers, body)


def assert_correct(answer: Answer) -> None:
    assert answer.status != 500, answer
    assert answer.status in (501, 503) or answer.status < 500, answer
    if answer.status >= 400 and answer.body:
        assert answer.code
        assert "Traceback" not in answer.body.decode()
