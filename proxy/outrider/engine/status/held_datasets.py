"""The objects that this node has of each dataset, as far as they are verified. Pods are placed by that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from itertools import chain
from typing import Any

from outrider.core.ahead.dataset.cached_objects import CachedObject
from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.ahead.planner import Planner
from outrider.core.cluster.object_samples import REPORTED_MAX, SAMPLED_MAX, KnownObject, ObjectSample, drawn, number_of

# The status shows few datasets, and those that were warmed and not read yet last. Here are the largest.
_SHOWN_MAX = 256
# Objects that are looked at before other tasks of the loop run: some milliseconds.
_AT_ONCE = 2000


async def held_datasets(planner: Planner) -> dict[str, Any]:
    """Under `datasets`, with the most bytes on disk first: `bucket`, `name`, and a sample of the objects that this node
    knows: `objects`, each with its number, its size in bytes, and the bytes of it that are on disk and verified;
    `below`, see `core.cluster.object_samples`."""
    return {
        "datasets": [
            {"bucket": dataset.bucket, "name": dataset.template, "below": sample.below, "objects": sample.objects}
            async for dataset, sample in samples(planner, _SHOWN_MAX, lambda cached: cached.proved & cached.present)
        ]
    }


async def samples(
    planner: Planner, datasets_max: int, bits_of: Callable[[CachedObject], int]
) -> AsyncIterator[tuple[Dataset, ObjectSample]]:
    """The datasets with the most bytes on disk, the largest first, each with a sample of the objects that this node
    knows of it. `bits_of`: the blocks of an object that count as held, as bits."""
    held = [dataset for _, dataset in planner.registry.items() if dataset.kept_bytes > 0]
    held.sort(key=lambda dataset: dataset.kept_bytes, reverse=True)
    objects_max = min(SAMPLED_MAX, REPORTED_MAX // max(1, min(len(held), datasets_max)))
    for dataset in held[:datasets_max]:
        if dataset.kept_bytes > 0:  # else it was evicted since
            yield dataset, await _sample_of(dataset, objects_max, bits_of)


async def _sample_of(dataset: Dataset, most: int, bits_of: Callable[[CachedObject], int]) -> ObjectSample:
    names, found = dataset.names, ObjectSample()
    for start in range(0, len(names.keys), _AT_ONCE):
        if dataset.names is not names:
            break  # forgotten since
        more = drawn(chain(found.objects, _known(dataset, start, bits_of)), most)
        found = ObjectSample(more.objects, min(more.below, found.below))
        await asyncio.sleep(0)
    return found


def _known(dataset: Dataset, start: int, bits_of: Callable[[CachedObject], int]) -> Iterator[KnownObject]:
    names = dataset.names
    for index in range(start, min(start + _AT_ONCE, len(names.keys))):
        size = names.sizes[index] if names.sizes[index] >= 0 else max(0, dataset.usual_bytes)
        cached = dataset.cached.get(index)
        held = 0 if cached is None else size * bits_of(cached).bit_count() // max(1, cached.blocks)
        yield KnownObject(number_of(dataset.bucket, names.keys[index]), size, held)
