"""The Prometheus metrics: all names, units and labels. No label is an object's key; a key template may be one (see
`usage_metrics`)."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from outrider.core.ahead.dataset.templates import Templates
from outrider.core.cache.disk_limits import DiskBudget
from outrider.core.insight.recent_errors import RecentErrors
from outrider.core.insight.usage import ReadUnderWay, Usage
from outrider.metrics.usage_metrics import TenantMetrics, UsageMetrics

log = logging.getLogger(__name__)

SOURCES = ("disk", "flight", "peer", "origin")
"""The sources of a served byte: a block on disk, a block that is still arriving, or a relay past the cache."""

DUPLICATE_CAUSES = ("hedge", "question", "relay", "abandoned", "restart")
"""Why bytes of the origin were received in vain.

hedge      the other one of two requests was answered first
question   the GET that was to get the version brought a block that was here, or on its way
relay      the block was filled, or relayed to another reader, at the same time
abandoned  the reader left, or the fill failed, while they were under way
restart    the origin ignored the Range and sent them before the wanted ones, or the fill failed that had brought them
"""

_METHODS = frozenset(("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"))


def method_label(method: str) -> str:
    """The method if it is one of S3's, else `other`: no client can make up labels."""
    return method if method in _METHODS else "other"


# So many members have a label of their own.
_PEER_LABELS_MAX = 64
OTHER = "other"
"""The label of all members beyond these, and of those that are in no list."""


