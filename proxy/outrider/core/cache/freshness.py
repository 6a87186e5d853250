"""Is what we know of a name good enough to answer from? Sources: RFC 9111 (freshness), RFC 9110 section 13."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import inf

from outrider.core.model import ObjectVersion
from outrider.core.s3.conditions import parse_http_date


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
    modified, told_at = parse_http_date(reply.get("last-modified")), parse_http_date(reply.get("date"))
    return modified is not None and told_at is not None and told_at - modified >= _SETTLED


def was_settled(version: ObjectVersion, filled_at: float) -> bool:
    """As `is_settled`, of a version of which a block was filled at `filled_at`, in seconds since 1970."""
    modified = parse_http_date(dict(version.headers).get("last-modified"))
    return modified is not None and filled_at - modified.timestamp() >= _SETTLED_HERE.total_seconds()
