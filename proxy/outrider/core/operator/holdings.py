"""How much of a pod's data each node holds, from the datasets that the caches tell in their status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from outrider.core.operator.affinity import Holding


class NodeDatasets(NamedTuple):
    """The datasets of one node's cache, each with `bucket`, `name`, and, where its objects are known, `bytes`, `cached`
    and `verified` (shares of `bytes` and of what is cached)."""

    node: str
    zone: str | None
    datasets: Sequence[Mapping[str, Any]]


def holdings_of(urls: Sequence[str], nodes: Iterable[NodeDatasets]) -> list[Holding]:
    """Empty: no cache knows the data."""
    heads = [url.removeprefix("s3://").partition("{")[0] for url in urls]
    # A node may not have heard of all objects of a dataset.
    sizes: dict[str, float] = {}
    held: list[tuple[NodeDatasets, float]] = []
    for node in nodes:
        verified = 0.0
        for dataset in node.datasets:
            name = f"{dataset['bucket']}/{dataset['name']}"
            if dataset.get("bytes") and any(_is_part(name, head) for head in heads):
                sizes[name] = max(sizes.get(name, 0.0), float(dataset["bytes"]))
                verified += dataset["bytes"] * dataset.get("cached", 0.0) * dataset.get("verified", 0.0)
        held.append((node, verified))
    total = sum(sizes.values())
    if not total:
        return []
    return [Holding(node.node, node.zone, min(1.0, verified / total)) for node, verified in held]


def _is_part(name: str, head: str) -> bool:
    """A dataset may be named by a template: `train/shard-{000000..000099}.tar`."""
    own = name.partition("{")[0]
    return own.startswith(head) or head.startswith(own)
