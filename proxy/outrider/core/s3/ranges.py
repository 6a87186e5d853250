"""The Range and Content-Range headers. Source: RFC 9110 section 14, S3 API reference (GetObject)."""

from __future__ import annotations

import re
from typing import NamedTuple

from outrider.core.errors import InvalidRange
from outrider.core.model import Extent

# 18 digits make the longest number that is surely below 2**63. No object has a byte at a greater offset.
_ONE_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})", re.ASCII)


class RangeSpec(NamedTuple):
    """`first-last` (inclusive, as on the wire); `last` None: to the end; `first` None: the final `last` bytes."""

    first: int | None
    last: int | None


def parse(header: str) -> RangeSpec | None:
    """The single byte range that `header` asks for; None: the header has another form.

    Other forms are several ranges, other units, and nonsense such as `bytes=5-2`. Stores differ there, so the origin
    answers such requests itself.
    """
    match = _ONE_RANGE.fullmatch(header)
    if match is None:
        return None
    first = int(match[1]) if match[1] else None
    last = int(match[2]) if match[2] else None
    if first is None and last is None:
        return None
    if first is not None and last is not None and last < first:
        return None
    return RangeSpec(first, last)


def resolve(spec: RangeSpec, size: int) -> Extent:
    """The extent that `spec` names in an object of `size` bytes, cut at the end of the object.

    Raises:
        InvalidRange: the object has none of these bytes (416).
    """
    if spec.first is None:
        assert spec.last is not None
        start, stop = max(0, size - spec.last), size
    else:
        start = spec.first
        stop = size if spec.last is None else min(spec.last + 1, size)
    if start >= stop:
        raise InvalidRange(headers=(("content-range", f"bytes */{size}"),))
    return Extent(start, stop)


def content_range(extent: Extent, size: int) -> str:
    return f"bytes {extent.start}-{extent.stop - 1}/{size}"


_NO_RANGE = re.compile(r"bytes \*/([0-9]{1,18})", re.ASCII)


def parse_empty_range(header: str) -> int | None:
    """The size of the object in the Content-Range of a 416; None: the header has another form."""
    match = _NO_RANGE.fullmatch(header.strip())
    return None if match is None else int(match[1])


_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,18})-([0-9]{1,18})/([0-9]{1,18})", re.ASCII)


def parse_content_range(header: str) -> tuple[Extent, int] | None:
    """The extent and the size of the whole object; None: the header is malformed or leaves the size out (`*`)."""
    match = _CONTENT_RANGE.fullmatch(header.strip())
    if match is None:
        return None
    first, last, size = int(match[1]), int(match[2]), int(match[3])
    if not first <= last < size:
        return None
    return Extent(first, last + 1), size


def is_impossible_range(header: str) -> bool:
    """Whether it has the form of a Content-Range, and names bytes that an object of its size cannot have."""
    return parse_content_range(header) is None and _CONTENT_RANGE.fullmatch(header.strip()) is not None
