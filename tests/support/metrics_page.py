"""Makes docs/metrics.md from the code: `make docs` writes it, and a test compares the two."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client.metrics import MetricWrapperBase

from outrider.engine.operator.metrics import OperatorMetrics
from outrider.metrics import Metrics, PeerMetrics
from outrider.metrics.usage_metrics import TenantMetrics, UsageMetrics

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = """# Metrics

For platform engineers who watch Outrider with Prometheus: each metric of `/metrics` on the admin port, with its unit
and labels. `make docs` writes this page from the code, and a test compares the two. The chart has
[rules](../charts/outrider/files/rules.yaml) (recording and alerts) and a [Grafana
dashboard](../charts/outrider/files/dashboard.json).

Labels are bounded. No label is an object's key.

- `dataset` is a bucket and a key template, such as `data/train-{}.tar`. The first twenty datasets of which a gigabyte
  was read have a label of their own; all others together are `other`.
- `op` is `get`, `head`, `forward` and a method, or `bad`. `cache` is the value of `x-cache`. A `status` of `0` is a
  request that had no answer.
- `peer` is the name of another member of the cluster, for the first 64 names; all others together are `other`.
- `tenant` is the name of clients in the clients file; `-` stands for reads of no known tenant.
- Each counter has a companion `_created`, a gauge of the time when it began.

Two metrics tell whether training waits for the proxy. `outrider_dataset_wait_seconds_total` is the time for which
readers waited: from a request's head to its last byte, except the time for which the client's socket was full.
`outrider_dataset_away_seconds_total` is the rest: the socket was full, or the connection asked for nothing (of one
such pause, a minute counts at most). The stall of the dashboard and of `outrider stats` is the part of both that the
first one has.

| metric | type | unit | labels | meaning |
| --- | --- | --- | --- | --- |
"""
_UNITS = {"bytes": "bytes", "seconds": "seconds", "blocks": "blocks", "requests": "requests"}


def all_metrics() -> dict[str, MetricWrapperBase]:
    """All metrics by their names in PromQL; a histogram by the name before `_bucket`, `_count` and `_sum`."""
    metrics = Metrics()
    found = {}
    for holder in (metrics, metrics.usage_metrics, metrics.peers, metrics.tenants):
        assert isinstance(holder, Metrics | UsageMetrics | PeerMetrics | TenantMetrics)
        for metric in vars(holder).values():
            if isinstance(metric, MetricWrapperBase):
                (family,) = metric.describe()
                found[family.name + ("_total" if family.type == "counter" else "")] = metric
    return found


def sample_names() -> set[str]:
    """All names that a query may use, those of `outrider operator` among them."""
    families = [next(iter(metric.describe())) for metric in all_metrics().values()]
    names = set()
    for family in (*families, *OperatorMetrics().registry.collect()):
        endings = {"histogram": ("_bucket", "_count", "_sum"), "counter": ("_total",)}.get(family.type, ("",))
        names |= {family.name + ending for ending in endings}
    return names


def page() -> str:
    return _HEAD + "".join(f"{row}\n" for row in _rows())


def _rows() -> Iterator[str]:
    for name, metric in sorted(all_metrics().items()):
        (family,) = metric.describe()
        labels = ", ".join(f"`{label}`" for label in metric._labelnames)
        stem = name.removesuffix("_total")
        unit = "ratio" if "ratio" in stem else _UNITS.get(stem.rpartition("_")[2], "")
        yield f"| `{name}` | {family.type} | {unit} | {labels} | {family.documentation} |"


if __name__ == "__main__":
    print(page(), end="")
