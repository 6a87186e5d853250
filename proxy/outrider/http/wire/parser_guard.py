"""aiohttp's parser of requests (3.14): what it dies of it refuses, and what it lets through can be made a request."""

from __future__ import annotations

from typing import Any, cast

from aiohttp import StreamReader
from aiohttp.http import HttpProcessingError, RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.http_parser import HttpParser
from yarl import URL

_NOWHERE = URL()


class Parser:
    """As much of one as aiohttp's connection asks for."""

    __slots__ = ("_parser", "message_consumed", "pause_reading", "set_upgraded")

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self.message_consumed = parser.message_consumed
        self.pause_reading = parser.pause_reading
        self.set_upgraded = parser.set_upgraded

    def feed_data(self, data: bytes) -> tuple[list[tuple[RawRequestMessage, StreamReader]], bool, bytes]:
        """Raises HttpProcessingError: it is refused, and the connection with it."""
        try:
            messages, upgraded, tail = self._parser.feed_data(data)
        except HttpProcessingError:
            raise
        except Exception as error:
            # yarl's, as a rule, of a target (`http://][@`). The connection knows no other than the above: it would
            # neither answer nor end, or end of it.
            raise BadHttpMessage(f"the parser failed: {type(error).__name__}") from error
        return [(_aimed(message), payload) for message, payload in messages], upgraded, tail


def guarded(parser: HttpParser[Any] | None) -> HttpParser[Any]:
    return cast(HttpParser[Any], Parser(parser))


def _aimed(message: RawRequestMessage) -> RawRequestMessage:
    """The message, or one without a target, which is refused for that, where aiohttp can make no request of it.

    Its server's task dies of the attempt in the next turn, and leaves the connection open. It does so of `CONNECT` and
    nothing behind it, which is no target to the parser, and of a host that is no name in IDNA.
    """
    url = cast(URL | None, message.url)
    try:
        if url is not None and (not url.absolute or url.host is not None):
            return message
    except ValueError:
        pass
    return message._replace(path="", url=_NOWHERE)
