"""A `DiskBlockStore` on one disk, with what its tests need, and faults of its files."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.adapters.disk.block_writer import DiskBlockWriter
from outrider.adapters.disk.disk import Disk as StoreDisk
from outrider.adapters.disk.leases import FileLease
from outrider.adapters.disk.recovery import Recovery
from outrider.core.block_layout import BlockLayout
from outrider.core.cache.block_file import PAGE_BYTES, BlockMeta, Header
from outrider.core.cache.disk_limits import DiskBudget
from outrider.core.cache.policies import POLICIES
from outrider.core.model import Headers, ObjectRef, ObjectVersion
from outrider.core.packed_version import unpack
from outrider.metrics import Metrics
from outrider.ports import Belief, Clock, Name
from tests.support.child import open_below
from tests.support.fakes import FakeClock, ramp

T = TypeVar("T")
BLOCK = 8 * 1024


MIB = 1024 * 1024


LAYOUT = BlockLayout("http://o", BLOCK)


FILE = BLOCK + PAGE_BYTES
"""The bytes of a whole block on disk."""


def meta_of(index: int = 0, key: str = "k", *, blocks: int = 100, headers: Headers = ()) -> BlockMeta:
    version = ObjectVersion(ObjectRef("bucket", key), '"e"', blocks * BLOCK, headers)
    return BlockMeta(LAYOUT, version, index)


HEADER = Header(meta_of(0)).length
"""The offset of the payload in the file of a small block."""


def payload_of(meta: BlockMeta) -> bytes:
    return ramp(meta.extent.length, meta.extent.start)


class Believed:
    """`Versions` that records the versions the store recalls at a start."""

    def __init__(self) -> None:
        self.versions: list[ObjectVersion] = []
        self.vouched: list[ObjectVersion] = []
        self.ages: dict[ObjectRef, float | None] = {}
        self.newer: dict[ObjectVersion, ObjectVersion] = {}
        self.doubted: dict[Name, float] = {}
        self.expected = 0
        self.is_whole = False

    def recall(self, origin: str, belief: Belief) -> None:
        self.versions.append(belief.version)
        self.ages[belief.version.ref] = belief.age_s
        if belief.vouched:
            self.vouched.append(belief.version)

    def expect(self, count: int) -> None:
        self.expected = count

    def recall_all(
        self, origin: str, refs: Sequence[ObjectRef], packed: Sequence[bytes], ages_s: Sequence[float | None],
        vouched: Sequence[bool],
    ) -> None:  # fmt: skip
        for ref, its, age_s, is_vouched in zip(refs, packed, ages_s, vouched, strict=True):
            self.recall(origin, Belief(unpack(its), age_s, is_vouched))
            assert unpack(its).ref == ref

    def recalled(self) -> None:
        self.is_whole = True

    def belief(self, origin: str, version: ObjectVersion) -> Belief:
        newer = self.newer.get(version, version)
        return Belief(newer, self.ages.get(version.ref), newer in self.vouched)

    def confirmed_at(self, wall_clock: Clock, meta: BlockMeta) -> float:
        age_s = self.ages.get(meta.version.ref)
        return 0.0 if age_s is None else wall_clock() - age_s

    def doubt(self, name: Name, for_s: float) -> None:
        self.doubted[name] = for_s

    def doubts(self) -> list[tuple[Name, float]]:
        return list(self.doubted.items())


class Disk:
    """A store under test and the objects that it needs. `restart` is a stop, clean or not, and a start."""

    def __init__(
        self, root: Path, capacity: int = 100 * FILE, *, directory: type[BlockDir] = BlockDir, policy: str = "lru",
        verify_always: bool = False, min_free: int = 0, open_files: int = 256,
    ) -> None:  # fmt: skip
        self.root = root
        self.metrics = Metrics()
        self.clock = FakeClock()
        self.believed = Believed()
        self.capacity = capacity
        self.policy = POLICIES[policy]()
        self.store = DiskBlockStore(
            [StoreDisk(directory.open(root), DiskBudget(capacity, min_free), self.metrics, self.clock)],
            self.policy, self.metrics, self.clock, open_files=open_files, verify_always=verify_always,
        )  # fmt: skip
        self.recovery = Recovery(self.store, self.believed)

    async def write(self, *metas: BlockMeta) -> None:
        for meta in metas:
            writer = await self.store.create(meta)
            data = payload_of(meta)
            await writer.write(0, [data[:100], b"", memoryview(data)[100:]])
            await writer.commit()

    async def read(self, meta: BlockMeta) -> bytes | None:
        lease = await self.store.lease(meta.key)
        if lease is None:
            return None
        try:
            return read_through(lease, meta.extent.length)
        finally:
            lease.release()

    def ranked(self) -> list[BlockMeta]:
        """All blocks, first victim first."""
        return [meta for metas in self.store.metas_by_disk().values() for meta in metas]

    def path(self, meta: BlockMeta) -> Path:
        return self.store.disks[0].directory.path_of(meta.key)

    def keep_budget(self) -> None:
        """Bytes on disk never exceed the accounted bytes, and those never exceed the budget."""
        assert on_disk(self.root) <= self.store.used_bytes <= self.capacity
        assert self.metrics.value("outrider_store_bytes") == self.store.used_bytes
        assert self.metrics.value("outrider_store_blocks") == len(self.store)

    def close(self) -> None:
        self.store.close()


def given(what: T | None) -> T:
    """`what`, which must not be None."""
    assert what is not None
    return what


def read_through(lease: FileLease, length: int) -> bytes:
    return os.pread(lease.block.fd, length, lease.block.payload_offset)


def on_disk(root: Path) -> int:
    """Bytes of all blocks and unfinished files, in full pages. A file that is moved meanwhile is not counted twice."""
    total = 0
    for part in ("v2", "tmp"):
        for path in (root / part).rglob("*"):
            with suppress(FileNotFoundError):
                if path.is_file():
                    total += -(-path.stat().st_size // PAGE_BYTES) * PAGE_BYTES
    return total


def open_fds(root: Path) -> int:
    return len(open_below(root))


def flip(path: Path, position: int) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ 0x10]))


def failing(number: int) -> Callable[..., object]:
    def fail(*_: object, **__: object) -> object:
        raise OSError(number, os.strerror(number))

    return fail


async def write_whole(writer: DiskBlockWriter, data: bytes) -> None:
    await writer.write(0, [data])


async def write_in_parts(writer: DiskBlockWriter, data: bytes) -> None:
    await writer.write(0, [data[:100]])
    await writer.write(100, [data[100:]])


async def write_at_once(writer: DiskBlockWriter, data: bytes) -> None:
    """Two concurrent parts: neither knows that it is the last, so the commit renames the block into place."""
    await writer.write(0, [data[:100]])
    await asyncio.gather(writer.write(100, [data[100:4000]]), writer.write(4000, [data[4000:]]))


Writing = Callable[[DiskBlockWriter, bytes], Awaitable[None]]


WRITINGS = [write_whole, write_in_parts, write_at_once]


async def restarted(disk: Disk, *, clean: bool, capacity: int | None = None, policy: str = "lru") -> Disk:
    if clean:
        if not disk.believed.is_whole:
            await disk.recovery.index()
        await disk.recovery.save()
    disk.close()
    fresh = Disk(disk.root, capacity or disk.capacity, policy=policy)
    await fresh.recovery.index()
    return fresh
