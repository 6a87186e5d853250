"""A browser's upload as multipart/form-data: reads its fields, finds its file, and writes its head anew.

Parsers differ on repeated fields, on fields after the file and on odd boundaries, while the grant must hold for the key
that the origin reads. Therefore only fields that were understood here go to the origin, and in one spelling.

Sources: Amazon S3 API Reference, "POST Object"; RFC 7578; RFC 2046 section 5.1.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from email.message import Message
from email.policy import Compat32

from outrider.core.errors import InvalidArgument, KeyTooLong, MalformedPOSTRequest, MaxPostPreDataLengthExceeded
from outrider.core.model import Headers, is_too_long
from outrider.core.s3.operation import Operation

FIELDS_BYTES_MAX = 20 * 1024
"""S3's limit of the bytes before the file. As many are allowed after the file, where they have no meaning."""

Fields = tuple[tuple[str, str], ...]

_BOUNDARY = re.compile(r"[A-Za-z0-9'()+_,./:=? -]{0,69}[A-Za-z0-9'()+_,./:=?-]", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,256}", re.ASCII)
# This bounds the Content-Type, and the head of a part, whose longest names a file of 1,024 bytes: `email` takes
# quadratic time for semicolons in quotes, and for many headers.
_HEAD_CHARS_MAX = 2048
_FILE = "file"
_FILENAME = "${filename}"
# POST Object has no such field. Some origins read each x-amz-* field as a header, and a copy needs a grant on its
# source.
_SOURCES = ("x-amz-copy-source", "x-amz-rename-source")


class _Verbatim(Compat32):
    """Gives header values back as they are. Its base makes U+FFFD of bytes that are no UTF-8, and fails where other
    characters beyond ASCII stand beside them."""

    def header_fetch_parse(self, name: str, value: str) -> str:
        return value


_VERBATIM = _Verbatim()


@dataclass(frozen=True, slots=True)
class PostForm:
    """The fields before the file, in their order and with their names as sent.

    No name comes twice, also not in another case.
    """

    boundary: str
    fields: Fields
    filename: str
    """Without the folders that some browsers send with it; empty: the form names none."""
    file_type: str | None
    """The Content-Type of the file's part. S3 ignores it, and reads the field of this name."""

    def __post_init__(self) -> None:
        names = [name.lower() for name, _ in self.fields]
        if len(set(names)) != len(names):
            raise MalformedPOSTRequest("A field of this form comes twice.")
        if any(name.startswith(_SOURCES) for name in names):
            raise InvalidArgument("A form cannot copy.")

    @property
    def values(self) -> dict[str, str]:
        """The values by lower-case name. `key` has the name of the file filled in."""
        return {name.lower(): value for name, value in self.fields} | {"key": self.key}

    @property
    def key(self) -> str:
        """The object's key, with the name of the file in place of `${filename}`.

        Raises:
            InvalidArgument: there is no key, or one that origins may read in another way.
            KeyTooLong: no object can have it.
        """
        key = next((value for name, value in self.fields if name.lower() == "key"), "")
        if not key:
            raise missing_field("key")
        if self.filename:
            key = key.replace(_FILENAME, self.filename)
        if _FILENAME in key:
            raise InvalidArgument(f"The key names {_FILENAME}, and the file has no name that can stand there.")
        if is_too_long(key):
            raise KeyTooLong
        return key

    @property
    def content_type(self) -> str:
        """The Content-Type of the whole request."""
        return f'multipart/form-data; boundary="{self.boundary}"'

    def head(self, fields: Iterable[tuple[str, str]]) -> bytes:
        """The form up to the first byte of the file, with `fields` in place of the received ones."""
        dashes = f"--{self.boundary}\r\nContent-Disposition: form-data; name="
        parts = [f'{dashes}"{name}"\r\n\r\n{value}\r\n' for name, value in fields]
        kind = "" if self.file_type is None else f"Content-Type: {self.file_type}\r\n"
        # Not the name of the file: the key has it already, and each origin would read it in its own way.
        parts.append(f'{dashes}"{_FILE}"; filename="{_FILE}"\r\n{kind}\r\n')
        return "".join(parts).encode("utf-8", "surrogateescape")


def missing_field(name: str) -> InvalidArgument:
    return InvalidArgument(
        f"Bucket POST must contain a field named '{name}'. If it is specified, please check the order of the fields."
    )


def is_form(operation: Operation, headers: Headers) -> bool:
    """Whether this is a POST Object, whose signature stands in its fields. One with an Authorization header is none."""
    if operation.method != "POST" or operation.bucket is None or operation.key or operation.query:
        return False
    named = dict(headers)
    kind = named.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "multipart/form-data" and "authorization" not in named


def boundary_of(content_type: str) -> str:
    """Raises MalformedPOSTRequest: the header has no boundary that RFC 2046 allows."""
    if len(content_type) > _HEAD_CHARS_MAX:
        raise MalformedPOSTRequest
    message = Message(_VERBATIM)
    message["content-type"] = content_type
    boundary = message.get_param("boundary")
    if not isinstance(boundary, str) or _BOUNDARY.fullmatch(boundary) is None:
        raise MalformedPOSTRequest
    return boundary


