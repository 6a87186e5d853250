"""The XML that the proxy reads and writes itself: the body of a DeleteObjects, and error documents."""

from __future__ import annotations

from html import escape
from xml.parsers import expat

from outrider.core.errors import S3Error

DELETE_BODY_BYTES_MAX = 4 * 1024 * 1024
"""1,000 keys (S3's limit) of 1,024 bytes, each byte escaped as `&#xNN;`, fit; what is longer is not parsed."""


DEPTH_MAX = 16
"""Of the XML that is read here, no element lies deeper; expat's own stack would take any depth."""


def keys_to_delete(body: bytes) -> list[str] | None:
    """The keys of a DeleteObjects body; None when it does not parse (the origin says what is wrong with it).

    No DTD is accepted, so no entity can expand.
    """
    keys: list[str] = []
    path: list[str] = []
    text: list[str] = []

    def text_alone(*_: object) -> None:
        if path[-2:] == ["Object", "Key"]:
            # Parsers differ in what the key then is, and a grant must hold for the one that the origin reads.
            raise ValueError("a key holds text alone")

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

    def refuse(*_: object) -> None:
        raise ValueError("a DTD has no place here")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = text.append
    parser.CommentHandler = text_alone
    parser.ProcessingInstructionHandler = text_alone
    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError):
        return None
    return keys


def error_xml(error: S3Error, *, resource: str, request_id: str) -> bytes:
    """The body of an error reply. Source: S3 API reference, "Error responses"."""
    return (
        '<?xml version="1.0" encoding="UTF-8"?>\n'
        f"<Error><Code>{xml_text(error.code)}</Code><Message>{xml_text(error.text)}</Message>"
        f"<Resource>{xml_text(resource)}</Resource><RequestId>{xml_text(request_id)}</RequestId></Error>"
    ).encode()


def xml_text(text: str) -> str:
    # Control characters and surrogates have no place in XML, escaped or not.
    return escape("".join(char if char.isprintable() else "\ufffd" for char in text))
