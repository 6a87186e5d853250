"""The last errors, for the status page: bounded. An error that occurs again is counted and not repeated."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

_KEPT_MAX = 50
_CHARS_MAX = 300


@dataclass(slots=True)
class RecentError:
    """`at`: when it occurred last, in seconds since 1970. `times`: how often it occurred."""

    what: str
    detail: str
    level: str
    at: float
    times: int = 1


class RecentErrors:
    """Errors are the same if `what` and `detail` are. Called from one thread, except `last`."""

    def __init__(self) -> None:
        self._errors: OrderedDict[tuple[str, str], RecentError] = OrderedDict()

    def add(self, what: str, detail: str, level: str, at: float) -> None:
        # Keys and replies of the origin have any length.
        what, detail = what[:_CHARS_MAX], detail[:_CHARS_MAX]
        known = self._errors.pop((what, detail), None)
        times = known.times + 1 if known is not None else 1
        self._errors[what, detail] = RecentError(what, detail, level, at, times)
        if len(self._errors) > _KEPT_MAX:
            self._errors.popitem(last=False)

    def last(self) -> list[RecentError]:
        """A copy, the latest error first. May be called from any thread."""
        return list(reversed(list(self._errors.values())))