class FieldsReader:
    """Reads a form up to the first byte of its file; keeps no more than `FIELDS_BYTES_MAX` and the last piece fed."""

    def __init__(self, boundary: str) -> None:
        self._boundary = boundary
        self._delimiter = _delimiter(boundary)
        # A line end is put before the form, so that the first delimiter looks like all others.
        self._buffer = bytearray(b"\r\n")
        self._part = 0
        # The head of the part that begins there, once it is complete.
        self._head: tuple[int, str, Message] | None = None
        self._fields: list[tuple[str, str]] = []

    def feed(self, data: bytes) -> tuple[PostForm, bytes] | None:
        """The form and the first bytes of its file; None: more data is needed.

        Raises:
            InvalidArgument: the form ends without a file.
            MalformedPOSTRequest: the data is no form.
            MaxPostPreDataLengthExceeded: the fields are too long.
        """
        self._buffer += data
        while (head := self._head or self._next_head()) is not None:
            self._head = head
            start, name, message = head
            _check_length(start)
            if name.lower() == _FILE:
                filename = re.split(r"[/\\]", message.get_filename() or "")[-1]
                form = PostForm(self._boundary, tuple(self._fields), filename, message.get("content-type"))
                return form, bytes(self._buffer[start:])
            # The search begins at the line end of the part's head: an empty value may have no line of its own.
            stop = self._buffer.find(self._delimiter, start - 2)
            if stop < 0:
                break
            value = bytes(self._buffer[start : max(start, stop)])
            _check_lines(value, self._delimiter)
            self._fields.append((name, value.decode("utf-8", "surrogateescape")))
            self._part, self._head = stop, None
        _check_length(len(self._buffer))
        return None

    def _next_head(self) -> tuple[int, str, Message] | None:
        """The head of the part that begins at `_part`: where its value begins, its name, its headers. None: the head is
        not complete yet."""
        start = self._part + len(self._delimiter)
        if not self._delimiter.startswith(bytes(self._buffer[self._part : start])):
            raise MalformedPOSTRequest
        opening = bytes(self._buffer[start : start + 2])
        if opening == b"--":
            raise InvalidArgument("POST requires exactly one file upload per request.")
        if not b"\r\n".startswith(opening):
            raise MalformedPOSTRequest
        stop = self._buffer.find(b"\r\n\r\n", start)
        if stop < 0:
            return None
        message = _headers(bytes(self._buffer[start + 2 : stop]))
        name = message.get_param("name", header="content-disposition")
        if message.get_content_disposition() != "form-data" or not isinstance(name, str) or not _NAME.fullmatch(name):
            raise MalformedPOSTRequest
        return stop + 4, name, message


class FileScanner:
    """Finds the end of the file among the bytes after a form's head."""

    def __init__(self, boundary: str) -> None:
        self._delimiter = _delimiter(boundary)
        # The line end of the head. A delimiter may follow at once, and some parsers recognise it there.
        self._held = b"\r\n"
        self._not_ours = 2
        self._ending: bytes | None = None
        self._after = b""

    def feed(self, data: bytes) -> bytes:
        """The bytes fed so far that belong to the file and were not returned before.

        Raises:
            MalformedPOSTRequest: more than `FIELDS_BYTES_MAX` bytes come after the file, or some parsers see its end
                in another place.
        """
        if self._ending is not None:
            self._after += data
            _check_after(self._after)
            return b""
        joined = self._held + data
        at = joined.find(self._delimiter)
        _check_lines(joined if at < 0 else joined[:at], self._delimiter)
        if at < 0:
            at = max(0, len(joined) - len(self._delimiter) + 1)
            self._held = joined[at:]
        else:
            self._ending = self._delimiter[self._not_ours :] if at == 0 else self._delimiter
            self._after = joined[at + len(self._delimiter) :]
            _check_after(self._after)
        given, self._not_ours = joined[self._not_ours : at], max(0, self._not_ours - at)
        return given

    def ending(self) -> bytes:
        """The bytes to send after the file: as many as were received, and none that could be read as another field.

        Raises:
            MalformedPOSTRequest: the file has no end, or no valid one.
        """
        if self._ending is None or self._after[:2] not in (b"--", b"\r\n"):
            raise MalformedPOSTRequest
        left = len(self._after) - 2
        # S3 ignores fields after the file, such as the button that was pressed; other stores read them.
        return self._ending + b"--" + (b"\r\n" + b" " * (left - 2) if left >= 2 else b" " * left)


def _delimiter(boundary: str) -> bytes:
    return b"\r\n--" + boundary.encode("ascii")


def _check_lines(value: bytes, delimiter: bytes) -> None:
    """Raises MalformedPOSTRequest: a parser that takes LF or CR for the end of a line sees a delimiter in `value`."""
    dashes, at = delimiter[2:], 0
    while (at := value.find(dashes, at)) >= 0:
        if value[at - 1 : at] in (b"\r", b"\n"):
            raise MalformedPOSTRequest
        at += 1


def _check_length(length: int) -> None:
    if length > FIELDS_BYTES_MAX:
        raise MaxPostPreDataLengthExceeded


def _check_after(after: bytes) -> None:
    if len(after) > FIELDS_BYTES_MAX:
        raise MalformedPOSTRequest("The file must be the last field of the form.")


def _headers(raw: bytes) -> Message:
    if len(raw) > _HEAD_CHARS_MAX:
        raise MalformedPOSTRequest
    message = Message(_VERBATIM)
    # `Message` would compare a name with all before it.
    names: set[str] = set()
    for line in raw.decode("utf-8", "surrogateescape").split("\r\n"):
        name, colon, value = line.partition(":")
        if not colon or not _NAME.fullmatch(name) or name.lower() in names or not _is_line(value):
            raise MalformedPOSTRequest
        names.add(name.lower())
        message[name] = value.strip(" \t")
    return message


def _is_line(value: str) -> bool:
    return all(char == "\t" or " " <= char != "\x7f" for char in value)
