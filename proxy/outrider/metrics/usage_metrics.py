"""The metrics of usage, by dataset and by tenant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from operator import add

from prometheus_client import CollectorRegistry, Counter, Gauge

from outrider.core.insight.usage import OTHERS, DatasetAccount, DatasetName, Usage

# From so many served bytes on a dataset has a label of its own, while there are fewer than `_LABELS_MAX`. A label stays
# for the life of the process: a counter that changed its labels would look like one that began anew.
_LABEL_FROM_BYTES = 10**9
_LABELS_MAX = 20


class UsageMetrics:
    """The usage as counters by dataset. Small datasets, and those beyond the first twenty, are counted as `other`."""

    def __init__(self, usage: Usage, registry: CollectorRegistry, *, from_bytes: int = _LABEL_FROM_BYTES) -> None:
        self._usage = usage
        self._from_bytes = from_bytes
        self._labels: dict[DatasetName, str] = {}
        # The part of each account that the counters already have, in the order of `_columns`.
        self._counted: dict[DatasetName, tuple[DatasetAccount, Sequence[float]]] = {}
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.served_bytes = counter(
            "outrider_dataset_served_bytes", "Body bytes of reads sent to clients.", ["dataset", "source"]
        )
        self.requests = counter(
            "outrider_dataset_requests", "Reads answered; `hit`: from the disk alone.", ["dataset", "hit"]
        )
        self.bucket_bytes = counter(
            "outrider_dataset_origin_bytes", "Body bytes of the dataset that came from the origin.", ["dataset"]
        )
        self.bucket_requests = counter(
            "outrider_dataset_origin_requests",
            "GETs and HEADs of the dataset's objects sent to the origin.",
            ["dataset"],
        )
        self.wait_s = counter(
            "outrider_dataset_wait_seconds",
            "Time that readers waited for the proxy, over all their connections.",
            ["dataset"],
        )
        self.away_s = counter(
            "outrider_dataset_away_seconds",
            "Time that the proxy waited for readers: their sockets were full, or they sent no request.",
            ["dataset"],
        )
        self.cached_bytes = gauge(
            "outrider_dataset_cached_bytes", "Bytes of the dataset on the disk of this node.", ["dataset"]
        )

        self._columns: tuple[tuple[Counter, tuple[str, ...]], ...] = (
            (self.served_bytes, ("disk",)), (self.served_bytes, ("flight",)), (self.served_bytes, ("origin",)),
            (self.requests, ("yes",)), (self.requests, ("no",)), (self.bucket_requests, ()), (self.bucket_bytes, ()),
            (self.wait_s, ()), (self.away_s, ()),
        )  # fmt: skip
        """Each counter, with its labels beside the dataset's; see `_numbers`."""

    def hold(self, cached: Iterable[tuple[DatasetName, int]]) -> None:
        """The bytes on disk of all datasets that have some."""
        sums: dict[str, int] = {}
        for name, count in cached:
            label = self._label(name, count)
            sums[label] = sums.get(label, 0) + count
        self.cached_bytes.clear()
        for label, count in sums.items():
            self.cached_bytes.labels(label).set(count)

    def update(self) -> None:
        accounts = self._usage.datasets()
        for gone in [name for name, (account, _) in self._counted.items() if accounts.get(name) is not account]:
            # Usage has added its sums to the others, so what was counted of it counts there. A dataset of this name may
            # have come anew since.
            its = self._counted.pop(gone)[1]
            others, counted = self._counted.get(OTHERS, (accounts[OTHERS], [0.0] * len(its)))
            self._counted[OTHERS] = others, list(map(add, counted, its))
        for name, account in accounts.items():
            now, label = _numbers(account), self._label(name, account.sums.served_bytes)
            _, before = self._counted.get(name, (account, [0.0] * len(now)))
            for (counter, labels), old, new in zip(self._columns, before, now, strict=True):
                if new > old:
                    counter.labels(label, *labels).inc(new - old)
            self._counted[name] = account, now

    def _label(self, name: DatasetName, count: float) -> str:
        """`count`: its bytes that were served, or are on disk."""
        label = self._labels.get(name)
        if label is None and name[0] and count >= self._from_bytes and len(self._labels) < _LABELS_MAX:
            # The exposition is UTF-8 and cannot hold a lone surrogate, which is shown as an escape.
            label = f"{name[0]}/{name[1]}".encode("utf-8", "backslashreplace").decode()
            self._labels[name] = label
        return label or "other"


def _numbers(account: DatasetAccount) -> Sequence[float]:
    """In the order of `UsageMetrics._columns`."""
    sums = account.sums
    return (
        sums.disk_bytes, sums.flight_bytes, sums.origin_bytes, sums.hits, sums.requests - sums.hits,
        account.bucket_gets, account.bucket_bytes, sums.wait_s, sums.away_s,
    )  # fmt: skip


class TenantMetrics:
    """By tenant: the name of clients in the clients file, or `-` where no tenant is known. Cached bytes are counted
    only where a tenant has a share of the cache."""

    def __init__(self, registry: CollectorRegistry) -> None:
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.cached_bytes = gauge(
            "outrider_tenant_cached_bytes", "Bytes on disk that count for the tenant's `cache_share`.", ["tenant"]
        )
        self.served_bytes = counter(
            "outrider_tenant_served_bytes", "Body bytes of reads sent to the tenant's clients.", ["tenant"]
        )
        self.origin_bytes = counter(
            "outrider_tenant_origin_bytes",
            "Body bytes that came from the origin of objects that the tenant reads.",
            ["tenant"],
        )
