"""The names that were forgotten, by generation, and the generation of each moment: an answer that another member got
earlier is judged by the time at which it was true."""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict

# Forgets within this time count as made at its begin.
_STEP_S = 0.01
# Eleven minutes of a write in each step.
_STEPS_MAX = 65_536


class ForgetLog:
    """At which generation each name was last forgotten. Bounded: a name that falls out raises the floor, which holds
    for all names that are not here."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._at: OrderedDict[object, int] = OrderedDict()
        self._floor = 0
        self._all = 0

    def note(self, name: object, generation: int) -> None:
        self._at[name] = generation
        self._at.move_to_end(name)
        if len(self._at) > self._capacity:
            self._floor = max(self._floor, self._at.popitem(last=False)[1])

    def note_all(self, generation: int) -> None:
        """All names are forgotten."""
        self._all = generation

    def last(self, name: object) -> int:
        return max(self._at.get(name, self._floor), self._all)

    def last_by_name(self, name: object) -> int:
        """As `last`, apart from when all names were forgotten."""
        return self._at.get(name, self._floor)


class GenerationTimes:
    """The generation at each moment of late. Moments before those that are kept have generation 0."""

    def __init__(self) -> None:
        self._begins: list[float] = []
        self._before: list[int] = []
        self._kept_from = float("-inf")

    def note(self, now: float, before: int) -> None:
        """The generation ends that was `before`."""
        if self._begins and now < self._begins[-1] + _STEP_S:
            return
        self._begins.append(now)
        self._before.append(before)
        if len(self._begins) > _STEPS_MAX:
            self._kept_from = self._begins[_STEPS_MAX // 2]
            del self._begins[: _STEPS_MAX // 2], self._before[: _STEPS_MAX // 2]

    def at(self, moment: float, current: int) -> int:
        """A generation that ended before any name was forgotten at `moment` or later. `current`: that of now."""
        if moment < self._kept_from:
            return 0
        step = bisect_left(self._begins, moment - _STEP_S)
        return current if step == len(self._begins) else self._before[step]
