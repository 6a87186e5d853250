"""Which keys of a dataset come last, to about a thousandth of a pass."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Iterator

# A pass has so many steps. Of keys whose next reads lie closer than that, one is as good a victim as another; and all
# are ranked anew so often that a list sorted to the last bit took 5 us each time (`sortedcontainers`), this takes 1.
STEPS = 1024


class Ranks:
    """Keys by step; `reversed` goes through them, the last step first, and in it those first that were put there last.
    Whoever changes it begins anew."""

    def __init__(self) -> None:
        # Those that have keys, ascending; not a dict for each: what goes from its end leaves holes to be passed by.
        self._steps: list[int] = []
        self._keys: dict[int, OrderedDict[int, None]] = {}

    def put(self, key: int, step: int) -> None:
        keys = self._keys.get(step)
        if keys is None:
            keys = self._keys[step] = OrderedDict()
            insort(self._steps, step)
        keys[key] = None

    def discard(self, key: int, step: int) -> None:
        """`step`: where it was put, if it is there at all."""
        keys = self._keys.get(step)
        if keys is None:
            return
        keys.pop(key, None)
        if not keys:
            del self._keys[step], self._steps[bisect_left(self._steps, step)]

    def __reversed__(self) -> Iterator[int]:
        for step in reversed(self._steps):
            yield from reversed(self._keys[step])
