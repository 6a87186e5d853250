"""The record of one request and its reply, for the log, the metrics and the traces."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from outrider.core.insight.usage import DatasetName, Sums
from outrider.core.model import ObjectRef
from outrider.core.s3.operation import Operation

Sent = Counter[str]
"""Body bytes sent, by source."""


@dataclass(slots=True)
class BatchCounts:
    """The objects that one batch has read. `dataset_of`: the dataset of a bucket and a key. `first`: the first object
    of the list; while the batch is under way, its dataset stands for those of all. None: the list is empty."""

    dataset_of: Callable[[str, str], DatasetName]
    first: ObjectRef | None = None
    answered: Counter[tuple[int, str]] = field(default_factory=Counter)
    """By status and `x-cache`."""
    sent: Sent = field(default_factory=Counter)
    """Bytes of objects alone, without those of the tar around them."""
    served: dict[DatasetName, Sums] = field(default_factory=dict)
    passed_on: list[tuple[ObjectRef, int]] = field(default_factory=list)
    """Objects that the bucket answered past the cache, with the bytes sent."""

    def hit(self, ref: ObjectRef, status: int, count: int) -> None:
        """An object was read whole from the disk: `count` bytes of it."""
        self.answered[status, "HIT"] += 1
        self.sent["disk"] += count
        sums = self._sums_of(ref)
        sums.requests += 1
        sums.hits += 1
        sums.disk_bytes += count

    def read(self, ref: ObjectRef, status: int, cache: str, sent: Sent) -> None:
        """An object was sent, or as much of it as the client took."""
        self.answered[status, cache] += 1
        self.sent.update(sent)
        sums = Sums(
            1, int(cache == "HIT"), sent["disk"], sent["flight"] + sent["peer"], sent["origin"], peer_bytes=sent["peer"]
        )
        self._sums_of(ref).add(sums)

    def past(self, ref: ObjectRef, status: int, cache: str, sent: Sent) -> None:
        """The bucket answered past the cache, with an object or with a refusal."""
        self.answered[status, cache] += 1
        self.sent.update(sent)
        self.passed_on.append((ref, sent.total()))

    def refused(self, status: int, cache: str) -> None:
        """The proxy itself refused an object."""
        self.answered[status, cache] += 1

    def facts(self) -> dict[str, int]:
        """For the line of the access log."""
        return {
            "objects": self.answered.total(),
            "hits": sum(count for (_, cache), count in self.answered.items() if cache == "HIT"),
            "failed": sum(count for (status, _), count in self.answered.items() if status >= 400),
        }

    def _sums_of(self, ref: ObjectRef) -> Sums:
        dataset = self.dataset_of(*ref)
        sums = self.served.get(dataset)
        if sums is None:
            sums = self.served[dataset] = Sums()
        return sums


@dataclass(frozen=True, slots=True)
class Ended:
    """A request and its reply. `status` None: there was no reply. `cut`: why the reply is not whole; None: it is."""

    request_id: str
    op: str
    method: str
    operation: Operation | None
    requested_range: str | None
    client: str
    address: str
    status: int | None
    cache: str
    sent: Sent
    started: float
    cut: str | None
    reader: str | None = None
    """The reader of an object (see `access.reader_name`); None: no object was read."""
    away_s: float = 0.0
    """For how long the connection had been idle before this request."""
    full_s: float = 0.0
    """For how long the socket was full while the reply was sent."""
    app: str = ""
    """See `headers.app_of`."""
    first_byte_s: float | None = None
    """From the start of the request until the head of the reply was certain; None: a refusal of the proxy itself, or no
    reply."""
    batch: BatchCounts | None = None
    """The objects that the request read; None: it was no batch."""
