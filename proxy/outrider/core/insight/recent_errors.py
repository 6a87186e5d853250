"""The last things that went wrong, for the eye: bounded, and the same thing again is counted and not repeated."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_KEPT_MAX = 50
_CHARS_MAX = 300


@dataclass(slots=True)
class RecentError:
    """`at`: when it was last seen, seconds since 1970."""

    what: str
    detail: str
    level: str
    at: float
    times: int = 1


class RecentErrors:
    """What happened last comes last."""

    def __init__(self) -> None:
        self._cached: OrderedDict[tuple[str, str], RecentError] = OrderedDict()

    def add(self, what: str, detail: str, level: str, at: float) -> None:
        # Keys and what the origin said may be as long as they like.
        what, detail = what[:_CHARS_MAX], detail[:_CHARS_MAX]
        known = self._cached.pop((what, detail), None)
        times = known.times + 1 if known is not None else 1
        self._cached[what, detail] = RecentError(what, detail, level, at, times)
        if len(self._cached) > _KEPT_MAX:
            self._cached.popitem(last=False)

    def last(self) -> list[RecentError]:
        """The latest first. From any thread: a copy."""
        return list(reversed(list(self._cached.values())))
