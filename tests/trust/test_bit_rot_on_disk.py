"""Bits that flip in block files: the moment when each is found, and the guarantee of each mode of `--verify`."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest

from outrider import app, pagecache
from outrider.adapters.disk.recovery import Recovery
from outrider.core.cache.block_file import PAGE_BYTES
from outrider.core.cache.scrub_pace import ScrubPace
from tests.contract.disk_store import FILE, Believed, Disk, meta_of, payload_of, restarted
from tests.support.damage import block_files, flip_a_bit
from tests.support.proxy import START_DEADLINE_S, Proxy
from tests.support.trials import KIB, RIGHT, KnownObjects, rounds

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.trials import Trials

BLOCK_BYTES = 64 * KIB
BLOCKS = 20


@pytest.fixture(scope="module")
def known(bucket: Bucket) -> KnownObjects:
    return KnownObjects.make(bucket, "rot", 5)


def proxy_of(bucket: Bucket, **settings: str) -> Proxy:
    """A proxy without a scrubber, unless the test sets its pace."""
    given: dict[str, Any] = {"scrub_bandwidth": "0", **settings}
    return Proxy(bucket, block_size=str(BLOCK_BYTES), freshness="immutable", **given)


def fill(proxy: Proxy, known: KnownObjects) -> None:
    assert known.read_all(proxy.address) == RIGHT
    proxy.settle()
    assert len(block_files(proxy.cache_dir)) == BLOCKS


def rot(proxy: Proxy, chance: random.Random) -> int:
    """Flip a bit in some of the block files, and return in how many."""
    files = chance.sample(block_files(proxy.cache_dir), chance.randint(1, 6))
    for file in files:
        flip_a_bit(file, chance)
    return len(files)


def found(proxy: Proxy) -> float:
    return proxy.metric("outrider_bad_blocks_total")


@pytest.mark.parametrize("clean", [True, False], ids=["snapshot", "scan"])
@pytest.mark.parametrize("verify", ["first", "always"])
def test_blocks_that_rot_while_the_proxy_is_stopped_are_never_served(
    verify: str, clean: bool, bucket: Bucket, known: KnownObjects, trials: Trials
) -> None:
    chance = random.Random(f"{verify} {clean}")
    with proxy_of(bucket, verify=verify) as proxy:
        fill(proxy, known)
        for _ in range(rounds(4)):
            proxy.stop()
            flipped = rot(proxy, chance)
            if not clean:
                (proxy.cache_dir / "index").unlink()
            proxy.start()
            # The scan has dropped blocks with a bad header by now, and does not count them as misses.
            fill(proxy, known)
            assert clean is False or found(proxy) == flipped
            trials.record("rot", f"bits flipped while stopped, verify={verify}", RIGHT, times=flipped)


def test_blocks_that_rot_while_it_runs_are_never_served_with_verify_always(
    bucket: Bucket, known: KnownObjects, trials: Trials
) -> None:
    chance = random.Random(7)
    with proxy_of(bucket, verify="always") as proxy:
        fill(proxy, known)
        for _ in range(rounds(6)):
            before = found(proxy)
            flipped = rot(proxy, chance)
            fill(proxy, known)
            assert found(proxy) - before == flipped
            trials.record("rot", "bits flipped while running, verify=always", RIGHT, times=flipped)


def scrubbed(proxy: Proxy) -> None:
    """Wait for a whole round of the scrubber that begins from now on."""

    async def rounds_over() -> None:
        metrics = proxy.outrider.metrics
        begun = metrics.value("outrider_scrub_rounds_total")
        async with asyncio.timeout(START_DEADLINE_S):
            while metrics.value("outrider_scrub_rounds_total") < begun + 2:
                await asyncio.sleep(0.001)

    proxy.on_loop(rounds_over)


def test_blocks_that_rot_while_it_runs_are_gone_after_the_scrubbers_next_round(
    bucket: Bucket, known: KnownObjects, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(8)
    monkeypatch.setattr(app, "ROUND_S", 0.0)
    with proxy_of(bucket, scrub_bandwidth="10GB") as proxy:
        fill(proxy, known)
        for _ in range(rounds(6)):
            before = found(proxy)
            flipped = rot(proxy, chance)
            scrubbed(proxy)
            assert found(proxy) - before == flipped
            assert len(proxy.outrider.store) == BLOCKS - flipped
            fill(proxy, known)
            trials.record("rot", "bits flipped while running, verify=first, one round later", RIGHT, times=flipped)
        assert proxy.metric("outrider_scrubbed_blocks_total") >= BLOCKS


# -- the scrubber -----------------------------------------------------------------------------------------------


async def test_the_scrubber_reads_no_faster_than_it_may_and_all_blocks_in_each_round(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "cache")
    await disk.write(*(meta_of(index) for index in range(10)))
    disk = await restarted(disk, clean=False)
    walked: list[tuple[float, float]] = []

    async def sleep(seconds: float) -> None:
        disk.clock.advance(seconds)
        walked.append((disk.clock(), disk.metrics.value("outrider_scrubbed_blocks_total")))
        if len(walked) == 40:
            raise asyncio.CancelledError

    began = disk.clock()
    with pytest.raises(asyncio.CancelledError):
        await Recovery(disk.store, Believed(), sleep).scrub(ScrubPace(FILE, round_s=30.0))
    # The pace is a block a second at first, and then all blocks once in 30 seconds.
    assert [(at - began, count) for at, count in walked[:10]] == [(1.0 * n, n) for n in range(1, 11)]
    assert [round(at - began) for at, _ in walked[10:40:10]] == [13, 43, 73]
    assert disk.metrics.value("outrider_scrub_rounds_total") == 3
    disk.close()


async def test_a_disk_that_cannot_be_read_is_no_proof_to_the_scrubber(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = Disk(tmp_path / "cache")
    await disk.write(meta_of(0))

    def failing(*_: Any) -> int:
        raise OSError(5, "sick")

    with monkeypatch.context() as sick:
        sick.setattr(os, "preadv", failing)
        assert await disk.store.verify(meta_of(0).key) == FILE
    assert await disk.read(meta_of(0)) == payload_of(meta_of(0))
    disk.close()


async def test_readers_do_not_wait_for_the_scrubber(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(tmp_path / "cache")
    await disk.write(meta_of(0), meta_of(1))
    gate, reached = threading.Event(), threading.Event()
    pread = os.pread

    def gated(*args: Any) -> bytes:
        reached.set()
        assert gate.wait(60), "the loop was blocked"
        return pread(*args)

    with monkeypatch.context() as slow:
        slow.setattr(os, "pread", gated)
        scrubbing = asyncio.create_task(disk.store.verify(meta_of(1).key))
        await asyncio.to_thread(reached.wait, 60)
        lease = disk.store.lease_open(meta_of(0).key)
        assert lease is not None
        lease.release()
        gate.set()
        await scrubbing
    disk.close()


async def test_the_scrubber_leaves_memory_to_the_readers(tmp_path: Path) -> None:
    disk = Disk(tmp_path / "cache")
    await disk.write(meta_of(0))
    path = disk.path(meta_of(0))

    def in_memory() -> bool:
        fd = os.open(path, os.O_RDONLY)
        try:
            return pagecache.is_in_memory(fd, PAGE_BYTES)
        finally:
            os.close(fd)

    def drop() -> None:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)

    drop()
    if in_memory():
        pytest.skip("this file system is memory, or does not say")
    drop()
    await disk.store.verify(meta_of(0).key)
    assert not in_memory()
    disk = await restarted(disk, clean=True)
    assert await disk.read(meta_of(0)) == payload_of(meta_of(0))
    assert in_memory(), "the page cache keeps what a reader read"
    await disk.store.verify(meta_of(0).key)
    assert in_memory(), "the scrubber left it in the page cache"
    disk.close()
