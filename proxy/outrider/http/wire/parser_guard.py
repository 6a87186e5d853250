"""A guard around aiohttp's parser of requests (3.14): an exception of the parser becomes a refusal, and each message
that it lets through can be made a request."""

from __future__ import annotations

from typing import Any, cast

from aiohttp import StreamReader
from aiohttp.http import HttpProcessingError, RawRequestMessage
from aiohttp.http_exceptions import BadHttpMessage
from aiohttp.http_parser import HttpParser
from yarl import URL

_NOWHERE = URL()


class Parser:
    """The part of aiohttp's parser that its connection uses."""

    __slots__ = ("_parser", "message_consumed", "pause_reading", "set_upgraded")

    def __init__(self, parser: Any) -> None:
        self._parser = parser
        self.message_consumed = parser.message_consumed
        self.pause_reading = parser.pause_reading
        self.set_upgraded = parser.set_upgraded

    def feed_data(self, data: bytes) -> tuple[list[tuple[RawRequestMessage, StreamReader]], bool, bytes]:
        """Raises HttpProcessingError: the request is refused, and the connection closed."""
        try:
            messages, upgraded, tail = self._parser.feed_data(data)
        except HttpProcessingError:
            raise
        except Exception as error:
            # As a rule, yarl's error about a target (`http://][@`). The connection handles no error but the one above:
            # of another it would end without a reply, or neither reply nor end.
            raise BadHttpMessage(f"the parser failed: {type(error).__name__}") from error
        return [(_aimed(message), payload) for message, payload in messages], upgraded, tail


def guarded(parser: HttpParser[Any] | None) -> HttpParser[Any]:
    return cast(HttpParser[Any], Parser(parser))


def _aimed(message: RawRequestMessage) -> RawRequestMessage:
    """The message; or, if aiohttp can make no request of it, one without a target, which is refused for that.

    aiohttp's own task would fail at such a message in the next turn of the loop, and leave the connection open. Two
    kinds are known: a `CONNECT` without a target, and a host that is no name in IDNA.
    """
    url = cast(URL | None, message.url)
    try:
        if url is not None and (not url.absolute or url.host is not None):
            return message
    except ValueError:
        pass
    return message._replace(path="", url=_NOWHERE)
