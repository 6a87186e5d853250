"""Freshness: whether a known version may be served without asking the origin. Source: RFC 9111."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from math import inf

from outrider.core.model import ObjectVersion
from outrider.core.s3.conditions import parse_http_date


@dataclass(frozen=True, slots=True)
class Freshness:
    """For `ttl_s` seconds after a check, a version is served without asking the origin.

    0 is `always`: each read asks. `inf` is `immutable`.
    """

    ttl_s: float

    def __post_init__(self) -> None:
        if not self.ttl_s >= 0:
            raise ValueError(f"freshness cannot be {self.ttl_s} seconds")

    @classmethod
    def parse(cls, text: str) -> Freshness:
        """`immutable`, `always` or `ttl:SECONDS`.

        Raises:
            ValueError: the text has none of these forms; the message lists them.
        """
        if text == "immutable":
            return cls(inf)
        if text == "always":
            return cls(0.0)
        match = re.fullmatch(r"ttl:([0-9]+(?:\.[0-9]+)?)", text, re.ASCII)
        if match is None:
            raise ValueError(f"{text!r} is not one of: immutable, always, ttl:SECONDS (for example ttl:60)")
        return cls(float(match[1]))


def shortest_under(place: str, rules: Iterable[tuple[str, Freshness]], default: Freshness) -> Freshness:
    """The shortest freshness that an object may have whose `bucket/key` begins with `place`.

    `rules`: globs over `bucket/key`; the first that matches counts. `default`: where none matches.
    """
    found: list[Freshness] = []
    for glob, freshness in rules:
        head = re.split(r"[*?\[]", glob, maxsplit=1)[0]
        if head.startswith(place) or place.startswith(head):
            found.append(freshness)
            if place.startswith(head) and glob == f"{head}*":
                break  # it matches all objects that are left
    else:
        found.append(default)
    return min(found, key=lambda freshness: freshness.ttl_s)


def is_fresh(checked_at: float | None, now: float, freshness: Freshness) -> bool:
    """Whether a version that the origin confirmed at `checked_at` is fresh. None: the origin was not asked since a
    write or a start, so the version is not fresh in any mode."""
    if checked_at is None:
        return False
    return freshness.ttl_s == inf or now - checked_at < freshness.ttl_s


DOUBT_S = 600.0
"""A write that ended without an answer may be carried out so much later: for as long as it may leave its connection
silent. Until then each read of its name asks the origin."""

# Both dates are cut to whole seconds, and the origin dates a reply a moment after it looked the version up.
_SETTLED = timedelta(seconds=2)
# As `_SETTLED`, where the second date is from the clock of this machine.
_SETTLED_HERE = timedelta(seconds=60)


def is_settled(reply: Mapping[str, str]) -> bool:
    """Whether a later write must have another Last-Modified than the version in this reply.

    That holds if the reply is 2 s younger than the version: Last-Modified has a resolution of one second. Both dates
    are from the origin's clock, so its error does not matter. `reply`: headers with lower-case names.
    """
    modified, replied_at = parse_http_date(reply.get("last-modified")), parse_http_date(reply.get("date"))
    return modified is not None and replied_at is not None and replied_at - modified >= _SETTLED


def was_settled(version: ObjectVersion, confirmed_at: float) -> bool:
    """As `is_settled`, for a version that the origin confirmed at `confirmed_at` (seconds since 1970, by our clock)."""
    modified = parse_http_date(dict(version.headers).get("last-modified"))
    return modified is not None and was_settled_at(modified.timestamp(), confirmed_at)


def was_settled_at(modified_at: float, confirmed_at: float) -> bool:
    """As `was_settled`, by the version's Last-Modified in seconds since 1970; 0: it has none."""
    return modified_at > 0 and confirmed_at - modified_at >= _SETTLED_HERE.total_seconds()


def age_s(confirmed_at: float | None, now: float, not_before: float = 0.0) -> float | None:
    """The seconds since a version was confirmed at `confirmed_at`, as a start finds it; both times are in seconds since
    1970. None: not known, so the origin has to be asked.

    `not_before`: the latest time that the proxy is known to have been running. A clock that shows less has stepped
    back, and shows the age of nothing.
    """
    if confirmed_at is None or not 0 < confirmed_at <= now or now < not_before:
        return None
    return now - confirmed_at
