"""How much of a pod's data each node holds, from the datasets that the caches tell."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from outrider.core.operator.affinity import Holding


class NodeDatasets(NamedTuple):
    """The datasets of one node's cache, each with `bucket`, `name`, and, where its objects are known, `bytes`, `cached`
    and `verified` (shares of `bytes` and of what is cached)."""

    node: str
    zone: str | None
    datasets: Sequence[Mapping[str, Any]]


class Held:
    """The datasets of all nodes, found by the beginnings of their names: an answer takes milliseconds, with a thousand
    nodes and a long list of URLs, too. It never changes, so that any thread may ask."""

    def __init__(self, nodes: Iterable[NodeDatasets]) -> None:
        self._nodes = list(nodes)
        # A node may not have heard of all objects of a dataset.
        self._bytes: defaultdict[str, float] = defaultdict(float)
        self._verified: defaultdict[str, dict[int, float]] = defaultdict(dict)
        # By what a name begins with, up to its pattern: a dataset may be named `train/shard-{000000..000099}.tar`.
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        for number, node in enumerate(self._nodes):
            for dataset in node.datasets:
                if dataset.get("bytes"):
                    name = f"{dataset['bucket']}/{dataset['name']}"
                    verified = dataset["bytes"] * dataset.get("cached", 0.0) * dataset.get("verified", 0.0)
                    self._bytes[name] = max(self._bytes[name], float(dataset["bytes"]))
                    self._verified[name][number] = self._verified[name].get(number, 0.0) + verified
                    self._names[name.partition("{")[0]].add(name)
        self._heads = sorted(self._names)
        self._lengths = sorted(set(map(len, self._heads)))

    def of(self, urls: Sequence[str]) -> list[Holding]:
        """Empty: no cache knows the data."""
        names: set[str] = set()
        for wanted in {url.removeprefix("s3://").partition("{")[0] for url in urls}:
            for head in islice(self._heads, bisect_left(self._heads, wanted), None):
                if not head.startswith(wanted):
                    break
                names |= self._names[head]
            for length in self._lengths:
                names |= self._names.get(wanted[:length], set()) if length < len(wanted) else set()
        total = sum(self._bytes[name] for name in names)
        if not total:
            return []
        verified = [0.0] * len(self._nodes)
        for name in names:
            for number, share in self._verified[name].items():
                verified[number] += share
        return [
            Holding(node.node, node.zone, min(1.0, held / total))
            for node, held in zip(self._nodes, verified, strict=True)
        ]
