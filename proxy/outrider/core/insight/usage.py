"""What was served to whom, from where, and who waited for whom: sums by dataset, and by reader of a dataset.

A reader here is a client and a dataset: what it reads over all its connections. Its time, summed over these, has two
parts: it *waits* from a request's head until the last byte is sent, but for the time for which its socket was full; it
is *away* while its socket is full, or while its connection asks for nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from outrider.core.ahead.dataset.templates import Templates

DatasetName = tuple[str, str]
"""A bucket and a key template (see `datasets.Templates`)."""

OTHERS: DatasetName = ("", "(others)")
"""Of those that were silent for longest, beyond the bounds below, only the sums are kept."""
DATASETS_MAX = 256
READERS_MAX = 256
# A connection that asks for nothing for longer is a spare one of a pool, or its job pauses: no more of it counts.
AWAY_S_MAX = 60.0
# What is told of now: older facts weigh half after so many seconds.
_HALF_LIFE_S = 20.0


@dataclass(slots=True)
class Sums:
    """`hits`: requests that needed nothing but the disk. Bytes are those sent to clients, by source."""

    requests: int = 0
    hits: int = 0
    disk_bytes: int = 0
    flight_bytes: int = 0
    origin_bytes: int = 0
    wait_s: float = 0.0
    away_s: float = 0.0

    @property
    def served_bytes(self) -> int:
        return self.disk_bytes + self.flight_bytes + self.origin_bytes

    @property
    def stall(self) -> float | None:
        """Which part of its time the reader waited; None: there was no time yet."""
        total_s = self.wait_s + self.away_s
        return self.wait_s / total_s if total_s > 0 else None

    def add(self, more: Sums) -> None:
        self.requests += more.requests
        self.hits += more.hits
        self.disk_bytes += more.disk_bytes
        self.flight_bytes += more.flight_bytes
        self.origin_bytes += more.origin_bytes
        self.wait_s += more.wait_s
        self.away_s += more.away_s


@dataclass(slots=True)
class HitTally:
    """One reader's hits on one dataset in plain numbers, grown by one thread and read by another: `requests` grows last
    and is read first, so that where it has not grown since `told`, all of it was told."""

    requests: int = 0
    sent_bytes: int = 0
    wait_s: float = 0.0
    away_s: float = 0.0
    told: Sums = field(default_factory=Sums)

    def news(self) -> Sums:
        """What came since the last time."""
        told, requests = self.told, self.requests
        self.told = Sums(requests, requests, self.sent_bytes, 0, 0, self.wait_s, self.away_s)
        new = self.told
        return Sums(
            new.requests - told.requests, new.hits - told.hits, new.disk_bytes - told.disk_bytes, 0, 0,
            new.wait_s - told.wait_s, new.away_s - told.away_s,
        )  # fmt: skip


@dataclass(slots=True)
class DatasetAccount:
    """`asked` and `came_bytes`: GETs and HEADs sent to the bucket for it, whatever they were for and however they
    ended, and the bytes that came. `wanted` and `wanted_bytes`: those that clients sent here, and what they got, which
    they would have asked of the bucket; more than `sums` has, which are of what the cache answers."""

    sums: Sums = field(default_factory=Sums)
    wanted: int = 0
    wanted_bytes: int = 0
    asked: int = 0
    came_bytes: int = 0
    at: float = 0.0


@dataclass(slots=True)
class ReaderAccount:
    """`recent`: the same, faded; over `recent_s` seconds, faded too."""

    sums: Sums = field(default_factory=Sums)
    recent: Sums = field(default_factory=Sums)
    recent_s: float = 0.0
    at: float = 0.0
    fresh: Sums = field(default_factory=Sums)

    @property
    def bytes_s(self) -> float:
        return self.recent.served_bytes / self.recent_s if self.recent_s > 0 else 0.0

    def fade(self, part: float, seconds: float) -> None:
        recent, fresh = self.recent, self.fresh
        for name in ("disk_bytes", "flight_bytes", "origin_bytes", "requests", "hits"):
            setattr(recent, name, int(getattr(recent, name) * part) + getattr(fresh, name))
        recent.wait_s = recent.wait_s * part + fresh.wait_s
        recent.away_s = recent.away_s * part + fresh.away_s
        self.recent_s = self.recent_s * part + seconds
        self.fresh = Sums()


class Usage:
    """Called from one thread; bounded, those that were silent for longest going first."""

    def __init__(
        self, templates: Templates | None = None, *, datasets_max: int = DATASETS_MAX, readers_max: int = READERS_MAX
    ) -> None:
        self._datasets_max = datasets_max
        self._readers_max = readers_max
        self._datasets: OrderedDict[DatasetName, DatasetAccount] = OrderedDict()
        self._readers: OrderedDict[tuple[str, DatasetName], ReaderAccount] = OrderedDict()
        self._now = 0.0
        self.templates = Templates() if templates is None else templates
        """They name the datasets."""
        self.total = DatasetAccount()

    def dataset_of(self, bucket: str, key: str) -> DatasetName:
        """Any thread may ask that `templates` may be asked by."""
        return bucket, self.templates.of(bucket, key)

    # -- facts ----------------------------------------------------------------------------------------------------

    def served(self, reader: str, dataset: DatasetName, more: Sums) -> None:
        """`reader`: the client's name."""
        if not more.requests:
            return
        for each in (self.total, self._dataset(dataset)):
            each.sums.add(more)
            each.wanted += more.requests
            each.wanted_bytes += more.served_bytes
        account = self._readers.get((reader, dataset))
        if account is None:
            account = self._readers[reader, dataset] = ReaderAccount()
            if len(self._readers) > self._readers_max:
                self._readers.popitem(last=False)
        self._readers.move_to_end((reader, dataset))
        account.at = self._now
        account.sums.add(more)
        account.fresh.add(more)

    def passed_on(self, dataset: DatasetName, count: int) -> None:
        """A read was answered with so many bytes as the bucket answers it: it is none of those that the cache answers
        (of an old version, of tags), or an error."""
        for each in (self.total, self._dataset(dataset)):
            each.wanted += 1
            each.wanted_bytes += count

    def asked(self, bucket: str, key: str) -> None:
        """A read of this object was sent to the bucket."""
        self.total.asked += 1
        self._dataset(self.dataset_of(bucket, key)).asked += 1

    def came(self, bucket: str, key: str, count: int) -> None:
        """So many bytes of it came from the bucket."""
        self.total.came_bytes += count
        self._dataset(self.dataset_of(bucket, key)).came_bytes += count

    def passed(self, now: float) -> None:
        """To be told about once a second: what is recent fades."""
        seconds = now - self._now
        first, self._now = self._now == 0.0, now
        if first or seconds <= 0:
            return
        part = 0.5 ** (seconds / _HALF_LIFE_S)
        for account in self._readers.values():
            account.fade(part, seconds)

    # -- for the eye ----------------------------------------------------------------------------------------------

    def datasets(self) -> Mapping[DatasetName, DatasetAccount]:
        return self._datasets

    def readers(self) -> Iterator[tuple[str, DatasetName, ReaderAccount, float]]:
        """With how many seconds each has been silent, the latest first."""
        for (reader, dataset), account in reversed(self._readers.items()):
            yield reader, dataset, account, max(0.0, self._now - account.at)

    def _dataset(self, name: DatasetName) -> DatasetAccount:
        account = self._datasets.get(name)
        if account is None:
            account = self._datasets[name] = DatasetAccount()
            if len(self._datasets) > self._datasets_max:
                self._forget_one()
        if name != OTHERS:
            self._datasets.move_to_end(name)
        account.at = self._now
        return account

    def _forget_one(self) -> None:
        oldest = next(name for name in self._datasets if name != OTHERS)
        gone = self._datasets.pop(oldest)
        others = self._datasets.setdefault(OTHERS, DatasetAccount())
        others.sums.add(gone.sums)
        others.wanted += gone.wanted
        others.wanted_bytes += gone.wanted_bytes
        others.asked += gone.asked
        others.came_bytes += gone.came_bytes


@dataclass(frozen=True, slots=True)
class Prices:
    """In dollars: what the bucket's owner asks for 10**9 bytes out of it, and for 1,000 GETs. 0: nothing."""

    per_gb: float = 0.0
    per_1000_gets: float = 0.0


@dataclass(frozen=True, slots=True)
class Saved:
    """Of what clients asked for, what the bucket was not asked for. Negative while the cache has cost more than it
    saved: a large object comes in many ranges, and what is fetched may never be read. LISTs are in neither.

    `gets`: HEADs too, which the bucket bills alike.
    """

    gets: int
    egress_bytes: int
    request_dollars: float
    egress_dollars: float

    @classmethod
    def of(cls, account: DatasetAccount, prices: Prices) -> Saved:
        gets = account.wanted - account.asked
        count = account.wanted_bytes - account.came_bytes
        return cls(gets, count, gets / 1000 * prices.per_1000_gets, count / 1e9 * prices.per_gb)
