"""Describes the reads of a simulation: jobs made up from a seed, or a list of requests that were really made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from outrider.core.ahead.order.torch_sampler import Draw, order_at_once
from outrider.core.ahead.order.webdataset_shuffle import ALL_SEEDS, drawn

OrderKind = Literal["repeated", "fresh", "seeded", "sequential", "replacement", "zipf"]
ORDERS: tuple[OrderKind, ...] = get_args(OrderKind)
ZIPF = 1.1

Order = Callable[[int], list[list[int]]]
"""From the number of an epoch, counted from 0, to each reader's list of shards."""


@dataclass(frozen=True, slots=True)
class Shards:
    """A dataset: `count` objects of `size` bytes under one template."""

    count: int
    size: int
    name: str = "train"
    bucket: str = "bucket"

    def key(self, index: int) -> str:
        return f"{self.name}/{self.name}-{index:06d}.tar"


@dataclass(frozen=True, slots=True)
class JobSpec:
    """A job of several epochs. Its readers read in parallel in the given `order`, each shard front to back at
    `reader_bytes_s`.

    A proxy sees only `client` of them. `announced`: a hint announces the order as each epoch begins.
    """

    name: str
    shards: Shards
    order: Order
    epochs: int
    reader_bytes_s: float
    client: str = "10.0.0.1"
    start_s: float = 0.0
    announced: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One logged read: bytes `[start, stop)` of an object of at least `size` bytes, requested at `at` seconds."""

    at: float
    client: str
    bucket: str
    key: str
    start: int
    stop: int
    size: int


def split(order: list[int], readers: int) -> list[list[int]]:
    """Round-robin among the workers of a data loader, as WebDataset's `split_by_worker` does."""
    return [order[i::readers] for i in range(readers)]


def order_of(kind: OrderKind, shards: list[int], readers: int, seed: int) -> Order:
    """The order in which the readers read `shards` in each epoch.

    `repeated` is WebDataset's default: each reader's shards are shuffled by one seed, which all readers share and which
    stays the same in each epoch. `seeded` is the order that PyTorch's DistributedSampler draws, with another seed in
    each epoch.
    """

    def order(epoch: int) -> list[list[int]]:
        if kind == "repeated":
            drawn_by = Random(seed).randrange(ALL_SEEDS)
            return [
                [own[place] for place in drawn(Random(drawn_by), len(own), len(shards))]
                for own in split(shards, readers)
            ]
        chance = Random(f"{seed} {epoch}")
        if kind == "sequential":
            read = shards
        elif kind == "seeded":
            read = [shards[number] for number in order_at_once(Draw(seed + epoch), len(shards))]
        elif kind == "fresh":
            read = chance.sample(shards, len(shards))
        elif kind == "replacement":
            read = chance.choices(shards, k=len(shards))
        else:
            hot = Random(seed).sample(shards, len(shards))
            weights = [1 / rank**ZIPF for rank in range(1, len(shards) + 1)]
            read = chance.choices(hot, weights, k=len(shards))
        return split(read, readers)

    return order
