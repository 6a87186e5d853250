"""XML that the proxy reads or writes itself: the body of a DeleteObjects, and error documents."""

from __future__ import annotations

import re
from html import escape, unescape
from xml.parsers import expat

from outrider.core.errors import KeyTooLong, S3Error
from outrider.core.model import is_too_long

DELETE_BODY_BYTES_MAX = 4 * 1024 * 1024
"""Room for 1,000 keys (S3's limit) of 1,024 bytes with each byte escaped as `&#xNN;`. A longer body is not parsed."""


DEPTH_MAX = 16
"""The XML read by the proxy has no deeper elements; expat itself would accept any depth."""


def keys_to_delete(body: bytes) -> list[str] | None:
    """The keys of a DeleteObjects body; None: it does not parse, and the origin says why.

    Raises:
        KeyTooLong: no object can have one of the keys.
    """
    keys: list[str] = []
    path: list[str] = []
    text: list[str] = []

    def text_alone(*_: object) -> None:
        if path[-2:] == ["Object", "Key"]:
            # Parsers then read different keys, and a grant must hold for the key that the origin reads.
            raise ValueError("a key must hold only text")

    def start(name: str, _: object) -> None:
        text_alone()
        if len(path) >= DEPTH_MAX:
            raise ValueError("nested too deep")
        path.append(name.rpartition(":")[2])
        text.clear()

    def end(_: str) -> None:
        if path[-2:] == ["Object", "Key"]:
            keys.append("".join(text))
        path.pop()

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text.append
    parser.CommentHandler = text_alone
    parser.ProcessingInstructionHandler = text_alone
    if not parses(parser, body):
        return None
    if any(map(is_too_long, keys)):
        raise KeyTooLong
    return keys


def parses(parser: expat.XMLParserType, body: bytes) -> bool:
    """Whether `body` is XML that a fresh parser, and its handlers, take. The handlers raise ValueError.

    No DTD is accepted, so no entity can expand.
    """
    parser.StartDoctypeDeclHandler = _refuse
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError):  # LookupError: no codec has the name of its encoding
        return False
    return True


def _refuse(*_: object) -> None:
    raise ValueError("a DTD is not allowed")


def error_xml(error: S3Error, *, resource: str, request_id: str) -> bytes:
    """The body of an error reply. Source: S3 API reference, "Error responses"."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{xml_text(error.code)}</Code><Message>{xml_text(error.text)}</Message>"
        f"<Resource>{xml_text(resource)}</Resource><RequestId>{xml_text(request_id)}</RequestId></Error>"
    ).encode()


def xml_text(text: str) -> str:
    # XML allows no control characters and no surrogates, escaped or not.
    return escape("".join(char if char.isprintable() else "\ufffd" for char in text))


_CODE = re.compile(rb"<Code>([A-Za-z0-9.]{1,64})</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,1000})</Message>")


def error_in(body: bytes) -> tuple[str, str]:
    """The code and the message in an error document of an origin; empty: it has none."""
    code, message = _CODE.search(body), _MESSAGE.search(body)
    return (
        code[1].decode() if code else "",
        unescape(message[1].decode("utf-8", "replace")) if message else "",
    )
