"""The memory of the block index: bytes per block, measured by tracemalloc, the same on every machine."""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator
from itertools import count, starmap
from pathlib import Path

import pytest

from outrider.adapters.disk import index_snapshot
from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.disk import Disk
from outrider.adapters.disk.leases import OpenFile
from outrider.adapters.disk.recovery import Recovery
from outrider.core.ahead.dataset.templates import template_of
from outrider.core.block_layout import BlockLayout
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BlockMeta
from outrider.core.cache.disk_limits import DiskBudget
from outrider.core.cache.freshness import Freshness
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.core.s3.headers import replayable
from outrider.engine.read.version_cache import VersionCache
from outrider.metrics import Metrics
from outrider.ports import Belief
from outrider.simulator.world import policy_of
from tests.support.trials import SCALE

BLOCK_BYTES = 8 * 2**20
LAYOUT = BlockLayout("http://origin", BLOCK_BYTES)
BLOCKS_EACH = 100
# A block's row in the index, and its share of its version's, take 80 to 90 bytes. A copy of the version would add 200,
# and an object of Python 100.
BYTES_PER_BLOCK_MAX = 110
FEW_MANY = (2000, 8000) if SCALE > 1 else (2000, 5000)


def meta_of(number: int, index: int, version: ObjectVersion | None = None) -> BlockMeta:
    """Each call makes new copies, as replies of the origin and headers of files do."""
    headers = tuple((f"x-amz-meta-{name}", f"{number} of many") for name in range(4))
    ref = ObjectRef("imagenet", f"train/shard-{number:06d}.tar")
    version = ObjectVersion(ref, f'"{number:032x}"', BLOCKS_EACH * BLOCK_BYTES, headers)
    return BlockMeta(LAYOUT, version, index)


def store_in(directory: BlockDir, policy: str) -> DiskBlockStore:
    metrics = Metrics()
    disk = Disk(directory, DiskBudget(10**15), metrics, time.monotonic)
    its_policy = policy_of(policy, 10**15, BLOCK_BYTES)
    return DiskBlockStore([disk], its_policy, metrics, time.monotonic, open_files=10**6)


# A small object's packed version, and its rows in the index, the version cache and the planner, take 350 to 363 bytes.
# With an object of Python for each of these it took 1,900. Gaps between them: `tests/server/test_free_memory.py`.
BYTES_PER_SMALL_OBJECT_MAX = 366


def small(number: int) -> BlockMeta:
    """A small object as a reply of the bucket describes it, each time with new copies."""
    stated = {
        "accept-ranges": "bytes", "content-type": "image/jpeg", "x-amz-server-side-encryption": "AES256",
        "x-amz-storage-class": "INTELLIGENT_TIERING", "etag": f'"{number:032x}"',
        "last-modified": f"Mon, 23 Nov 2026 20:{number // 60 % 60:02}:{number % 60:02} GMT",
    }  # fmt: skip
    copied = [(name.encode().decode(), value.encode().decode()) for name, value in stated.items()]
    ref = ObjectRef(b"imagenet".decode(), f"train/{number:07d}.jpg")
    version = ObjectVersion(ref, dict(copied)["etag"], BLOCK_BYTES, replayable(tuple(copied)))
    return BlockMeta(LAYOUT, version, 0)


@pytest.mark.parametrize("by", ["fills", "snapshot"])
async def test_an_indexed_block_takes_a_few_words(by: str, tmp_path: Path) -> None:
    metas = [(number, index) for number in range(FEW_MANY[1] // BLOCKS_EACH) for index in range(BLOCKS_EACH)]
    taken = await taken_by(by, lambda stop: starmap(meta_of, metas[:stop]), FEW_MANY, tmp_path)
    assert taken < BYTES_PER_BLOCK_MAX


# "files" holds all that "fills" does, from headers that were read.
@pytest.mark.parametrize("by", ["snapshot", "files", "fills"][: 3 if SCALE > 1 else 2])
async def test_a_small_object_takes_a_few_hundred_bytes(by: str, tmp_path: Path) -> None:
    # With the few, the memos of fixed size are full, and their tables have grown for the last time.
    taken = await taken_by(by, lambda stop: map(small, range(stop)), (1500, 2700), tmp_path)
    assert taken < BYTES_PER_SMALL_OBJECT_MAX


async def taken_by(
    by: str, metas: Callable[[int], Iterator[BlockMeta]], few_many: tuple[int, int], root: Path
) -> float:
    """The bytes for each block between the first few and the first many, of which no other copy is held."""
    few, many = few_many
    if by == "snapshot":
        # Its blocks come all at once.
        held = [(await held_with(by, metas(count), (count,), root / str(count)))[0] for count in few_many]
    else:
        held = await held_with(by, metas(many), few_many, root)
    return (held[1] - held[0]) / (many - few)


async def held_with(by: str, metas: Iterator[BlockMeta], counts: tuple[int, ...], root: Path) -> list[int]:
    """The bytes that are held when so many of the blocks are indexed."""
    directory = BlockDir.open(root)
    ages = map(float, count())
    facts = index_snapshot.SnapshotFacts(lambda: 1.5e9, lambda _, version: Belief(version, next(ages)))
    if by == "snapshot":
        directory.snapshot.write_bytes(b"".join(index_snapshot.encode(metas, facts)))
    store = store_in(directory, "epoch")
    versions = VersionCache("http://origin", lambda _: Freshness(60.0), time.monotonic, 10**6)
    recovery = Recovery(store, versions)
    template_of.cache_clear()  # entries of earlier tests may make the table grow just now
    held, disk_bytes = [], 0
    gc.collect()
    tracemalloc.start()
    try:
        if by == "snapshot":
            await recovery.index()
            gc.collect()
            held.append(tracemalloc.get_traced_memory()[0])
        for number, meta in enumerate(metas):
            if by == "files":
                meta, _ = block_file.decode_header(block_file.Header(meta).sealed(bytes(16)))
            # All blocks are alike: no header is written for each of them only to know its length.
            disk_bytes = disk_bytes or block_file.Header(meta).disk_bytes
            store.disks[0].budget.take(disk_bytes)
            store.adopt(store.disks[0], meta, disk_bytes)
            versions.recall(meta.layout.origin, Belief(meta.version, 100.0 + number / 7))
            if number + 1 in counts:
                del meta
                gc.collect()
                held.append(tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()
    assert len(store) == counts[-1]
    store.close()
    return held


async def test_one_more_open_file_costs_the_same_however_many_are_open(tmp_path: Path) -> None:
    store = store_in(BlockDir.open(tmp_path / "cache"), "lru")
    metas = [meta_of(number, index) for number in range(20) for index in range(BLOCKS_EACH)]
    peaks = []
    tracemalloc.start()
    try:
        need = block_file.Header(metas[0]).disk_bytes
        for meta in metas:
            await store.reserve(store.disks[0], need, meta)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            store.landed(store.disks[0], meta, need, OpenFile(-1, block_file.PAGE_BYTES), None, None)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    # A list of all open files would take 8 bytes for each of them, and would be made anew for each new block.
    assert statistics.median(peaks[-500:]) < 4 * len(metas)
    store.close()
