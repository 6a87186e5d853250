"""How much of a pod's data each node holds, from the datasets that the caches report."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import NamedTuple

from outrider.core.cluster.object_samples import ObjectSample, Union
from outrider.core.operator.affinity import Holding


class HeldDataset(NamedTuple):
    """`name`: its key template."""

    bucket: str
    name: str
    sample: ObjectSample


class NodeDatasets(NamedTuple):
    """The datasets that one node's cache has."""

    node: str
    zone: str | None
    datasets: Sequence[HeldDataset]


class Held:
    """The datasets of all nodes, found by the beginnings of their names: an answer takes milliseconds, with a thousand
    nodes and a long list of URLs, too. It never changes, so that any thread may ask.

    No node knows all objects: the whole of a dataset is the union of those that any of them knows."""

    def __init__(self, nodes: Iterable[NodeDatasets]) -> None:
        all_nodes = list(nodes)
        of_zone: defaultdict[str | None, list[str]] = defaultdict(list)
        samples: defaultdict[str, dict[str, ObjectSample]] = defaultdict(dict)
        # By what a name begins with, up to its pattern: a dataset may be named `train/shard-{000000..000099}.tar`.
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        for node in all_nodes:
            of_zone[node.zone].append(node.node)
            for dataset in node.datasets:
                name = f"{dataset.bucket}/{dataset.name}"
                samples[name][node.node] = dataset.sample
                self._names[name.partition("{")[0]].add(name)
        # Each node, then each zone with those of its nodes.
        self._places: list[tuple[str | None, str | None, list[str]]] = [
            *((node.node, node.zone, [node.node]) for node in all_nodes),
            *((None, zone, its) for zone, its in of_zone.items()),
        ]
        self._bytes: dict[str, int] = {}
        self._held: dict[str, dict[int, int]] = {}
        for name, by_node in samples.items():
            union = Union(by_node)
            self._bytes[name] = union.size
            self._held[name] = {
                number: union.held_by(its)
                for number, (_, _, its) in enumerate(self._places)
                if not by_node.keys().isdisjoint(its)
            }
        self._heads = sorted(self._names)
        self._lengths = sorted(set(map(len, self._heads)))

    def of(self, urls: Sequence[str]) -> list[Holding]:
        """The share of each node, and of the caches of each zone together. Empty: no cache knows the data."""
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
        held = [0] * len(self._places)
        for name in names:
            for number, count in self._held[name].items():
                held[number] += count
        return [
            Holding(node, zone, min(1.0, count / total))
            for (node, zone, _), count in zip(self._places, held, strict=True)
        ]
