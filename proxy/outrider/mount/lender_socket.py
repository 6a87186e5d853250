"""The socket of the lender: where the proxy says that it is, and the connection to it."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import socket
from collections.abc import Mapping

from outrider.core.cache.loan_messages import (
    ANSWER_BYTES_MAX,
    DESCRIPTORS,
    BadMessage,
    LoanTerms,
    pack_greeting,
    parse_terms,
)
from outrider.core.errors import OriginBroke
from outrider.core.s3.operation import CONTROL_BUCKET
from outrider.ports import Origin, OriginRequest

ANSWER_S = 10.0
_OFFER_BYTES_MAX = 4096


class LenderConnection:
    """The connection to the proxy. `changes`: its counter in shared memory."""

    def __init__(self, connected: socket.socket, terms: LoanTerms, counter: int) -> None:
        self.socket = connected
        self.terms = terms
        self.changes = memoryview(mmap.mmap(counter, 8, access=mmap.ACCESS_READ)).cast("Q")


async def offered(proxy: Origin) -> dict[str, str] | None:
    """The path of the socket, and a token. None: this proxy lends nothing. Raises OriginBroke."""
    with contextlib.closing(await proxy.ask(OriginRequest("GET", CONTROL_BUCKET, DESCRIPTORS))) as reply:
        if reply.status >= 500:
            raise OriginBroke(f"the proxy answers {reply.status}")
        if reply.status != 200:
            return None
        body = bytearray()
        while (piece := await reply.some()) and len(body) <= _OFFER_BYTES_MAX:
            body += piece
    try:
        reply = json.loads(body)
        return {"path": str(reply["path"]), "token": str(reply["token"])}
    except (ValueError, KeyError, TypeError):
        return None


def connected_to(offer: Mapping[str, str], bucket: str) -> LenderConnection:
    """Raises OSError, ValueError, BadMessage."""
    directory, name = os.path.split(offer["path"])
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connected.settimeout(ANSWER_S)
        place = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            # An address of this family has 108 bytes, which a directory may fill by itself.
            connected.connect(f"/proc/self/fd/{place}/{name}")
        finally:
            os.close(place)
        connected.send(pack_greeting(offer["token"], bucket))
        packet, fds = received(connected)
        try:
            terms = parse_terms(packet)
            if not fds:
                raise BadMessage("no counter")
            line = LenderConnection(connected, terms, fds[0])
        finally:
            close_all(fds)
        connected.setblocking(False)
    except BaseException:
        connected.close()
        raise
    return line


def received(connected: socket.socket) -> tuple[bytes, list[int]]:
    """A packet, and the descriptor that came with it. Raises OSError."""
    packet, fds, _, _ = socket.recv_fds(connected, ANSWER_BYTES_MAX, 1, socket.MSG_CMSG_CLOEXEC)
    return packet, fds


def close_all(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)
