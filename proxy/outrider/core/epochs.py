"""Datasets, and how far each job has come in its epoch over one: what was read, what is left, in which order.

A *pass* is one job's epoch over one dataset: no key twice. Keys are small numbers within their dataset; what a pass knows
of them stands in arrays, so that a million keys take a few dozen megabytes.
"""

from __future__ import annotations

import re
from array import array
from collections import deque
from collections.abc import Iterable, Sequence

# Numbers, and the long hexadecimal names that tools give to parts: what differs from shard to shard.
_VARIES = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|(?=[a-f]*[0-9])[0-9a-f]{16,}|[0-9]+")
# How many of the last reads tell where a pass is: odd, for the median.
_RECENT = 9
# Of the evidence for or against a known order, this part is the newest read's.
_NEWEST = 1 / 8
# Before anything is known: a second epoch repeats the first one's order (WebDataset's default), a first one has none.
_ORDER_LIKELY, _ORDER_UNLIKELY = 0.65, 0.2


def template_of(key: str) -> str:
    """What a key shares with the other keys of its dataset: `train-000123.tar` is of `train-{}.tar`.

    A name without a number belongs to its folder and ending: `cats/tom.jpg` is of `cats/*.jpg`.
    """
    folder, slash, name = key.rpartition("/")
    varied = _VARIES.sub("{}", name)
    if varied == name:
        _, dot, ending = name.rpartition(".")
        varied = "*" + (dot + ending if dot else "")
    return _VARIES.sub("{}", folder) + slash + varied


def number_of(key: str) -> int:
    """The last number of the key's name, which counts shards; -1: none."""
    numbers = re.findall(r"[0-9]+", key.rpartition("/")[2])
    return int(numbers[-1][:15]) if numbers else -1


def _blanks(count: int) -> array[int]:
    return array("i", b"\xff\xff\xff\xff" * count)


