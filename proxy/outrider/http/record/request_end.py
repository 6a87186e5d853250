"""Counts the requests under way. When a request ends, it is counted in the metrics, and logged in one line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from outrider.core.insight.usage import ReadUnderWay, Sums
from outrider.core.model import ObjectRef
from outrider.core.s3.operation import Operation, OperationKind
from outrider.core.text import counted
from outrider.http.record.access_log import AccessLog, app_said
from outrider.http.record.record import BatchCounts, Ended
from outrider.metrics import Metrics

if TYPE_CHECKING:
    from opentelemetry.trace import Span

    from outrider.http.record.server_spans import ServerSpans


class ReadInFlight(Protocol):
    """A read under way. A Protocol, as a higher floor implements it."""

    id: str
    started: float
    """On `time.perf_counter`."""
    requester: str | None

    @property
    def ref(self) -> ObjectRef | None: ...

    @property
    def is_hit(self) -> bool: ...

    @property
    def full_now_s(self) -> float:
        """For how long its socket has been full, until now."""
        ...

    @property
    def is_full(self) -> bool: ...


class RequestRecorder:
    """Called on the engine's thread."""

    def __init__(self, metrics: Metrics, access_log: AccessLog, spans: ServerSpans | None) -> None:
        self._metrics = metrics
        self._access_log = access_log
        self._spans = spans
        self.in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._reads: dict[str, ReadInFlight] = {}
        metrics.reads_under_way = self._reads_under_way

    async def idle(self) -> None:
        """Returns once no request is under way."""
        await self._idle.wait()

    def began(self) -> None:
        self.in_flight += 1
        self._idle.clear()
        self._metrics.in_flight.set(self.in_flight)

    def reading(self, read: ReadInFlight) -> None:
        """Its operation and its reader are known now."""
        self._reads[read.id] = read

    def _reads_under_way(self) -> Iterator[ReadUnderWay]:
        now, templates = time.perf_counter(), self._metrics.usage.templates
        for read in self._reads.values():
            if read.requester is None or (ref := read.ref) is None:
                continue
            full_s = read.full_now_s
            yield ReadUnderWay(
                read.requester, (ref.bucket, templates.so_far(*ref)), read.is_hit, not read.is_full,
                max(0.0, now - read.started - full_s), full_s,
            )  # fmt: skip

    def ended(self, end: Ended, span: Span | None = None) -> None:
        self._reads.pop(end.request_id, None)
        self.in_flight -= 1
        if self.in_flight == 0:
            self._idle.set()
        self._metrics.in_flight.set(self.in_flight)
        self._metrics.requests.labels(end.op, str(end.status or 0), end.cache).inc()
        for source, count in end.sent.items():
            self._metrics.served_bytes.labels(source).inc(count)
        seconds = time.perf_counter() - end.started
        if end.batch is not None:
            self._count_batch(end, end.batch, seconds)
        elif end.operation is not None:
            self._metrics.uncounted.append(partial(self._count_usage, end, end.operation, seconds))
        if (end.status is not None and end.status >= 500) or end.cut not in (None, "client left", "stopped"):
            self._count_failure(end)
        if self._access_log.is_wanted():
            self._access_log.request(_facts(end, seconds))
        if self._spans is not None:
            self._spans.ended(end, span)

    def _count_failure(self, end: Ended) -> None:
        target = "" if end.operation is None else f"{end.method} /{end.operation.bucket or ''}/{end.operation.key}"
        error = f"answered {end.status}" if end.cut is None else f"cut: {end.cut}"
        self._metrics.recent_errors.add(error, target, "error", time.time())
        # A batch that was refused because of one object has been counted by that object.
        if end.method in ("GET", "HEAD") or (end.batch is not None and (end.cut or not end.batch.answered)):
            self._metrics.usage.failed()

    def _count_batch(self, end: Ended, batch: BatchCounts, seconds: float) -> None:
        """Each object counts as the GET that it stands for; the time of the batch is shared out among them."""
        for (status, cache), count in batch.answered.items():
            self._metrics.requests.labels("get", str(status), cache).inc(count)
            if status >= 500:
                self._metrics.usage.failed(count)
                text = f"{counted(count, 'object')} of a batch answered {status}"
                self._metrics.recent_errors.add(text, "", "error", time.time())
        usage, reads = self._metrics.usage, sum(sums.requests for sums in batch.served.values())
        for dataset, sums in batch.served.items():
            part = sums.requests / reads
            sums.wait_s = max(0.0, seconds - end.full_s) * part
            sums.away_s = (end.away_s + end.full_s) * part
            # Hits wait for the misses before them in the list.
            sums.miss_wait_s = sums.wait_s if sums.hits < sums.requests else 0.0
            usage.served(end.reader or "", dataset, sums)
        for (bucket, key), count in batch.passed_on:
            usage.passed_on((bucket, usage.templates.so_far(bucket, key)), count)

    def _count_usage(self, end: Ended, operation: Operation, seconds: float) -> None:
        if operation.kind is OperationKind.CONTROL or not operation.bucket or not operation.key:
            return
        sent, usage = end.sent, self._metrics.usage
        refused = end.status is None or end.status >= 400
        if end.reader is None or operation.kind is OperationKind.FORWARD or refused:
            # A request that the proxy itself refused did not reach the bucket.
            if end.first_byte_s is not None and end.method in ("GET", "HEAD"):
                usage.passed_on(
                    (operation.bucket, usage.templates.so_far(operation.bucket, operation.key)), sent.total()
                )
            return
        dataset = usage.dataset_of(operation.bucket, operation.key)
        is_hit, wait_s = end.cache == "HIT", max(0.0, seconds - end.full_s)
        usage.served(
            end.reader,
            dataset,
            Sums(1, int(is_hit), sent["disk"], sent["flight"] + sent["peer"], sent["origin"], wait_s,
                 end.away_s + end.full_s, sent["peer"], 0.0 if is_hit else wait_s),
        )  # fmt: skip


def _facts(end: Ended, seconds: float) -> dict[str, object]:
    """They stand in the line of the access log."""
    facts: dict[str, object] = {
        "request": end.request_id, "op": end.op, "method": end.method, "status": end.status, "cache": end.cache,
        "bytes": end.sent.total(), "seconds": round(seconds, 6), "client": end.client,
        "address": end.address, **app_said(end.app),
    }  # fmt: skip
    if end.operation is not None:
        facts["bucket"], facts["key"] = end.operation.bucket, end.operation.key
    if end.requested_range is not None:
        facts["range"] = end.requested_range
    if end.batch is not None:
        facts |= end.batch.facts()
    if end.cut is not None:
        facts["cut"] = end.cut
    return facts
