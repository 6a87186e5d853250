"""When the certificates of the webhook are made anew, so that no request is ever refused.

A server's certificate may be signed anew at any time: the API server trusts the authority. A new authority signs only
after it has been trusted for a while, and its predecessor is trusted on until it ends.
"""

from __future__ import annotations

from dataclasses import dataclass

DAY_S = 24 * 3600.0
AUTHORITY_S, SERVER_S = 3650 * DAY_S, 365 * DAY_S
# From the write of a bundle to the last API server that has read it.
SETTLE_S = 600.0
_RENEWED_AT = 2 / 3


@dataclass(frozen=True, slots=True)
class Validity:
    """Seconds since the epoch. `names`: the DNS names of a server's certificate."""

    begins: float
    ends: float
    names: frozenset[str] = frozenset()

    def is_due(self, now: float) -> bool:
        """Two thirds of it are over, or it is not valid."""
        return not self.begins <= now < self.begins + (self.ends - self.begins) * _RENEWED_AT


@dataclass(frozen=True, slots=True)
class Due:
    """The certificates that are to be made anew."""

    authority: bool
    server: bool


def due(newest: Validity | None, server: Validity | None, names: frozenset[str], now: float) -> Due:
    """`newest`: the newest authority. `names`: those that the server needs. None: there is none."""
    if newest is None or not newest.begins <= now < newest.ends:
        return Due(authority=True, server=True)
    return Due(authority=newest.is_due(now), server=server is None or server.is_due(now) or not names <= server.names)


def signs(authorities: list[Validity], now: float) -> int:
    """The index of the authority that signs, of these from the newest to the oldest: the newest that every API server
    trusts by now, else the oldest."""
    for index, authority in enumerate(authorities):
        if authority.begins + SETTLE_S <= now < authority.ends:
            return index
    return len(authorities) - 1
