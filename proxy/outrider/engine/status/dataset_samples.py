"""The sample of the objects that this node knows of a dataset."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from itertools import chain

from outrider.core.ahead.dataset.cached_objects import CachedObject
from outrider.core.ahead.dataset.dataset import Dataset
from outrider.core.cluster.object_samples import REPORTED_MAX, SAMPLED_MAX, KnownObject, ObjectSample, drawn, number_of

# Objects that are looked at before other tasks of the loop run: some milliseconds.
_AT_ONCE = 2000


def objects_max(datasets: int) -> int:
    """The objects in each sample of a report about so many datasets."""
    return min(SAMPLED_MAX, REPORTED_MAX // max(1, datasets))


async def sample_of(dataset: Dataset, most: int, bits_of: Callable[[CachedObject], int]) -> ObjectSample:
    """`bits_of`: the blocks of an object that count as held, as bits."""
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