class PeerMetrics:
    """The wire between the members of a cluster."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._labels: set[str] = set()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.requests = counter(
            "outrider_peer_requests",
            "Reads asked of other members; `result`: ok, or why the answer was of no use.",
            ["peer", "result"],
        )
        self.bytes = counter(
            "outrider_peer_bytes", "Body bytes from other members (`in`) and to them (`out`).", ["peer", "direction"]
        )
        self.first_byte_s = Histogram(
            "outrider_peer_first_byte_seconds",
            "From a read asked of another member to the head of its answer.",
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.refused = counter("outrider_peer_refused", "Requests that the peer port refused.", ["why"])
        self.failures = counter("outrider_peer_failures", "Reads of other members that failed; `why`: how.", ["why"])
        self.forgets = counter(
            "outrider_peer_forgets",
            "Forgets of names that a write makes doubtful, at each member; `result`: acknowledged by it, late (after "
            "the write went on), or unacknowledged; received (messages of one forget or more), or missed (gaps).",
            ["result"],
        )
        self.members = gauge(
            "outrider_peer_members",
            "Other members of the cluster; `state`: alive, away, or left_out (it does not fit, fails, or is slow).",
            ["state"],
        )
        self.ring_disagreements = counter("outrider_peer_ring_disagreements", "Reads by members that see another ring.")
        self.duplicate_fetches = counter(
            "outrider_peer_duplicate_fetches",
            "Blocks that this node asked the bucket for while another member that owns them was there; `why`: what the "
            "member did, left_out (it was not asked), doubted (its bytes were wrong), or for_peer (a member asked this "
            "node, and not the owner).",
            ["why"],
        )
        self.source_failures = counter(
            "outrider_peer_source_failures",
            "Times that the source of members (`peers`) gave no list, or a wrong one; the last good one counts.",
        )

    def label(self, name: str) -> str:
        """The label of a member: its name, or `other` for all members beyond the first 64."""
        if name not in self._labels:
            if len(self._labels) >= _PEER_LABELS_MAX:
                return OTHER
            self._labels.add(name)
        return name


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
        self.registry = registry = CollectorRegistry()
        counter, gauge = partial(Counter, registry=registry), partial(Gauge, registry=registry)
        self.requests = counter(
            "outrider_requests",
            "Requests answered; each object of a batch counts as a `get`, and reads of a mount by a block's file as a "
            "`descriptor`.",
            ["op", "status", "cache"],
        )
        self.served_bytes = counter("outrider_served_bytes", "Body bytes sent to clients.", ["source"])
        self.first_byte_s = Histogram(
            "outrider_first_byte_seconds",
            "From a request's head to its reply's head.",
            ["op"],
            buckets=(FIRST_BUCKET_S, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=registry,
        )
        self.refused_connections = refused_connections(registry)
        self.in_flight = gauge("outrider_requests_in_flight", "Requests being answered now.")
        self.origin_requests = counter(
            "outrider_origin_requests",
            "Requests sent to the origin, each try counted; status `none`: no reply came.",
            ["method", "status"],
        )
        self.origin_oddities = counter(
            "outrider_origin_oddities",
            "Times that the origin behaved otherwise than AWS S3; `kind`: how (docs/s3-compatibility.md).",
            ["kind"],
        )
        self.uncached_reads = counter(
            "outrider_uncached_reads",
            "Reads of objects that were relayed or forwarded, and not kept; `reason`: a kind of oddity, or another.",
            ["reason"],
        )
        self.origin_bytes = counter("outrider_origin_bytes", "Body bytes received from the origin.")
        self.received: Callable[[float], None] = self.origin_bytes.inc
        """Bytes of a body came from the origin."""
        self.duplicate_origin_bytes = counter(
            "outrider_duplicate_origin_bytes",
            "Body bytes that came from the origin for nothing, as far as this end of its connections knows.",
            ["cause"],
        )
        for cause in DUPLICATE_CAUSES:
            self.duplicate_origin_bytes.labels(cause)
        self.receivers = gauge("outrider_receivers", "Processes that receive large bodies over https.")
        self.receivers_lost = counter(
            "outrider_receivers_lost", "Receivers that died or did not answer; their bodies were asked for again."
        )
        self.origin_retries = counter("outrider_origin_retries", "Reads retried at the origin.")
        self.origin_wait_s = counter(
            "outrider_origin_wait_seconds",
            "Time that reads waited before they were tried again at the origin, over all of them.",
        )
        self.hedges = counter(
            "outrider_hedges", "Hedged requests; `won`: the second request was answered first.", ["won"]
        )
        self.store_bytes = gauge("outrider_store_bytes", "Bytes on disk, headers and reservations included.")
        self.store_capacity_bytes = gauge("outrider_store_capacity_bytes", "The budget of the store.")
        self.store_blocks = gauge("outrider_store_blocks", "Blocks on disk.")
        self.store_proved_bytes = gauge(
            "outrider_store_verified_bytes",
            "Bytes on disk whose content was compared with what the bucket knows of it: `verify_origin`.",
        )
        self.origin_mismatches = counter(
            "outrider_origin_mismatches", "Fills whose content was not that of the object, by what the bucket knows."
        )
        self.evicted_blocks = counter("outrider_evicted_blocks", "Blocks evicted for room.")
        self.bad_blocks = counter("outrider_bad_blocks", "Blocks found damaged, and deleted.")
        self.scrubbed_blocks = counter(
            "outrider_scrubbed_blocks", "Blocks that the scrubber verified or found damaged."
        )
        self.scrub_rounds = counter("outrider_scrub_rounds", "Rounds of the scrubber over all blocks.")
        self.store_errors = counter("outrider_store_errors", "Errors of the cache disks.", ["act"])
        self.disk_errors = counter("outrider_disk_errors", "Errors of each cache disk.", ["disk"])
        self.disk_reads = counter("outrider_disk_reads", "Reads of blocks on each cache disk.", ["disk"])
        self.disk_bytes = gauge("outrider_disk_bytes", "As outrider_store_bytes, of each disk.", ["disk"])
        self.disk_capacity_bytes = gauge(
            "outrider_disk_capacity_bytes", "The part of each disk in the budget of the store.", ["disk"]
        )
        self.disk_blocks = gauge("outrider_disk_blocks", "Blocks on each cache disk.", ["disk"])
        self.disk_works = gauge(
            "outrider_disk_works",
            "1: the disk takes new blocks; 0: it fails, or is being scanned, and the others take its blocks.",
            ["disk"],
        )
        self.disk_wait_s = counter(
            "outrider_disk_wait_seconds",
            "Time that reads of blocks took whose pages were not in memory, over all of them.",
        )
        self.prefetched_blocks = counter(
            "outrider_prefetched_blocks", "Blocks whose fill began before a reader waited for them."
        )
        self.relays = counter("outrider_relays", "Reads relayed past the cache.")
        self.planned_reads = counter("outrider_planned_reads", "Reads that plans named.")
        self.job_steps = counter("outrider_job_steps", "Training steps that StallMeters reported.")
        self.job_wait_s = counter(
            "outrider_job_wait_seconds", "Time that training loops waited for data, as StallMeters reported."
        )
        self.job_compute_s = counter(
            "outrider_job_compute_seconds", "Time between these waits, as StallMeters reported."
        )
        self.ghost_hit_ratio = gauge(
            "outrider_hit_ratio_by_size",
            "Share of the reads that a cache of so many times this size would hit, estimated; NaN: before a second "
            "epoch, when no size would have hit.",
            ["size"],
        )
        self.fetched_bytes = counter(
            "outrider_prefetch_fetched_bytes", "Bytes on disk that were prefetched before a reader asked for them."
        )
        self.wasted_bytes = counter(
            "outrider_prefetch_wasted_bytes", "Prefetched bytes that were evicted before a reader asked for them."
        )
        self.peers = PeerMetrics(registry)
        self.tenants = TenantMetrics(registry)
        self.info = gauge("outrider_info", "1, with the version as a label.", ["version"])
        self.started_at = gauge("outrider_start_time_seconds", "When it started, in seconds since 1970.")
        self._traffic = {source: self.served_bytes.labels(source) for source in SOURCES}
        self._traffic["bucket"] = self.origin_bytes
        self.usage = Usage(Templates())
        self.usage_metrics = UsageMetrics(self.usage, registry)
        self.uncounted: deque[Callable[[], None]] = deque()
        """Counted by `add_up`, once a second at least: a request has no time for it."""
        self.before_scrape: list[Callable[[], object]] = [self.usage_metrics.update]
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

    def duplicated(self, cause: str, count: int) -> None:
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
        """Add the fast path's counts, and what is `uncounted`, to the metrics and to `usage`. To be called before these
        are read directly."""
        while self.uncounted:
            try:
                self.uncounted.popleft()()
            except Exception:  # it must not end the ticks that call this
                log.exception("a request was not counted")
        for add_up in self.before_read:
            add_up()

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
