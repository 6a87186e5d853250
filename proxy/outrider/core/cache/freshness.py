"""Is what we know of a name good enough to answer from? Sources: RFC 9111 (freshness), RFC 9110 section 13."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from enum import Enum
from math import inf

from outrider.core.model import Headers, ObjectVersion


@dataclass(frozen=True, slots=True)
class Freshness:
    """For how many seconds after a check an entry is served unasked: 0 `always` asks, `inf` is `immutable`."""

    ttl_s: float

    def __post_init__(self) -> None:
        if not self.ttl_s >= 0:
            raise ValueError(f"freshness cannot be {self.ttl_s} seconds")

    @classmethod
    def parse(cls, text: str) -> Freshness:
        """`immutable`, `always` or `ttl:SECONDS`.

        Raises:
            ValueError: it is none of them; the message says what is allowed.
        """
        if text == "immutable":
            return cls(inf)
        if text == "always":
            return cls(0.0)
        match = re.fullmatch(r"ttl:([0-9]+(?:\.[0-9]+)?)", text, re.ASCII)
        if match is None:
            raise ValueError(f"{text!r} is not one of: immutable, always, ttl:SECONDS (for example ttl:60)")
        return cls(float(match[1]))


def is_fresh(checked_at: float | None, now: float, freshness: Freshness) -> bool:
    """`checked_at` None: nobody asked the origin since a write or a start, so no mode makes it fresh."""
    if checked_at is None:
        return False
    return freshness.ttl_s == inf or now - checked_at < freshness.ttl_s


# Dates have seconds, each cut off, and a reply is dated a moment after what it tells was looked up.
_SETTLED = timedelta(seconds=2)
# As that, where the second date is of this machine's clock.
_SETTLED_HERE = timedelta(seconds=60)


def is_settled(reply: Mapping[str, str]) -> bool:
    """Whether the origin told of a version (names in lower case) so long after its Last-Modified that whatever is put
    later has another. Both dates are the origin's own: its clock may be any."""
    modified, told_at = _date(reply.get("last-modified")), _date(reply.get("date"))
    return modified is not None and told_at is not None and told_at - modified >= _SETTLED


def was_settled(version: ObjectVersion, filled_at: float) -> bool:
    """As `is_settled`, of a version of which a block was filled at `filled_at`, in seconds since 1970."""
    modified = _date(dict(version.headers).get("last-modified"))
    return modified is not None and filled_at - modified.timestamp() >= _SETTLED_HERE.total_seconds()


class Verdict(Enum):
    """What the conditional headers of a read ask for."""

    SERVE = 200
    NOT_MODIFIED = 304
    FAILED = 412


CONDITIONALS = ("if-match", "if-none-match", "if-modified-since", "if-unmodified-since")

# One strong ETag, also without its quotes, as some clients send it; `*`, lists and weak tags are read otherwise from
# store to store.
_PLAIN_ETAG = re.compile(r'"[A-Za-z0-9-]+"|[A-Za-z0-9-]+', re.ASCII)
# The one form of a date that RFC 9110 lets a client send; stores refuse or ignore the older ones.
_PLAIN_DATE = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT", re.ASCII)


def are_plain(headers: Headers) -> bool:
    """Whether all stores read the conditions of a request alike, so that the cache may weigh them (`evaluate`)."""
    seen: set[str] = set()
    for name, value in headers:
        if name not in CONDITIONALS:
            continue
        form = _PLAIN_ETAG if name.endswith("-match") else _PLAIN_DATE
        if name in seen or form.fullmatch(value) is None or (form is _PLAIN_DATE and _date(value) is None):
            return False
        seen.add(name)
    return True


def evaluate(headers: Mapping[str, str], version: ObjectVersion) -> Verdict:
    """Weigh the conditional headers (names in lower case) in RFC 9110's order of precedence (section 13.2.2).

    If-Match that holds makes If-Unmodified-Since moot, and If-None-Match makes If-Modified-Since moot (S3's own
    rule, GetObject). A date that does not parse is ignored.
    """
    if not any(name in headers for name in CONDITIONALS):
        return Verdict.SERVE
    modified = _date(dict(version.headers).get("last-modified"))
    if (wanted := headers.get("if-match")) is not None:
        if not _names(wanted, version.etag):
            return Verdict.FAILED
    elif (since := _date(headers.get("if-unmodified-since"))) and modified and modified > since:
        return Verdict.FAILED
    if (unwanted := headers.get("if-none-match")) is not None:
        if _names(unwanted, version.etag):
            return Verdict.NOT_MODIFIED
    elif (since := _date(headers.get("if-modified-since"))) and modified and modified <= since:
        return Verdict.NOT_MODIFIED
    return Verdict.SERVE


def _names(header: str, etag: str) -> bool:
    # S3 clients send ETags bare as well as quoted; a weak tag never names a version here.
    bare = etag.strip('"')
    return any(part.strip() == "*" or part.strip().strip('"') == bare for part in header.split(","))


def _date(header: str | None) -> datetime | None:
    if header is None:
        return None
    try:
        parsed = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
