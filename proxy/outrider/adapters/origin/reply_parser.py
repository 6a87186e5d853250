"""A second try at replies whose head aiohttp's parser (3.14) refuses: header names that are no tokens, above all.

Clients of S3 take such heads, since their parsers are more lenient. An ordinary reply pays one call: the parser that is
tried first is the connection's own as soon as a head went through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import BadHttpMessage, HttpProcessingError
from aiohttp.http_parser import RawResponseMessagePy

from outrider.core.origin.oddities import Oddity
from outrider.core.origin.reply_head import HEAD_BYTES_MAX, MendedHead, UnreadableHead, mend, split

Note = Callable[[Oddity, str], None]
"""Told of each head that was mended: the kind, and the name of a header."""

Fed = tuple[Sequence[Any], bool, bytes]
_NOTHING_YET: Fed = ((), False, b"")


class LenientResponseHandler(ResponseHandler):
    """A connection to the origin. It is made by aiohttp's connector."""

    def __init__(self, note: Note, loop: Any) -> None:
        super().__init__(loop)
        self._note = note
        self._params: dict[str, Any] = {}

    def set_response_params(self, **params: Any) -> None:
        self._params = params
        # Bytes that came before a reply was asked for are parsed last, by the parser that is put in place here.
        tail, self._tail = self._tail, b""
        super().set_response_params(**params)
        self._parser = cast(Any, _FirstHead(self, self._parser))
        self._tail = tail
        self._drain_tail()

    def new_parser(self) -> Any:
        """A parser for the reply that is under way, which has seen none of it."""
        super().set_response_params(**self._params)
        return self._parser

    def mended(self, head: MendedHead) -> None:
        if head.odd is not None:
            self._note(Oddity.HEADER_MALFORMED, head.odd[:200].decode("ascii", "backslashreplace"))
        if head.framed_twice:
            self._note(Oddity.FRAMING_ODD, "content-length")


class _FirstHead:
    """Stands in for the parser until the head of the reply is through. It has the methods that the connection calls."""

    __slots__ = ("_connection", "_data", "_parser", "_refusal")

    def __init__(self, connection: LenientResponseHandler, parser: Any) -> None:
        self._connection = connection
        self._parser = parser
        self._data = b""
        # The parser's own; None: it has refused nothing yet.
        self._refusal: HttpProcessingError | None = None

    def feed_data(self, data: bytes) -> Fed:
        """Raises HttpProcessingError: the reply cannot be read."""
        self._data += data
        if self._refusal is None:
            try:
                fed: Fed = self._parser.feed_data(data)
            except HttpProcessingError as error:
                self._refusal = error
            else:
                if any(message.code >= 200 or message.code == 101 for message, _ in fed[0]):
                    self._give_way(self._parser)
                elif len(self._data) > HEAD_BYTES_MAX:
                    raise BadHttpMessage(f"its head has more than {HEAD_BYTES_MAX} bytes")
                return fed
        return self._mended()

    def _mended(self) -> Fed:
        found = split(self._data)
        if found is None:
            if len(self._data) > HEAD_BYTES_MAX:
                raise self._refused()
            return _NOTHING_YET
        head, body = found
        if len(head) > HEAD_BYTES_MAX:
            raise self._refused()
        try:
            mended = mend(head)
        except UnreadableHead as error:
            raise BadHttpMessage(str(error)) from error
        parser = self._connection.new_parser()
        self._give_way(parser)
        try:
            messages, upgraded, tail = parser.feed_data(mended.head + body)
        except HttpProcessingError as error:
            raise BadHttpMessage(refused_for(error.message)) from error
        self._connection.mended(mended)
        return [(_with_headers(message, mended), payload) for message, payload in messages], upgraded, tail

    def _refused(self) -> HttpProcessingError:
        assert self._refusal is not None
        return BadHttpMessage(f"{refused_for(self._refusal.message)}, in a head of more than {HEAD_BYTES_MAX} bytes")

    def _give_way(self, parser: Any) -> None:
        self._parser = parser
        self._connection._parser = parser
        self._data = b""

    def feed_eof(self) -> Any:
        return self._parser.feed_eof() if self._refusal is None else None

    def pause_reading(self) -> None:
        self._parser.pause_reading()

    def message_consumed(self) -> None:
        self._parser.message_consumed()

    def set_upgraded(self, value: bool) -> None:
        self._parser.set_upgraded(value)


def _with_headers(message: Any, mended: MendedHead) -> RawResponseMessagePy:
    return RawResponseMessagePy(
        message.version, message.code, message.reason, message.headers, mended.headers, message.should_close,
        message.compression, message.upgrade, message.chunked,
    )  # fmt: skip


def refused_for(message: str) -> str:
    """The reason in the parser's message, without the line of the reply that follows it."""
    return next((line.strip(" :") for line in message.splitlines() if line.strip()), "")[:200]
