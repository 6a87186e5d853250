"""The numbers: Prometheus names, units and labels, all in one place. No label is an object's key."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

SOURCES = ("disk", "flight", "origin")
"""Where a served byte came from: a block on disk, a block still arriving, or relayed past the cache."""

_METHODS = frozenset(("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"))


def method_label(method: str) -> str:
    """The method, if it is one of S3's; else `other`, so that no client can make up labels."""
    return method if method in _METHODS else "other"


class Metrics:
    """One set of metrics in a registry of its own, so that two proxies in one process do not mix."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        r = self.registry
        self.requests = Counter(
            "outrider_requests", "Requests answered.", ["op", "status", "cache"], registry=r
        )  # fmt: skip
        self.served_bytes = Counter("outrider_served_bytes", "Body bytes sent to clients.", ["source"], registry=r)
        self.first_byte_s = Histogram(
            "outrider_first_byte_seconds",
            "From a request's head to its reply's head.",
            ["op"],
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10),
            registry=r,
        )
        self.in_flight = Gauge("outrider_requests_in_flight", "Requests being answered now.", registry=r)
        self.origin_requests = Counter(
            "outrider_origin_requests",
            "Requests sent to the origin, tries counted each; status `none`: no reply came.",
            ["method", "status"],
            registry=r,
        )
        self.origin_bytes = Counter("outrider_origin_bytes", "Body bytes received from the origin.", registry=r)
        self.origin_retries = Counter("outrider_origin_retries", "Reads tried again at the origin.", registry=r)
        self.hedges = Counter(
            "outrider_hedges", "Second requests for late replies; `won`: it was answered first.", ["won"], registry=r
        )
        self.store_bytes = Gauge(
            "outrider_store_bytes", "Bytes on disk, headers and reservations included.", registry=r
        )
        self.store_capacity_bytes = Gauge("outrider_store_capacity_bytes", "The budget of the store.", registry=r)
        self.store_blocks = Gauge("outrider_store_blocks", "Blocks on disk.", registry=r)
        self.evicted_blocks = Counter("outrider_evicted_blocks", "Blocks dropped for room.", registry=r)
        self.bad_blocks = Counter("outrider_bad_blocks", "Blocks found damaged, and deleted.", registry=r)
        self.scrubbed_blocks = Counter(
            "outrider_scrubbed_blocks", "Blocks that the scrubber has verified, or found damaged.", registry=r
        )
        self.scrub_rounds = Counter(
            "outrider_scrub_rounds", "Times that the scrubber has been through all blocks.", registry=r
        )
        self.store_errors = Counter("outrider_store_errors", "Times the disk failed us.", ["act"], registry=r)
        self.prefetched_blocks = Counter(
            "outrider_prefetched_blocks", "Blocks whose fill began before anybody waited for them.", registry=r
        )
        self.relays = Counter("outrider_relays", "Reads relayed past the cache.", registry=r)
        self.planned_reads = Counter("outrider_planned_reads", "Reads that plans named.", registry=r)
        self.job_steps = Counter("outrider_job_steps", "Training steps that StallMeters told.", registry=r)
        self.job_wait_s = Counter(
            "outrider_job_wait_seconds", "Time that training loops waited for data, as StallMeters told.", registry=r
        )
        self.job_compute_s = Counter(
            "outrider_job_compute_seconds", "Time between these waits, as StallMeters told.", registry=r
        )
        for source in SOURCES:
            self.served_bytes.labels(source)
        self.before_reading: list[Callable[[], None]] = []
        """Called before the numbers are read: a hit is counted in plain integers, which are added up here."""

    def text(self) -> bytes:
        """The exposition for a scrape, in Prometheus' text format 0.0.4."""
        self._add_up()
        return generate_latest(self.registry)

    def _add_up(self) -> None:
        for add in self.before_reading:
            add()

    def value(self, name: str, **labels: str) -> float:
        """One sample's value, 0 if it has not happened: for the summary of `run` and for tests."""
        self._add_up()
        return self.registry.get_sample_value(name, labels) or 0.0

    def total(self, name: str, **labels: str) -> float:
        """The sum of all samples called `name` whose labels include `labels`."""
        self._add_up()
        wanted = labels.items()
        return sum(
            sample.value
            for family in self.registry.collect()
            for sample in family.samples
            if sample.name == name and wanted <= sample.labels.items()
        )