class Pass:
    """One job's epoch over a dataset. `agenda` is what it is expected to read, in the likely order.

    `place[k]`: where key k stands in the agenda, -1: not expected; `done[k]`: as the how-many-eth it was read, -1: not
    yet. Fractions of a pass are floats, 1.0 being all of it.
    """

    def __init__(self, client: str, agenda: array[int], key_count: int, now: float, order: float) -> None:
        self.client = client
        self.number = 0
        self.agenda = agenda
        self.place = _blanks(key_count)
        self.done = _blanks(key_count)
        self.log: array[int] = array("i")
        self.expected_read = 0
        self.novel = 0
        self.order = order
        self.told = False
        self.began = self.last = now
        self.gap_s = 0.0
        self.period_s = 0.0
        # Where prefetching has got to in the agenda (and, past its end, in the log, which is the next agenda).
        self.cursor = 0
        self.again: deque[int] = deque()
        self._recent: deque[int] = deque(maxlen=_RECENT)
        self.frontier = 0
        for index, key in enumerate(agenda):
            self.place[key] = index

    # -- what is known ------------------------------------------------------------------------------------------

    @property
    def left(self) -> int:
        return len(self.agenda) - self.expected_read

    @property
    def size(self) -> int:
        """Keys of the pass as far as known; never less than what was read."""
        return max(len(self.agenda) + self.novel, 1)

    @property
    def fraction(self) -> float:
        return min(1.0, len(self.log) / self.size)

    @property
    def order_known(self) -> bool:
        return self.told or self.order > 0.5

    @property
    def tolerance(self) -> int:
        """How far a read may be from its place in the order: readers run beside each other and drift."""
        count = len(self.agenda)
        return max(2, min(max(24, count // 32), count // 6))

    def unread(self, key: int) -> bool:
        return self.done[key] < 0

    def seconds_per_pass(self, now: float) -> float:
        if self.number > 0 and self.period_s > 0:
            return self.period_s
        # The first pass: extrapolated; twice the time so far while nobody knows how long it is.
        return max(now - self.began, 1e-3) / max(self.fraction if self.agenda else 0.5, 0.02)

    def until(self, key: int) -> float:
        """Fractions of a pass until this job reads `key`; of a key that it may never read, as if it did."""
        done = self.done[key]
        size = self.size
        if done >= 0:
            return max(0.0, 1.0 + (done - len(self.log)) / size)
        place = self.place[key]
        if place < 0 or not self.order_known:
            return (1.0 - self.fraction) / 2
        ahead = place - self.frontier
        if ahead < -3 * self.tolerance:  # passed over: a run that was taken up in mid-epoch
            return max(0.0, 1.0 + ahead / size)
        return max(0, ahead) / size

    def fits(self, key: int) -> bool:
        """The key is about where the order says that this pass is."""
        place = self.place[key]
        return place >= 0 and abs(place - self.frontier) <= self.tolerance

    # -- what happens -------------------------------------------------------------------------------------------

    def read(self, key: int, now: float) -> None:
        """`key` must be unread."""
        place = self.place[key]
        if place >= 0:
            self.expected_read += 1
            hit = abs(place - self.frontier) <= self.tolerance
            self.order += _NEWEST * (hit - self.order)
            self._recent.append(place)
            self.frontier = sorted(self._recent)[len(self._recent) // 2]
        else:
            self.novel += 1
        self.done[key] = len(self.log)
        self.log.append(key)
        gap = now - self.last
        self.gap_s += (gap - self.gap_s) * (1.0 if len(self.log) <= 2 else 0.1)
        self.last = now

    def begin_next(self, now: float) -> None:
        """All was read: the next pass, which most likely is like this one."""
        self.agenda, self.log = self.log, array("i")
        self.place, self.done = self.done, _blanks(len(self.done))
        self.expected_read = self.novel = 0
        self.period_s, self.began = now - self.began, now
        self.cursor = max(0, self.cursor - len(self.agenda))
        self.number += 1
        self._recent.clear()
        self.frontier = 0
        if self.number == 1:
            self.order = max(self.order, _ORDER_LIKELY)
        self.told = False

    def grow(self, key_count: int) -> None:
        """The dataset has more keys now."""
        for table in (self.place, self.done):
            table.extend(_blanks(key_count - len(table)))

    def expect(self, keys: Iterable[int]) -> None:
        """Add to the end of the agenda what is not in it."""
        for key in keys:
            if self.place[key] < 0:
                self.place[key] = len(self.agenda)
                self.agenda.append(key)
                if self.done[key] >= 0:
                    self.expected_read += 1
                    self.novel -= 1

    def tell(self, keys: Sequence[int], start: int, total: int) -> None:
        """The order of this pass, for certain: `keys` are numbers `start`, `start` + 1, ... of `total` that one worker
        reads. What several workers are told is merged by how far each is through its own part."""
        if not self.told:
            self._begin_told()
        shares = [(start + i + 0.5) / max(total, 1) for i in range(len(keys))]
        pairs = [(share, key) for share, key in zip(shares, keys, strict=True) if self.place[key] < 0]
        if pairs and self._shares and pairs[0][0] < self._shares[-1]:
            pairs = sorted([*zip(self._shares, self.agenda, strict=True), *pairs])
            self._shares, self.agenda, self.expected_read = array("d"), array("i"), 0
            self.novel, self.cursor = 0, 0
            read = set(self.log)
        else:
            read = {key for _, key in pairs if self.done[key] >= 0}
        for share, key in pairs:
            self._shares.append(share)
            self.place[key] = len(self.agenda)
            self.agenda.append(key)
            self.expected_read += key in read

    def _begin_told(self) -> None:
        self.told = True
        self._shares: array[float] = array("d")
        self.agenda, self.place = array("i"), _blanks(len(self.place))
        self.expected_read, self.novel, self.cursor, self.frontier = 0, len(self.log), 0, 0
        self._recent.clear()
