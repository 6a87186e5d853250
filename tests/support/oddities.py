"""The oddities of origins: each is a knob of `odd_origin.OddOrigin`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum


class ContentRange(StrEnum):
    """The Content-Range of a reply that brings a part of the object."""

    RIGHT = "right"
    MISSING = "missing"
    NO_TOTAL = "no total"  # `bytes 0-9/*`
    WRONG_START = "wrong start"  # names bytes one further on than those that follow
    WRONG_TOTAL = "wrong total"  # the object is one byte longer than told
    WRONG_LENGTH = "wrong length"  # names one byte more than follows
    UNREADABLE = "unreadable"


class Length(StrEnum):
    """How a reply tells where its body ends."""

    TOLD = "told"
    CHUNKED = "chunked"
    UNTIL_CLOSE = "until close"


class Body(StrEnum):
    """The bytes that follow the head."""

    WHOLE = "whole"
    CUT = "cut"  # half of them, then the connection is closed
    SHORT = "short"  # half of them, and Content-Length counts only these
    LONGER = "longer"  # other bytes follow those that Content-Length counts
    LONG = "long"  # other bytes follow, and Content-Length counts them


class HeadLength(StrEnum):
    """The Content-Length of a reply to HEAD."""

    RIGHT = "right"
    MISSING = "missing"
    ZERO = "zero"
    WRONG = "wrong"  # one byte less


class ETag(StrEnum):
    """`hex`: the MD5, as AWS has it for a simple PUT."""

    HEX = "hex"
    MULTIPART = "multipart"
    BASE64 = "base64"  # with `+`, `/` and `=`
    WEAK = "weak"
    UNQUOTED = "unquoted"
    EMPTY = "empty"  # `""`
    BLANK = "blank"  # the header is there, without a value
    MISSING = "missing"
    CONSTANT = "constant"  # the same for all objects and versions
    ZEROS = "zeros"  # as `constant`, in the form of an MD5 of parts
    CHANGING = "changing"  # another one in each reply
    NOT_AT_HEAD = "not at HEAD"
    OTHER_AT_HEAD = "other at HEAD"


class IfMatch(StrEnum):
    HEEDED = "heeded"
    IGNORED = "ignored"
    REFUSED = "501"
    FAILS = "412"  # whatever the ETag


class ListSize(StrEnum):
    """The size of each object in a LIST."""

    RIGHT = "right"
    SMALLER = "smaller"  # half of it
    LARGER = "larger"  # twice as large
    ZERO = "zero"
    MISSING = "missing"


class ListETag(StrEnum):
    """The ETag of each object in a LIST."""

    RIGHT = "right"
    OTHER = "other"
    MISSING = "missing"


class Checksum(StrEnum):
    """The checksum header of a reply to a request that asks for it."""

    NONE = "none"
    RIGHT = "right"
    WRONG = "wrong"
    OF_PARTS = "of parts"  # of the parts of an upload, without their number and without a type
    OF_PART = "of part"  # a reply to a Range has one, too: that of the part


@dataclass(frozen=True, slots=True, repr=False)
class Oddities:
    """How the replies differ from those of AWS. Without arguments: in nothing."""

    range_status: int = 206
    """The status of a reply that brings the part of a Range."""
    plain_status: int = 200
    """The status of a reply to a GET without Range."""
    plain_content_range: bool = False
    """A reply to a GET without Range has the Content-Range of the whole object."""
    content_range: ContentRange = ContentRange.RIGHT
    ignores_range: bool = False
    ignores_conditions: bool = False
    """If-None-Match and the conditions by date are ignored."""
    if_match: IfMatch = IfMatch.HEEDED
    checksum_mode: int | None = None
    """The status that refuses each request with `x-amz-checksum-mode`; None: it is heeded."""
    checksum: Checksum = Checksum.NONE
    head_status: int | None = None
    """The status that refuses each HEAD of an object; None: HEAD is answered."""
    head_length: HeadLength = HeadLength.RIGHT
    length: Length = Length.TOLD
    body: Body = Body.WHOLE
    etag: ETag = ETag.HEX
    lacks: frozenset[str] = frozenset()
    """Names of headers, in lower case, that no reply has."""
    http_1_0: bool = False
    closes: bool = False
    """The connection is closed after each reply, which says so."""
    hangs_up: bool = False
    """The connection is closed after each reply, which does not say so."""
    content_encoding: str = ""
    more_headers: tuple[tuple[str, str], ...] = ()
    """Headers of each reply about an object, as they are written: odd names, Vary, and others."""
    list_without_token: bool = False
    """A page of a LIST that is not the last one has no token for the next."""
    list_ignores_encoding: bool = False
    """Keys are listed as they are, though `encoding-type=url` was asked for."""
    list_page: int = 1000
    """The most objects and common prefixes on a page of a LIST."""
    list_size: ListSize = ListSize.RIGHT
    list_etag: ListETag = ListETag.RIGHT
    list_refuses: frozenset[str] = frozenset()
    """Parameters of a LIST that are answered 400: `list-type` as by a store that knows version 1 alone, and
    `encoding-type`."""

    @property
    def forged(self) -> bool:
        """Whether replies that a direct client takes for right contradict each other, or their own bytes."""
        return (
            self.content_range
            in (ContentRange.WRONG_START, ContentRange.WRONG_TOTAL, ContentRange.WRONG_LENGTH, ContentRange.UNREADABLE)
            or self.body is Body.LONGER
            or self.head_length is HeadLength.WRONG
            or self.checksum is Checksum.WRONG
        )

    @property
    def tells_no_overwrite(self) -> bool:
        """Whether neither ETag nor date shows that an object was overwritten: no cache can know, unless the size
        does."""
        return self.etag in (ETag.CONSTANT, ETag.ZEROS) and "last-modified" in self.lacks

    def __repr__(self) -> str:
        """The oddities alone: a failed test shows what was odd."""
        odd = ((f.name, getattr(self, f.name)) for f in fields(self) if getattr(self, f.name) != f.default)
        # A set in the same order each time: this is also the name of a test, which several processes must agree on.
        shown = ((name, ",".join(sorted(value)) if isinstance(value, frozenset) else value) for name, value in odd)
        return f"Oddities({', '.join(f'{name}={value!s}' for name, value in shown)})"


AWS = Oddities()


@dataclass(frozen=True, slots=True)
class Stored:
    """An object. `modified`: seconds since 1970. `etag` None: as the oddities have it."""

    body: bytes
    modified: int
    headers: tuple[tuple[str, str], ...] = ()
    etag: str | None = None


@dataclass(slots=True)
class Seen:
    """A request as it arrived, header names in lower case; and what was sent for it: the status, and bytes of the
    body."""

    method: str
    target: str
    headers: dict[str, str]
    status: int = 0
    sent_bytes: int = 0
