"""The origin's own refusals of a read."""

from __future__ import annotations

from contextlib import suppress

from outrider.core.errors import OriginBroke, Signal
from outrider.core.model import Headers
from outrider.ports import OriginReply

# An error document of S3 has some hundred bytes. Longer ones are cut.
_REFUSAL_BYTES_MAX = 64 * 1024


class OriginRefused(Signal):
    """The origin answered with an error of its own, which is to be passed on as it is."""

    def __init__(self, status: int, headers: Headers, body: bytes) -> None:
        # The status alone, since it shows in logs: the text of AWS may contain the session token (ExpiredToken), or the
        # string that was signed.
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.body = body

    def __str__(self) -> str:
        return f"origin answered {self.status}"

    def __copy__(self) -> OriginRefused:
        return OriginRefused(self.status, self.headers, self.body)

    @classmethod
    async def read(cls, reply: OriginReply) -> OriginRefused:
        """The refusal with its document, which is read; the reply is closed."""
        body = bytearray()
        try:
            while len(body) <= _REFUSAL_BYTES_MAX and (piece := await reply.some()):
                body += piece
        finally:
            reply.close()
        return cls(reply.status, reply.headers, bytes(body[:_REFUSAL_BYTES_MAX]))


async def drain(reply: OriginReply) -> None:
    """Read an error document to its end, so that the connection can be used again, and close the reply."""
    with suppress(OriginBroke):
        await OriginRefused.read(reply)
