"""The Prometheus metrics: all names, units and labels. No label is an object's key; a key template may be one (see
`UsageMetrics`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from outrider.core.ahead.dataset.templates import Templates
from outrider.core.cache.disk_budget import DiskBudget
from outrider.core.insight.recent_errors import RecentErrors
from outrider.core.insight.usage import OTHERS, DatasetAccount, DatasetName, ReadUnderWay, Sums, Usage

SOURCES = ("disk", "flight", "peer", "origin")
"""The sources of a served byte: a block on disk, a block that is still arriving, or a relay past the cache."""

DUPLICATE_CAUSES = ("hedge", "question", "relay", "abandoned", "restart")
"""Why bytes of the origin came for nothing.

hedge      the other one of two requests was answered first
question   the GET that was to tell the version brought a block that was here, or on its way
relay      the block was filled, or relayed to another reader, at the same time
abandoned  the reader left, or the fill failed, while they were under way
restart    the origin ignored the Range and sent them before the wanted ones, or the fill failed that had brought them
"""

_METHODS = frozenset(("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"))


def method_label(method: str) -> str:
    """The method if it is one of S3's, else `other`: no client can make up labels."""
    return method if method in _METHODS else "other"


# From so many served bytes on a dataset has a label of its own, while there are fewer than `_LABELS_MAX`. A label stays
# for the life of the process: a counter that changed its labels would look like one that began anew.
_LABEL_FROM_BYTES = 10**9
_LABELS_MAX = 20


@dataclass(slots=True)
class _Counted:
    """The part of an account that the counters already have."""

    account: DatasetAccount
    sums: Sums = field(default_factory=Sums)
    asked: int = 0
    came_bytes: int = 0


class UsageMetrics:
    """The usage as counters by dataset. Small datasets, and those beyond the first twenty, are counted as `other`."""

    def __init__(self, usage: Usage, registry: CollectorRegistry, *, from_bytes: int = _LABEL_FROM_BYTES) -> None:
        self._usage = usage
        self._from_bytes = from_bytes
        self._labels: dict[DatasetName, str] = {}
        self._counted: dict[DatasetName, _Counted] = {}
        self.served_bytes = Counter(
            "outrider_dataset_served_bytes", "Body bytes of reads sent to clients.", ["dataset", "source"],
            registry=registry,
        )  # fmt: skip
        self.requests = Counter(
            "outrider_dataset_requests", "Reads answered; `hit`: from the disk alone.", ["dataset", "hit"],
            registry=registry,
        )  # fmt: skip
        self.bucket_bytes = Counter(
            "outrider_dataset_origin_bytes", "Body bytes of the dataset that came from the origin.", ["dataset"],
            registry=registry,
        )  # fmt: skip
        self.bucket_requests = Counter(
            "outrider_dataset_origin_requests",
            "GETs and HEADs of the dataset's objects sent to the origin.",
            ["dataset"],
            registry=registry,
        )
        self.wait_s = Counter(
            "outrider_dataset_wait_seconds", "Time that readers waited for the proxy, over all their connections.",
            ["dataset"], registry=registry,
        )  # fmt: skip
        self.away_s = Counter(
            "outrider_dataset_away_seconds",
            "Time that the proxy waited for readers: their sockets were full, or they sent no request.",
            ["dataset"], registry=registry,
        )  # fmt: skip
        self.cached_bytes = Gauge(
            "outrider_dataset_cached_bytes", "Bytes of the dataset on the disk of this node.", ["dataset"],
            registry=registry,
        )  # fmt: skip

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
        for gone in [name for name, counted in self._counted.items() if accounts.get(name) is not counted.account]:
            # Usage has added its sums to the others, so what was counted of it counts there. A dataset of this name may
            # have come anew since.
            its = self._counted.pop(gone)
            others = self._counted.setdefault(OTHERS, _Counted(accounts[OTHERS]))
            others.sums.add(its.sums)
            others.asked += its.asked
            others.came_bytes += its.came_bytes
        for name, account in accounts.items():
            counted = self._counted.setdefault(name, _Counted(account))
            sums, asked, came = counted.sums, counted.asked, counted.came_bytes
            now = account.sums
            label = self._label(name, now.served_bytes)
            hits = now.hits - sums.hits
            for metric, labels, more in (
                (self.served_bytes, (label, "disk"), now.disk_bytes - sums.disk_bytes),
                (self.served_bytes, (label, "flight"), now.flight_bytes - sums.flight_bytes),
                (self.served_bytes, (label, "origin"), now.origin_bytes - sums.origin_bytes),
                (self.requests, (label, "yes"), hits),
                (self.requests, (label, "no"), now.requests - sums.requests - hits),
                (self.bucket_requests, (label,), account.asked - asked),
                (self.bucket_bytes, (label,), account.came_bytes - came),
                (self.wait_s, (label,), now.wait_s - sums.wait_s),
                (self.away_s, (label,), now.away_s - sums.away_s),
            ):
                if more > 0:
                    metric.labels(*labels).inc(more)
            counted.sums, counted.asked, counted.came_bytes = replace(now), account.asked, account.came_bytes

    def _label(self, name: DatasetName, count: float) -> str:
        """`count`: its bytes that were served, or are on disk."""
        label = self._labels.get(name)
        if label is None and name[0] and count >= self._from_bytes and len(self._labels) < _LABELS_MAX:
            # The exposition is UTF-8 and cannot hold a lone surrogate, which is shown as an escape.
            label = f"{name[0]}/{name[1]}".encode("utf-8", "backslashreplace").decode()
            self._labels[name] = label
        return label or "other"


