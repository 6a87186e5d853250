"""Outrider's own cost: memory, and the time from its start to ready, with an empty cache and with many blocks."""

from __future__ import annotations

import os
import statistics
import time
from typing import TYPE_CHECKING

from outrider.adapters.disk import index_snapshot
from outrider.adapters.disk.block_dir import BlockDir
from outrider.core.block_layout import BlockLayout
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BlockMeta
from outrider.core.model import ObjectRef, ObjectVersion
from tests.bench import procs
from tests.bench.loads import LOADS, warm_up
from tests.bench.targets import Outrider
from tests.support.child import Child

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.bench.world import World

_BLOCK_BYTES = 8 * 1024 * 1024
_BLOCKS_PER_SHARD = 100
_POLL_S = 0.002
_DEADLINE_S = 60.0
# Ready is not idle yet: credentials are looked up only then.
_SETTLED_S = 2.0
# The loads of a node's day, in this order, with the full cache.
_LOADED_BY = ("epoch-4-curl", "stream-8", "range-64", "small-warm")

EMPTY_START, FULL_START, FULL_INDEX = "start, empty", "start, full", "start, full, index read"
IDLE_RSS, FULL_RSS, PEAK_RSS = "RSS, idle", "RSS, full", "RSS, full and loaded, peak"


class _Upkeep(Outrider):
    name, slug = "Outrider, upkeep", "outrider-upkeep"

    def env(self) -> dict[str, str]:
        # An installed package has its bytecode. Where it cannot be written, each start would compile all modules.
        return {name: value for name, value in super().env().items() if name != "PYTHONDONTWRITEBYTECODE"}


def measure(world: World, rounds: int, progress: Callable[[str], None]) -> dict[str, float]:
    """Seconds and bytes by the names above."""
    figures: dict[str, float] = {}
    target = _Upkeep(world)
    target.cache.mkdir()
    world.calm()
    try:
        starts, idle = [], []
        for number in range(rounds):
            progress(f"start with an empty cache, {number + 1} of {rounds}")
            starts.append(_timed_start(target)[0])
            time.sleep(_SETTLED_S)
            idle.append(procs.rss_bytes(_session(target)))
            target.stop()
        figures |= {EMPTY_START: statistics.median(starts), IDLE_RSS: max(idle)}
        progress(f"making {world.plan.blocks} blocks")
        fill(target.cache, world.simulator.endpoint, world.plan.blocks)
        timed, full = [], []
        for number in range(rounds):
            progress(f"start with {world.plan.blocks} blocks, {number + 1} of {rounds}")
            timed.append(_timed_start(target))
            full.append(procs.rss_bytes(_session(target)))
            if number < rounds - 1:
                target.stop()
        assert target.status()["blocks"] == world.plan.blocks, "the snapshot was not used"
        ready, indexed = zip(*timed, strict=True)
        figures |= {
            FULL_START: statistics.median(ready), FULL_INDEX: statistics.median(indexed), FULL_RSS: max(full)
        }  # fmt: skip
        for load in LOADS:
            if load.name in _LOADED_BY:
                progress(f"with {world.plan.blocks} blocks: {load.title}")
                if not load.cold:
                    warm_up(load, world, target)
                load.run(world, target)
        figures[PEAK_RSS] = procs.peak_rss_bytes(_session(target))
    finally:
        target.stop()
    return figures


def _session(target: Outrider) -> int:
    assert target.session is not None
    return target.session


def _timed_start(target: Outrider) -> tuple[float, float]:
    """Seconds from the process's start until it reports ready, and until it knows the content of its cache."""
    begun = time.monotonic()
    target.child = Child(target.argv(), log=target.directory / "log", env=target.env(), cwd=target.directory)
    seen: list[float] = []
    for reached in (target.is_ready, target.ready):
        while not reached():
            if not target.child.running or time.monotonic() - begun > _DEADLINE_S:
                raise RuntimeError(f"Outrider did not get ready:\n{target.child.log_tail()}")
            time.sleep(_POLL_S)
        seen.append(time.monotonic() - begun)
    return seen[0], seen[1]


def fill(root: Path, origin: str, count: int) -> None:
    """A cache directory as a clean stop leaves it, with `count` blocks of 8 MiB in shards of a hundred.

    The payloads are zeros that take no room on disk; headers, checksums, names and snapshot are the store's own.
    """
    directory = BlockDir.open(root)
    try:
        checksum = block_file.PayloadChecksum(bytes(_BLOCK_BYTES)).digest()
        for meta in _metas(origin, count):
            path = directory.path_of(meta.key)
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                header = block_file.Header(meta).sealed(checksum)
                os.write(fd, header)
                os.truncate(fd, len(header) + meta.extent.length)
            finally:
                os.close(fd)
        with directory.snapshot.open("wb") as file:
            file.writelines(index_snapshot.encode(_metas(origin, count)))
    finally:
        directory.close()


def _metas(origin: str, count: int) -> Iterator[BlockMeta]:
    headers = (
        ("content-type", "application/x-tar"), ("last-modified", "Wed, 21 Oct 2026 07:28:00 GMT"),
        ("accept-ranges", "bytes"), ("x-amz-server-side-encryption", "AES256"),
    )  # fmt: skip
    layout = BlockLayout(origin, _BLOCK_BYTES)
    for shard in range(-(-count // _BLOCKS_PER_SHARD)):
        ref = ObjectRef("imagenet", f"train/shard-{shard:06d}.tar")
        blocks = min(_BLOCKS_PER_SHARD, count - shard * _BLOCKS_PER_SHARD)
        version = ObjectVersion(ref, f'"{shard:032x}-{blocks}"', blocks * _BLOCK_BYTES, headers)
        for index in range(blocks):
            yield BlockMeta(layout, version, index)
