"""What the index takes in memory: a shape that no machine changes, bytes per block."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from pathlib import Path

import pytest

from outrider.adapters import snapshot
from outrider.adapters.blockdir import BlockDir
from outrider.adapters.disk import DiskStore, Limits
from outrider.adapters.leases import OpenFile
from outrider.adapters.recovery import Recovery
from outrider.core import blockfile
from outrider.core.blockfile import BlockMeta
from outrider.core.eviction import policy_of
from outrider.core.freshness import Freshness
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.engine.catalog import Catalog
from outrider.metrics import Metrics

BLOCK_BYTES = 8 * 2**20
OBJECTS, BLOCKS_EACH = 200, 100
# Its key, its slot and its place in the table take 190. An object for its meta, or its own copy of the version's name
# or of a size, would each add 30 to 70; its own copy of the headers a thousand.
BYTES_PER_BLOCK_MAX = 215


def meta_of(number: int, index: int, version: ObjectVersion | None = None) -> BlockMeta:
    """Each call brings its own copies, as replies of the origin and headers of files do."""
    headers = tuple((f"x-amz-meta-{name}", f"{number} of many") for name in range(4))
    ref = ObjectRef("imagenet", f"train/shard-{number:06d}.tar")
    version = ObjectVersion(ref, f'"{number:032x}"', BLOCKS_EACH * BLOCK_BYTES, headers)
    return BlockMeta("http://origin", version, BLOCK_BYTES, index)


@pytest.mark.parametrize("by", ["snapshot", "headers"])
async def test_an_indexed_block_takes_a_few_words(by: str, tmp_path: Path) -> None:
    metrics = Metrics()
    directory = BlockDir.open(tmp_path / "cache")
    metas = (meta_of(number, index) for number in range(OBJECTS) for index in range(BLOCKS_EACH))
    if by == "snapshot":
        directory.snapshot.write_bytes(b"".join(snapshot.encode(metas)))
    policy = policy_of("epoch", 10**15, BLOCK_BYTES)
    store = DiskStore(directory, policy, Limits(10**15), metrics, time.monotonic)
    catalog = Catalog("http://origin", lambda _: Freshness(60.0), time.monotonic, 10**6)
    recovery = Recovery(store, catalog)
    gc.collect()
    tracemalloc.start()
    try:
        if by == "snapshot":
            await recovery.index()
        else:
            for meta in metas:
                store.budget.take(blockfile.Header(meta).disk_bytes)
                store.adopt(meta, blockfile.Header(meta).disk_bytes)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(store) == OBJECTS * BLOCKS_EACH
    assert taken / len(store) < BYTES_PER_BLOCK_MAX
    store.close()


async def test_one_more_open_file_costs_the_same_however_many_are_open(tmp_path: Path) -> None:
    store = DiskStore(
        BlockDir.open(tmp_path / "cache"), policy_of("lru", 10**15, BLOCK_BYTES), Limits(10**15, open_files=10**6),
        Metrics(), time.monotonic,
    )  # fmt: skip
    metas = [meta_of(number, index) for number in range(20) for index in range(BLOCKS_EACH)]
    peaks = []
    tracemalloc.start()
    try:
        for meta in metas:
            need = blockfile.Header(meta).disk_bytes
            await store.reserve(need, meta)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            store.landed(meta, need, OpenFile(-1, blockfile.PAGE_BYTES))
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    # A list of all that are open would be 8 bytes for each of them, made anew for each block that comes.
    assert statistics.median(peaks[-500:]) < 4 * len(metas)
    store.close()