# So many members have a label of their own.
_PEER_LABELS_MAX = 64
OTHER = "other"
"""The label of all members beyond these, and of those that are in no list."""


class PeerMetrics:
    """The wire between the members of a cluster."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._labels: set[str] = set()
        self.requests = Counter(
            "outrider_peer_requests",
            "Reads asked of other members; `result`: ok, or why the answer was of no use.",
            ["peer", "result"],
            registry=registry,
        )
        self.bytes = Counter(
            "outrider_peer_bytes", "Body bytes from other members (`in`) and to them (`out`).", ["peer", "direction"],
            registry=registry,
        )  # fmt: skip
        self.first_byte_s = Histogram(
            "outrider_peer_first_byte_seconds",
            "From a read asked of another member to the head of its answer.",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.refused = Counter(
            "outrider_peer_refused", "Requests that the peer port refused.", ["why"], registry=registry
        )
        self.failures = Counter(
            "outrider_peer_failures", "Reads of other members that failed; `why`: how.", ["why"], registry=registry
        )
        self.forgets = Counter(
            "outrider_peer_forgets",
            "Forgets of names that a write makes doubtful, at each member; `result`: acknowledged by it, late (after "
            "the write went on), or unacknowledged; received (messages of one forget or more), or missed (gaps).",
            ["result"],
            registry=registry,
        )
        self.members = Gauge(
            "outrider_peer_members",
            "Other members of the cluster; `state`: alive, away, or left_out (it does not fit, fails, or is slow).",
            ["state"],
            registry=registry,
        )
        self.ring_disagreements = Counter(
            "outrider_peer_ring_disagreements", "Reads by members that see another ring.", registry=registry
        )
        self.duplicate_fetches = Counter(
            "outrider_peer_duplicate_fetches",
            "Blocks that this node asked the bucket for while another member that owns them was there; `why`: what the "
            "member did, left_out (it was not asked), doubted (its bytes were wrong), or for_peer (a member asked this "
            "node, and not the owner).",
            ["why"],
            registry=registry,
        )
        self.source_failures = Counter(
            "outrider_peer_source_failures",
            "Times that the source of members (`peers`) gave no list, or a wrong one; the last good one counts.",
            registry=registry,
        )

    def label(self, name: str) -> str:
        """The label of a member: its name, or `other` for all members beyond the first 64."""
        if name not in self._labels:
            if len(self._labels) >= _PEER_LABELS_MAX:
                return OTHER
            self._labels.add(name)
        return name


class TenantMetrics:
    """By tenant: the name of clients in the clients file, or `-` where no tenant is known. Cached bytes are counted
    only where a tenant has a share of the cache."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.cached_bytes = Gauge(
            "outrider_tenant_cached_bytes", "Bytes on disk that count for the tenant's `cache_share`.", ["tenant"],
            registry=registry,
        )  # fmt: skip
        self.served_bytes = Counter(
            "outrider_tenant_served_bytes", "Body bytes of reads sent to the tenant's clients.", ["tenant"],
            registry=registry,
        )  # fmt: skip
        self.origin_bytes = Counter(
            "outrider_tenant_origin_bytes", "Body bytes that came from the origin of objects that the tenant reads.",
            ["tenant"], registry=registry,
        )  # fmt: skip


