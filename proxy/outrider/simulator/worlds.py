"""What jobs read, made up: seeded, so that a seed names a trace."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

Order = Callable[[int], list[list[int]]]
"""Epoch number (from 0) to each reader's list of shards."""


@dataclass(frozen=True, slots=True)
class Shards:
    """A dataset: `count` objects of `size` bytes under one template."""

    count: int
    size: int
    prefix: str = "train"
    bucket: str = "bucket"

    def key(self, index: int) -> str:
        return f"{self.prefix}/{self.prefix}-{index:06d}.tar"


@dataclass(slots=True)
class JobSpec:
    """One job: `readers` read their lists beside each other, an epoch at a time. `client` is all that a proxy sees of it."""

    shards: Shards
    order: Order
    epochs: int
    readers: int
    reader_bytes_s: float
    client: str = "10.0.0.1"
    start_s: float = 0.0
    told: bool = False
    name: str = "job"
    part: list[int] = field(default_factory=list)


def split(order: list[int], readers: int) -> list[list[int]]:
    """Round-robin, as WebDataset's split_by_worker does."""
    return [order[i::readers] for i in range(readers)]


def order_of(kind: str, count: int, readers: int, seed: int, *, part: list[int] | None = None) -> Order:
    """`repeated`, `fresh`, `sequential`, `replacement`, `zipf` (1.1)."""
    base = list(range(count)) if part is None else list(part)

    def order(epoch: int) -> list[list[int]]:
        if kind == "sequential":
            return split(base, readers)
        if kind == "repeated":
            return split(Random(seed).sample(base, len(base)), readers)
        random = Random(f"{seed} {epoch}")
        if kind == "fresh":
            return split(random.sample(base, len(base)), readers)
        if kind == "replacement":
            return split(random.choices(base, k=len(base)), readers)
        if kind == "zipf":
            hot = Random(seed).sample(base, len(base))
            weights = [1 / rank**1.1 for rank in range(1, len(base) + 1)]
            return split(random.choices(hot, weights, k=len(base)), readers)
        raise ValueError(f"no order {kind!r}")

    return order
