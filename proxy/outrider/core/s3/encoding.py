"""Encodings of S3 requests, in the canonical form that is signed: paths, queries, header values, dates.

Source: Amazon S3 API Reference, "Signature Calculations for the Authorization Header", task 1.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote_to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

OTHER_STORE_HEADERS = (
    "x-goog-", "x-minio-", "x-oss-", "x-obs-", "x-cos-", "x-emc-", "x-rgw-", "rgwx-", "x-seaweedfs-", "ibm-",
)  # fmt: skip
"""Prefixes of the own headers of other stores that speak S3."""
STORE_HEADERS = ("x-amz-", *OTHER_STORE_HEADERS)

_UNRESERVED = re.compile(r"[A-Za-z0-9\-._~]*")
_AMZ_DATE = re.compile(r"([0-9]{4})([0-9]{2})([0-9]{2})T([0-9]{2})([0-9]{2})([0-9]{2})Z")
_HTTP_DATE = re.compile(
    r"[A-Z][a-z]{2}, ([0-9]{2}) ([A-Z][a-z]{2}) ([0-9]{4}) ([0-9]{2}):([0-9]{2}):([0-9]{2}) (?:GMT|[+-]0000)"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_WHITE = re.compile(r"[ \t\r\n\v\f]+")


def encode_path(decoded: str | bytes) -> str:
    """A key or path in the form that S3 wants in a URL and under a signature: all but A-Z a-z 0-9 - . _ ~ / is
    escaped."""
    return quote(decoded if isinstance(decoded, bytes) else raw_bytes(decoded), safe="/")


def object_path(bucket: str | None, key: str, *, bare: bool) -> str:
    """The path of an object, a bucket or, without one, the service. `bare`: no slash follows a bucket."""
    if bucket is None:
        return "/"
    path = "/" + encode_path(bucket)
    return path if bare and not key else f"{path}/{encode_path(key)}"


def reencode_path(raw_path: str) -> str:
    """A path from the wire, escaped as S3 does it; never empty."""
    return encode_path(unquote_to_bytes(raw_bytes(raw_path))) or "/"


def encode_query(pairs: Iterable[tuple[str, str]]) -> str:
    """The canonical query of decoded pairs, sorted; a bare `acl` becomes `acl=`."""
    escaped = sorted([(_escaped(name), _escaped(value)) for name, value in pairs])
    return "&".join([f"{name}={value}" for name, value in escaped])


def encode_url_query(pairs: Iterable[tuple[str, str]]) -> str:
    """The query for a URL, in the order of `pairs`: some stores take the first value of a name that comes twice."""
    return "&".join([f"{_escaped(name)}={_escaped(value)}" for name, value in pairs])


def parse_query(raw: str) -> list[tuple[str, str]]:
    """Decoded pairs in the order received; `+` is a space, and `acl` is the same as `acl=`."""
    pairs = []
    for token in raw.split("&"):
        if token:
            name, _, value = token.partition("=")
            pairs.append((_unescaped(name), _unescaped(value)))
    return pairs


def canonical_values(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    """The canonical values of headers by name. The values of a header received twice are joined by a comma, so that
    they never pass for a single value."""
    values: dict[str, list[str]] = {}
    for name, value in headers:
        values.setdefault(name, []).append(trimmed(value))
    return {name: ",".join(each) for name, each in values.items()}


def trimmed(value: str) -> str:
    """`value` without white space at its ends, and with one space for each run of white space inside."""
    # `str.split` alone would also drop the white space of other scripts, which clients sign unchanged.
    return " ".join(value.split()) if value.isascii() else _WHITE.sub(" ", value).strip(" ")


def amz_date_of(date: str) -> str:
    """A Date header in the form of x-amz-date. A value that is no HTTP date (RFC 9110, or botocore's `-0000`) stays
    unchanged."""
    match = _HTTP_DATE.fullmatch(date)
    if match is None or match[2] not in _MONTHS:
        return date
    return f"{match[3]}{_MONTHS.index(match[2]) + 1:02}{match[1]}T{match[4]}{match[5]}{match[6]}Z"


def amz_date_seconds(amz_date: str) -> float | None:
    """`YYYYMMDDTHHMMSSZ` as seconds since 1970; None: it is no such time."""
    match = _AMZ_DATE.fullmatch(amz_date)
    if match is None:
        return None
    try:
        return datetime(*map(int, match.groups()), tzinfo=UTC).timestamp()  # type: ignore[misc,arg-type]
    except ValueError:
        return None


def raw_bytes(text: str) -> bytes:
    """The text as bytes on the wire: UTF-8, with surrogate escapes turned back into bytes.

    Raises:
        UnicodeEncodeError: the text has a surrogate that is no escape, which cannot have come from a wire.
    """
    return text.encode("utf-8", "surrogateescape")


def _escaped(text: str) -> str:
    return text if _UNRESERVED.fullmatch(text) else quote(raw_bytes(text), safe="")


def _unescaped(text: str) -> str:
    if "%" not in text and "+" not in text:
        return text
    return unquote_to_bytes(raw_bytes(text.replace("+", " "))).decode("utf-8", "surrogateescape")