def refused_connections(registry: CollectorRegistry) -> Counter:
    """The counter of a process's ports; see `http.wire.acceptor`."""
    return Counter(
        "outrider_refused_connections",
        "Connections that were turned away before their first request; `why`: full (the port has no room), address "
        "(one address has half of the room, and has not shown who it is), late (for its TLS handshake), or handshake "
        "(it failed).",
        ["port", "why"],
        registry=registry,
    )


FIRST_BUCKET_S = 0.001
"""The upper bound of the first bucket of `Metrics.first_byte_s`."""


class ShownDisk(Protocol):
    """A disk of the store, which is on a higher floor. `name`: its directory."""

    name: str
    budget: DiskBudget
    blocks: int
    reads: int

    @property
    def state(self) -> tuple[str, str]:
        """`works`, `scanning` or `failing`, and why it fails."""
        ...

    @property
    def works(self) -> bool: ...


class Metrics:
    """One set of metrics in a registry of its own, so that two proxies in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter(
            "outrider_requests",
            "Requests answered; each object of a batch counts as a `get`, and reads of a mount by a block's file as a "
            "`descriptor`.",
            ["op", "status", "cache"], registry=r,
        )  # fmt: skip
        self.served_bytes = Counter("outrider_served_bytes", "Body bytes sent to clients.", ["source"], registry=r)
        self.first_byte_s = Histogram(
            "outrider_first_byte_seconds",
            "From a request's head to its reply's head.",
            ["op"],
            buckets=(FIRST_BUCKET_S, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=r,
        )
        self.refused_connections = refused_connections(r)
        self.in_flight = Gauge("outrider_requests_in_flight", "Requests being answered now.", registry=r)
        self.origin_requests = Counter(
            "outrider_origin_requests",
            "Requests sent to the origin, each try counted; status `none`: no reply came.",
            ["method", "status"],
            registry=r,
        )
        self.origin_oddities = Counter(
            "outrider_origin_oddities",
            "Times that the origin behaved otherwise than AWS S3; `kind`: how (docs/s3-compatibility.md).",
            ["kind"],
            registry=r,
        )
        self.uncached_reads = Counter(
            "outrider_uncached_reads",
            "Reads of objects that were relayed or forwarded, and not kept; `reason`: a kind of oddity, or another.",
            ["reason"],
            registry=r,
        )
        self.origin_bytes = Counter("outrider_origin_bytes", "Body bytes received from the origin.", registry=r)
        self.duplicate_origin_bytes = Counter(
            "outrider_duplicate_origin_bytes",
            "Body bytes that came from the origin for nothing, as far as this end of its connections tells.",
            ["cause"],
            registry=r,
        )
        for cause in DUPLICATE_CAUSES:
            self.duplicate_origin_bytes.labels(cause)
        self.receivers = Gauge("outrider_receivers", "Processes that receive large bodies over https.", registry=r)
        self.receivers_lost = Counter(
            "outrider_receivers_lost",
            "Receivers that died or did not answer; their bodies were asked for again.",
            registry=r,
        )
        self.origin_retries = Counter("outrider_origin_retries", "Reads retried at the origin.", registry=r)
        self.origin_wait_s = Counter(
            "outrider_origin_wait_seconds",
            "Time that reads waited before they were tried again at the origin, over all of them.",
            registry=r,
        )
        self.hedges = Counter(
            "outrider_hedges", "Hedged requests; `won`: the second request was answered first.", ["won"], registry=r
        )
        self.store_bytes = Gauge(
            "outrider_store_bytes", "Bytes on disk, headers and reservations included.", registry=r
        )
        self.store_capacity_bytes = Gauge("outrider_store_capacity_bytes", "The budget of the store.", registry=r)
        self.store_blocks = Gauge("outrider_store_blocks", "Blocks on disk.", registry=r)
        self.store_proved_bytes = Gauge(
            "outrider_store_verified_bytes",
            "Bytes on disk whose content was compared with what the bucket knows of it: `verify_origin`.",
            registry=r,
        )
        self.origin_mismatches = Counter(
            "outrider_origin_mismatches", "Fills whose content was not that of the object, by what the bucket knows.",
            registry=r,
        )  # fmt: skip
        self.evicted_blocks = Counter("outrider_evicted_blocks", "Blocks evicted for room.", registry=r)
        self.bad_blocks = Counter("outrider_bad_blocks", "Blocks found damaged, and deleted.", registry=r)
        self.scrubbed_blocks = Counter(
            "outrider_scrubbed_blocks", "Blocks that the scrubber verified or found damaged.", registry=r
        )
        self.scrub_rounds = Counter("outrider_scrub_rounds", "Rounds of the scrubber over all blocks.", registry=r)
        self.store_errors = Counter("outrider_store_errors", "Errors of the cache disks.", ["act"], registry=r)
        self.disk_errors = Counter("outrider_disk_errors", "Errors of each cache disk.", ["disk"], registry=r)
        self.disk_reads = Counter("outrider_disk_reads", "Reads of blocks on each cache disk.", ["disk"], registry=r)
        self.disk_bytes = Gauge("outrider_disk_bytes", "As outrider_store_bytes, of each disk.", ["disk"], registry=r)
        self.disk_capacity_bytes = Gauge(
            "outrider_disk_capacity_bytes", "The part of each disk in the budget of the store.", ["disk"], registry=r
        )
        self.disk_blocks = Gauge("outrider_disk_blocks", "Blocks on each cache disk.", ["disk"], registry=r)
        self.disk_works = Gauge(
            "outrider_disk_works",
            "1: the disk takes new blocks; 0: it fails, or is being scanned, and the others take its blocks.",
            ["disk"],
            registry=r,
        )
        self.disk_wait_s = Counter(
            "outrider_disk_wait_seconds",
            "Time that reads of blocks took whose pages were not in memory, over all of them.",
            registry=r,
        )
        self.prefetched_blocks = Counter(
            "outrider_prefetched_blocks", "Blocks whose fill began before a reader waited for them.", registry=r
        )
        self.relays = Counter("outrider_relays", "Reads relayed past the cache.", registry=r)
        self.planned_reads = Counter("outrider_planned_reads", "Reads that plans named.", registry=r)
        self.job_steps = Counter("outrider_job_steps", "Training steps that StallMeters reported.", registry=r)
        self.job_wait_s = Counter(
            "outrider_job_wait_seconds",
            "Time that training loops waited for data, as StallMeters reported.",
            registry=r,
        )
        self.job_compute_s = Counter(
            "outrider_job_compute_seconds", "Time between these waits, as StallMeters reported.", registry=r
        )
        self.ghost_hit_ratio = Gauge(
            "outrider_hit_ratio_by_size",
            "Share of the reads that a cache of so many times this size would hit, estimated; NaN: before a second "
            "epoch, when no size would have hit.",
            ["size"],
            registry=r,
        )
        self.fetched_bytes = Counter(
            "outrider_prefetch_fetched_bytes",
            "Bytes on disk that were prefetched before a reader asked for them.",
            registry=r,
        )
        self.wasted_bytes = Counter(
            "outrider_prefetch_wasted_bytes",
            "Prefetched bytes that were evicted before a reader asked for them.",
            registry=r,
        )
        self.peers = PeerMetrics(r)
        self.tenants = TenantMetrics(r)
        self.info = Gauge("outrider_info", "1, with the version as a label.", ["version"], registry=r)
        self.started_at = Gauge("outrider_start_time_seconds", "When it started, in seconds since 1970.", registry=r)
        self._traffic = {source: self.served_bytes.labels(source) for source in SOURCES}
        self._traffic["bucket"] = self.origin_bytes
        self.usage = Usage(Templates())
        self.usage_metrics = UsageMetrics(self.usage, r)
        self.before_scrape: list[Callable[[], None]] = [self.usage_metrics.update]
        """Called before a scrape is answered, after `add_up`: they set gauges."""
        self.reads_under_way: Callable[[], Iterable[ReadUnderWay]] = tuple
        """The reads of clients that have not ended."""
        self.recent_errors = RecentErrors()
        self.before_read: list[Callable[[], None]] = []
        """Called before metrics are read: the fast path counts hits in plain integers, which are added up then."""

    def show_disk(self, disk: ShownDisk) -> None:
        """There are as many disks, and labels, as the settings name directories."""
        name = disk.name
        self.disk_errors.labels(name)
        reads, counted = self.disk_reads.labels(name), 0

        def count() -> None:
            nonlocal counted
            reads.inc(disk.reads - counted)
            counted = disk.reads

        self.before_read.append(count)
        self.disk_bytes.labels(name).set_function(lambda: disk.budget.used_bytes)
        self.disk_capacity_bytes.labels(name).set_function(lambda: disk.budget.capacity_bytes)
        self.disk_blocks.labels(name).set_function(lambda: disk.blocks)
        self.disk_works.labels(name).set_function(lambda: disk.works)

    def came(self, count: int) -> None:
        """Bytes of a body came from the origin."""
        self.origin_bytes.inc(count)

    def came_for_nothing(self, cause: str, count: int) -> None:
        """`cause`: one of `DUPLICATE_CAUSES`."""
        self.duplicate_origin_bytes.labels(cause).inc(count)

    @property
    def disk_waited_s(self) -> float:
        """The value of `disk_wait_s`, without a look at all the others."""
        return float(self.disk_wait_s._value.get())

    def add_first_bytes(self, op: str, number: int, total_s: float) -> None:
        """Add `number` observations of `first_byte_s`, all within its first bucket, whose sum is `total_s`."""
        histogram = self.first_byte_s.labels(op)
        # prometheus_client (0.26) has no public way to add more than one observation at once.
        histogram._sum.inc(total_s)
        histogram._buckets[0].inc(number)

    def text(self) -> bytes:
        """The answer to a scrape, in Prometheus' text format 0.0.4."""
        self.add_up()
        for look in self.before_scrape:
            look()
        return generate_latest(self.registry)

    def add_up(self) -> None:
        """Add the fast path's counts to the metrics and to `usage`. To be called before these are read directly."""
        for add in self.before_read:
            add()

    def value(self, name: str, **labels: str) -> float:
        """The value of one sample, 0 if there is none: for the summary of `run` and for tests."""
        self.add_up()
        return self.registry.get_sample_value(name, labels) or 0.0

    def traffic(self) -> dict[str, float]:
        """Bytes served by source, and `bucket`: bytes from the origin.

        It is called each second. `value` would collect all metrics, some thousand calls.
        """
        self.add_up()
        return {name: counter._value.get() for name, counter in self._traffic.items()}

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples called `name` whose labels include `labels`."""
        self.add_up()
        wanted = labels.items()
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == name and wanted <= sample.labels.items()
        )
