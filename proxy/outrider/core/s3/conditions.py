"""Conditional requests: which conditions all stores read alike, and how they apply to a known version.

Source: RFC 9110 section 13; S3 API reference, GetObject.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import lru_cache

from outrider.core.model import Headers, ObjectVersion


class Precondition(Enum):
    """The answer that the conditional headers of a read ask for, with its HTTP status."""

    SERVE = 200
    NOT_MODIFIED = 304
    FAILED = 412


CONDITIONALS = frozenset(("if-match", "if-none-match", "if-modified-since", "if-unmodified-since"))


# One strong ETag, with its quotes or, as some clients send it, without. Stores differ in how they read `*` (also in
# quotes), lists and weak tags.
_PLAIN_ETAG = re.compile(r'(?!"\*")"[^\x00-\x20"\x7f]+"|(?!W/)[^\x00-\x20"*,\x7f]+')


# The only form of a date that RFC 9110 lets a client send. Stores refuse or ignore the older forms.
_PLAIN_DATE = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT", re.ASCII)


def are_plain(headers: Headers) -> bool:
    """Whether all stores read the conditions of a request alike, so that the cache may `evaluate` them."""
    seen: set[str] = set()
    for name, value in headers:
        if name not in CONDITIONALS:
            continue
        form = _PLAIN_ETAG if name.endswith("-match") else _PLAIN_DATE
        if name in seen or form.fullmatch(value) is None or (form is _PLAIN_DATE and parse_http_date(value) is None):
            return False
        seen.add(name)
    return True


def evaluate(headers: Mapping[str, str], version: ObjectVersion) -> Precondition:
    """Evaluate conditional headers (names in lower case) that `are_plain`, in RFC 9110's order of precedence (section
    13.2.2).

    An If-Match that holds makes If-Unmodified-Since void, and If-None-Match makes If-Modified-Since void (S3's rule,
    GetObject). S3 clients send ETags with and without quotes.
    """
    etags = version.etag, version.etag[1:-1]
    modified = parse_http_date(dict(version.headers).get("last-modified"))
    if (wanted := headers.get("if-match")) is not None:
        if wanted not in etags:
            return Precondition.FAILED
    elif (since := parse_http_date(headers.get("if-unmodified-since"))) and modified and modified > since:
        return Precondition.FAILED
    if (unwanted := headers.get("if-none-match")) is not None:
        if unwanted in etags:
            return Precondition.NOT_MODIFIED
    elif (since := parse_http_date(headers.get("if-modified-since"))) and modified and modified <= since:
        return Precondition.NOT_MODIFIED
    return Precondition.SERVE


# Each small miss asks for two, of which the Date of replies changes once a second.
@lru_cache(maxsize=256)
def parse_http_date(header: str | None) -> datetime | None:
    if header is None:
        return None
    try:
        parsed = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
