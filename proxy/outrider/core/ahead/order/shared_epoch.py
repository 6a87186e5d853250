"""Clients that share the epochs of a dataset, each of which reads another part of it every time: the nodes of a run
behind one proxy, or its pods on one node. What each alone reads next is anybody's guess; what is left of the epoch that
they read together is not.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from outrider.core.ahead.dataset.names import Names
from outrider.core.ahead.order.epoch import Epoch
from outrider.core.ahead.order.job import Job

# So many reads of what another client has read, which chance would have brought, and none came: e**-7 is no chance.
_NO_CHANCE = 7.0
# What the clients have read before they were several is thought over if it is no more than this.
_LOOKED_AT = 10_000


class SharedEpoch:
    """Told of each read of a dataset that has several clients."""

    def __init__(self, jobs: Iterable[Job], names: Names, now: float) -> None:
        """`jobs`: what each client has done so far, by itself."""
        self._begin(now)
        begun = [(job.client, job.epochs[-1]) for job in jobs if job.epochs]
        if sum(len(one.log) for _, one in begun) > _LOOKED_AT:
            return
        for client, one in begun:
            for key in one.log:
                self.opened(client, key, names, len(begun), now)
        for mine in self._job.epochs:
            mine.began = min(one.began for _, one in begun)

    def _begin(self, now: float) -> None:
        self._job = Job("", now)
        # How much each client has read, and what of it chance would have had another one read before.
        self._own: Counter[str] = Counter()
        self._by_chance = 0.0

    @property
    def epochs(self) -> list[Epoch]:
        """Empty: they have nothing in common, or that is not clear yet."""
        return self._job.predicting if self._by_chance >= _NO_CHANCE else []

    def grow(self, key_count: int) -> None:
        self._job.grow(key_count)

    def listed(self, names: Names) -> None:
        self._job.listed(names)

    def opened(self, client: str, key: int, names: Names, readers: int, now: float) -> None:
        if not names.listed:
            return
        if self._by_chance < _NO_CHANCE:
            self._by_chance += (self._own.total() - self._own[client]) / len(names.keys)
            self._own[client] += 1
        self._job.opened(key, names, readers, list, now)
        if self._by_chance < _NO_CHANCE and not all(one.trusted for one in self._job.epochs):
            # Each reads for himself.
            self._begin(now)
