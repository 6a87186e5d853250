"""Accounts for usage by dataset and by reader: requests, bytes by source, and waiting times.

A reader here is a client of a dataset, over all its connections. Its time, summed over these, has two parts. It *waits*
from the head of a request until the last byte is sent, except while its socket is full. It is *away* while its socket
is full, and while its connection has no request.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, floor, log

from outrider.core.ahead.dataset.templates import Templates
from outrider.core.model import ObjectRef
from outrider.core.text import counted, in_words

DatasetName = tuple[str, str]
"""A bucket and a key template (see `core.ahead.dataset.templates`)."""

OTHERS: DatasetName = ("", "(others)")
"""The sums of the datasets that were dropped because of the bound below; the longest silent one is dropped first."""
DATASETS_MAX = 256
READERS_MAX = 256
# A connection without a request for longer than this is spare in a pool, or its job pauses: the rest does not count.
AWAY_S_MAX = 60.0
HALF_LIFE_S = 20.0
"""After so many seconds, a request counts half in the recent sums."""
# The integral of that over all seconds.
_HALF_LIFE_S_IN_ALL = HALF_LIFE_S / log(2)
_MINUTE_S = 60.0


@dataclass(slots=True)
class Sums:
    """`hits` are requests served from the disk alone. Bytes are those sent to clients, by source; `peer_bytes` are
    those of `flight_bytes` that came from other members. `miss_wait_s` is the part of `wait_s` of requests that were no
    hits. Counts are whole numbers, but for sums that fade: a job with one read a second or fewer would never count."""

    requests: float = 0
    hits: float = 0
    disk_bytes: float = 0
    flight_bytes: float = 0
    origin_bytes: float = 0
    wait_s: float = 0.0
    away_s: float = 0.0
    peer_bytes: float = 0
    miss_wait_s: float = 0.0

    @property
    def served_bytes(self) -> float:
        return self.disk_bytes + self.flight_bytes + self.origin_bytes

    @property
    def stall(self) -> float | None:
        """The part of its time for which the reader waited; None: there was no time yet."""
        total_s = self.wait_s + self.away_s
        return self.wait_s / total_s if total_s > 0 else None

    def add(self, more: Sums) -> None:
        # Written out: a loop over the names would take several times as long, with each request.
        self.requests += more.requests
        self.hits += more.hits
        self.disk_bytes += more.disk_bytes
        self.flight_bytes += more.flight_bytes
        self.origin_bytes += more.origin_bytes
        self.wait_s += more.wait_s
        self.away_s += more.away_s
        self.peer_bytes += more.peer_bytes
        self.miss_wait_s += more.miss_wait_s

    def times(self, part: float) -> Sums:
        return Sums(*(part * getattr(self, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class ReadUnderWay:
    """A read that has not ended. `wait_s` and `away_s` are as in `Sums`, so far. `is_waiting`: it waits now; else its
    socket is full."""

    reader: str
    dataset: DatasetName
    is_hit: bool
    is_waiting: bool
    wait_s: float
    away_s: float

    def recent(self) -> Sums:
        """As it would count in the recent sums, had its time been counted as it went by."""
        time_s = self.wait_s + self.away_s
        faded_s = _HALF_LIFE_S_IN_ALL * (1 - 0.5 ** (time_s / HALF_LIFE_S))
        wait_s = faded_s * self.wait_s / time_s if time_s > 0 else 0.0
        return Sums(
            1, int(self.is_hit), wait_s=wait_s, away_s=faded_s - wait_s, miss_wait_s=0.0 if self.is_hit else wait_s
        )  # fmt: skip


@dataclass(slots=True)
class HitTally:
    """The hits of one reader on one dataset. If `requests` has not grown since `reported`, everything was reported."""

    requests: int = 0
    sent_bytes: int = 0
    wait_s: float = 0.0
    away_s: float = 0.0
    reported: Sums = field(default_factory=Sums)

    def take_unreported(self) -> Sums:
        """The hits since the last call."""
        before = self.reported
        self.reported = Sums(self.requests, self.requests, self.sent_bytes, 0, 0, self.wait_s, self.away_s)
        now = self.reported
        return Sums(
            now.requests - before.requests, now.hits - before.hits, now.disk_bytes - before.disk_bytes, 0, 0,
            now.wait_s - before.wait_s, now.away_s - before.away_s,
        )  # fmt: skip


@dataclass(slots=True)
class DatasetAccount:
    """The requests for one dataset, by clients and to the bucket."""

    # The requests that the cache answered.
    sums: Sums = field(default_factory=Sums)
    # All GETs and HEADs of clients, and the bytes sent to them. Without the proxy, the bucket would have got these.
    wanted: int = 0
    wanted_bytes: int = 0
    # The GETs and HEADs sent to the bucket, for whatever reason and with whatever result, and the bytes received.
    bucket_gets: int = 0
    bucket_bytes: int = 0
    # When it was last changed.
    at: float = 0.0

    def add(self, more: DatasetAccount) -> None:
        self.sums.add(more.sums)
        self.wanted += more.wanted
        self.wanted_bytes += more.wanted_bytes
        self.bucket_gets += more.bucket_gets
        self.bucket_bytes += more.bucket_bytes


@dataclass(slots=True)
class ReaderAccount:
    """`recent` has the same sums, but older requests count less; `recent_s` is the time that they cover, counted alike.
    `fresh` has the sums since the last `fade`."""

    sums: Sums = field(default_factory=Sums)
    recent: Sums = field(default_factory=Sums)
    recent_s: float = 0.0
    at: float = 0.0
    fresh: Sums = field(default_factory=Sums)

    @property
    def bytes_s(self) -> float:
        return self.recent.served_bytes / self.recent_s if self.recent_s > 0 else 0.0

    def fade(self, part: float, seconds: float) -> None:
        self.recent = self.recent.times(part)
        self.recent.add(self.fresh)
        self.recent_s = self.recent_s * part + seconds
        self.fresh = Sums()


class Usage:
    """Called from one thread. Bounded: the dataset, or the reader, that was silent for longest is dropped first."""

    def __init__(
        self, templates: Templates | None = None, *, datasets_max: int = DATASETS_MAX, readers_max: int = READERS_MAX
    ) -> None:
        self._datasets_max = datasets_max
        self._readers_max = readers_max
        self._datasets: OrderedDict[DatasetName, DatasetAccount] = OrderedDict()
        self._readers: OrderedDict[tuple[str, DatasetName], ReaderAccount] = OrderedDict()
        self._now = 0.0
        self.templates = Templates() if templates is None else templates
        """Names the datasets."""
        self.on_served: Callable[[str, float], None] = lambda reader, count: None
        """Called with the reader and the bytes of each `served`."""
        self.on_received: Callable[[ObjectRef, int], None] = lambda ref, count: None
        """Called with each `received`."""
        self._failed_reads = 0
        # The number of failed reads at each tick of the last minute.
        self._failed_before: deque[tuple[float, int]] = deque()

    def dataset_of(self, bucket: str, key: str) -> DatasetName:
        return bucket, self.templates.of(bucket, key)

    # -- requests -------------------------------------------------------------------------------------------------

    def served(self, reader: str, dataset: DatasetName, more: Sums) -> None:
        """`reader`: the client's name."""
        if not more.requests:
            return
        served_bytes, of_all = more.served_bytes, self._dataset(dataset)
        of_all.sums.add(more)
        of_all.wanted += int(more.requests)
        of_all.wanted_bytes += int(served_bytes)
        account = self._readers.get((reader, dataset))
        if account is None:
            account = self._readers[reader, dataset] = ReaderAccount()
            if len(self._readers) > self._readers_max:
                self._readers.popitem(last=False)
        self._readers.move_to_end((reader, dataset))
        account.at = self._now
        account.sums.add(more)
        account.fresh.add(more)
        self.on_served(reader, served_bytes)

    def passed_on(self, dataset: DatasetName, count: int) -> None:
        """The bucket answered a read, with `count` bytes: the cache does not answer such reads (of an old version, of
        tags), or the answer is an error."""
        account = self._dataset(dataset)
        account.wanted += 1
        account.wanted_bytes += count

    def failed(self, count: int = 1) -> None:
        """`count` reads failed: they were answered with 5xx, or their reply was cut."""
        self._failed_reads += count

    @property
    def failed_reads(self) -> int:
        """In the last minute."""
        return self._failed_reads - (self._failed_before[0][1] if self._failed_before else 0)

    def received(self, bucket: str, key: str, gets: int, count: int) -> None:
        """`count` bytes were received from the bucket in a reply about this object. `gets`: 1 if it was to a GET or
        HEAD, else 0."""
        if not (gets or count):
            # A preflight that anybody may send makes no dataset of the names in it.
            return
        account = self._dataset(self.dataset_of(bucket, key))
        account.bucket_gets += gets
        account.bucket_bytes += count
        if count:
            self.on_received(ObjectRef(bucket, key), count)

    def tick(self, now: float) -> None:
        """To be called about once a second: recent sums fade."""
        seconds = now - self._now
        self._failed_before.append((now, self._failed_reads))
        while self._failed_before[0][0] < now - _MINUTE_S:
            self._failed_before.popleft()
        first, self._now = self._now == 0.0, now
        if first or seconds <= 0:
            return
        part = 0.5 ** (seconds / HALF_LIFE_S)
        for account in self._readers.values():
            account.fade(part, seconds)

    # -- for the status page -------------------------------------------------------------------------------------------

    @property
    def total(self) -> DatasetAccount:
        """The sums over all datasets, as of now."""
        total = DatasetAccount()
        for account in self._datasets.values():
            total.add(account)
        return total

    def datasets(self) -> Mapping[DatasetName, DatasetAccount]:
        return self._datasets

    def readers(self) -> Iterator[tuple[str, DatasetName, ReaderAccount, float]]:
        """Client, dataset, account, and the seconds of silence, the shortest first."""
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
        self._datasets.setdefault(OTHERS, DatasetAccount()).add(gone)


