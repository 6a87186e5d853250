"""The part of the status document about tenants, and their metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from outrider.core.cache.tenant_blocks import TenantBlocks
from outrider.core.cache.tenants import NOBODY
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.metrics import Metrics


class TenantsPart:
    """Called on the engine's thread."""

    def __init__(self, blocks: TenantBlocks, metrics: Metrics, tenant_of: Callable[[str], str]) -> None:
        """`tenant_of`: that of a reader; see `access.Senders`."""
        self.tenants = blocks.tenants
        self._blocks = blocks
        self._metrics = metrics
        self._tenant_of = tenant_of
        metrics.usage.on_served = self._served
        metrics.usage.on_received = self._received
        metrics.before_scrape.append(self._update_metrics)

    def document(self) -> list[dict[str, Any]]:
        """By name. A share is None where the tenant has none. `cached_bytes` None: no tenant has a share of the cache,
        and blocks are not distinguished. `bytes_s` was served of late."""
        self._metrics.add_up()
        bytes_s: Counter[str] = Counter()
        for reader, _, account, _ in self._metrics.usage.readers():
            bytes_s[self._tenant_of(reader)] += round(account.bytes_s)
        of = self._metrics.tenants
        return [
            {
                "name": name, "cached_bytes": self._blocks.bytes_of(name) if self.tenants.have_cache_shares else None,
                "cache_share": share.cache, "line_share": share.line,
                "bytes_s": bytes_s[name], "served_bytes": int(of.served_bytes.labels(name)._value.get()),
                "origin_bytes": int(of.origin_bytes.labels(name)._value.get()),
            }
            for name, share in sorted(self.tenants.shares.items())
        ]  # fmt: skip

    def read_by(self, reader: str, ref: ObjectRef, version: ObjectVersion | None) -> None:
        """`reader` reads the object. `version` None: it is not known."""
        if (tenant := self._tenant_of(reader)) == NOBODY:
            return
        if version is None:
            self.tenants.read(tenant, ref)
        else:
            self._blocks.read_by(tenant, version)

    def _served(self, reader: str, count: float) -> None:
        self._metrics.tenants.served_bytes.labels(self._tenant_of(reader) or "-").inc(count)

    def _received(self, ref: ObjectRef, count: int) -> None:
        self._metrics.tenants.origin_bytes.labels(self.tenants.reader_of(ref) or "-").inc(count)

    def _update_metrics(self) -> None:
        self._metrics.tenants.cached_bytes.clear()
        if self.tenants.have_cache_shares:
            for name in self.tenants.shares:
                self._metrics.tenants.cached_bytes.labels(name).set(self._blocks.bytes_of(name))