@dataclass(frozen=True, slots=True)
class Prices:
    """In dollars: the bucket's price for 10**9 bytes of egress, and for 1,000 GETs. 0: free, or not set."""

    per_gb: float = 0.0
    per_1000_gets: float = 0.0


@dataclass(frozen=True, slots=True)
class Savings:
    """The requests and bytes of clients less those to the bucket. `gets` has the HEADs too, which are billed alike.
    LISTs do not count.

    Negative while the cache has cost more than it saved: a large object is fetched in many ranges, and a prefetched one
    may never be read.
    """

    gets: int
    egress_bytes: int
    request_dollars: float
    egress_dollars: float

    @classmethod
    def of(cls, account: DatasetAccount, prices: Prices) -> Savings:
        gets = account.wanted - account.bucket_gets
        count = account.wanted_bytes - account.bucket_bytes
        return cls(gets, count, gets / 1000 * prices.per_1000_gets, count / 1e9 * prices.per_gb)

    def spent(self, data_bytes: int, *, are_read: bool) -> str | None:
        """In words, the bytes fetched ahead of any read, and when hits have repaid them; None: more were saved.

        `data_bytes`: of the data that this is about; 0: there are no data, as where the bucket sent errors alone.
        `are_read`: a part of them was read before.
        """
        if self.egress_bytes >= 0:
            return None
        if data_bytes <= 0:
            return f"the bucket sent {in_words(-self.egress_bytes)} more than readers got"
        spent = f"spent {in_words(-self.egress_bytes)} ahead"
        epochs = -self.egress_bytes / data_bytes
        # An epoch that begins with a part of the data in the cache gets the rest from the bucket: it saves nothing.
        when = f"within {counted(ceil(epochs), 'epoch')}" if are_read else f"from epoch {max(2, 1 + floor(epochs))}"
        return f"{spent}; repays {when}"
