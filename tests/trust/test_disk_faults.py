"""A disk that is full, read-only, slow, removed or failing: clients get the right bytes, and a healed disk is used.

`tests.support.faulty_disk` injects most of the faults at the port. A small tmpfs is really full and really unmounted,
where mounting is allowed.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import shutil
import subprocess
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from outrider.adapters.disk import disk_threads
from outrider.adapters.disk.block_dir import BlockDir, UnusableCacheDir
from outrider.core.cache import block_file, disk_limits
from outrider.core.cache.block_file import PAGE_BYTES
from outrider.engine.fill import fill
from outrider.http.wire import sender
from tests.contract.disk_store import FILE, Disk, flip, meta_of, on_disk, payload_of
from tests.support.conditions import Fault, FaultKind
from tests.support.damage import block_files
from tests.support.engine import flights_of
from tests.support.faulty_disk import ILLS, SickDisk
from tests.support.proxy import Proxy, s3_client
from tests.support.rawhttp import RawConnection, request
from tests.support.trials import BROKEN, KIB, RIGHT, KnownObjects, rounds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator
    from tests.support.tls import Certificate
    from tests.support.trials import Trials

BLOCK_BYTES = 64 * KIB
BLOCKS = 20


@pytest.fixture(scope="module")
def known(bucket: Bucket) -> KnownObjects:
    return KnownObjects.make(bucket, "disk", 5)


@pytest.fixture(autouse=True)
def asked_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause after a disk failure is zero here. tests/contract/test_block_store_faults.py tests the pause itself."""
    monkeypatch.setattr(disk_threads, "FAILURE_PAUSE_S", 0.0)
    monkeypatch.setattr(disk_limits, "_FREE_KNOWN_S", 0.0)


def proxy_of(bucket: Bucket, **settings: Any) -> Proxy:
    chosen = {"block_size": str(BLOCK_BYTES), "freshness": "immutable", "scrub_bandwidth": "0", **settings}
    return Proxy(bucket, **chosen)


def read(proxy: Proxy, known: KnownObjects, chance: random.Random, count: int = 12) -> set[str]:
    """The outcomes of reads at random places, several of them at once."""
    seen: set[str] = set()

    def reads(seed: float) -> None:
        own = random.Random(seed)
        with RawConnection(proxy.address) as connection:
            for _ in range(count):
                seen.add(known.read_any(connection, own))

    threads = [threading.Thread(target=reads, args=(chance.random(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen


def recovered(proxy: Proxy, known: KnownObjects) -> None:
    """Without a restart all is filled again and served from the disk."""
    for _ in range(2):
        assert known.read_all(proxy.address) == RIGHT
        proxy.settle()
    store = proxy.outrider.store
    assert len(store) == BLOCKS
    # HEADs for checksums may come at any time.
    before = proxy.metric("outrider_origin_requests_total", method="GET")
    assert known.read_all(proxy.address) == RIGHT
    assert proxy.metric("outrider_origin_requests_total", method="GET") == before
    assert list(proxy.cache_dir.glob("tmp/*.*")) == []


@pytest.mark.parametrize("ill", ILLS)
def test_reads_go_on_while_the_disk_fails_and_a_healed_disk_is_used_again(
    ill: str, bucket: Bucket, known: KnownObjects, trials: Trials
) -> None:
    chance = random.Random(ill)
    with proxy_of(bucket) as proxy, SickDisk(proxy.cache_dir) as sick:
        for _ in range(rounds(1)):
            # Some blocks are cached, some are not.
            for key in ("0", "1", "2"):
                with RawConnection(proxy.address) as connection:
                    assert known.read(connection, key) == RIGHT
            proxy.settle()
            sick.fail(*ILLS[ill])
            assert read(proxy, known, chance) == {RIGHT}
            proxy.settle()
            assert proxy.outrider.store.used_bytes <= proxy.outrider.settings.cache_size.amount_bytes
            trials.record("disk", ill, RIGHT, times=36)
            assert sick.failed
            sick.failed = 0
            sick.heal()
            recovered(proxy, known)
            # As at the beginning, no block is cached.
            proxy.stop()
            shutil.rmtree(proxy.cache_dir)
            proxy.start()


def test_clients_do_not_notice_disk_errors_that_strike_now_and_then(
    bucket: Bucket, known: KnownObjects, trials: Trials
) -> None:
    chance = random.Random("now and then")
    small = str(12 * (BLOCK_BYTES + PAGE_BYTES))
    with proxy_of(bucket, cache_size=small) as proxy, SickDisk(proxy.cache_dir) as sick:
        sick.chance, sick.probability = chance, 0.1
        for _ in range(rounds(2)):
            sick.fail(*ILLS["errors on all"])
            sick.after_bytes = PAGE_BYTES + chance.randrange(BLOCK_BYTES)
            assert read(proxy, known, chance) == {RIGHT}
            sick.heal()
            proxy.settle()
            trials.record("disk", "one call in ten fails", RIGHT, times=36)


# -- in the middle of a hit ---------------------------------------------------------------------------------------


@pytest.fixture(params=["sendfile", "tls"])
def sending(request: pytest.FixtureRequest, certificate: Certificate) -> dict[str, Any]:
    """The ways a body is sent: by the kernel, or read into memory and sent through TLS."""
    if request.param == "tls":
        return {"tls_cert": certificate.chain, "tls_key": certificate.key}
    return {}


def test_bytes_that_the_disk_fails_to_give_in_mid_hit_come_from_the_origin(
    sending: dict[str, Any], bucket: Bucket, certificate: Certificate, trials: Trials
) -> None:
    chance = random.Random(10)
    # The object is one block that no socket takes at once, so that the disk fails while a reply is under way.
    known = KnownObjects.make(bucket, "disk-large", 1, 12 * 1024 * KIB)
    data = known.objects["0"]
    with proxy_of(bucket, block_size="4MiB", **sending) as proxy, SickDisk(proxy.cache_dir) as sick:
        verify = str(certificate.authority) if "tls_cert" in sending else True

        def read_from(start: int) -> tuple[str, bytes]:
            with closing(s3_client(proxy.endpoint, verify=verify)) as client:
                answer = client.get_object(Bucket=known.name, Key="0", Range=f"bytes={start}-")
                body = answer["Body"].read()
            return answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"], body

        for _ in range(rounds(3)):
            for _ in range(2):
                assert read_from(0)[1] == data
                proxy.settle()
            from_origin = proxy.metric("outrider_served_bytes_total", source="origin")
            sick.after_bytes = PAGE_BYTES + chance.randrange(4 * 1024 * KIB)
            sick.fail(["send"] if "tls_cert" not in sending else ["pread"], errno.EIO)
            start = chance.randrange(1, len(data))
            assert read_from(start) == ("HIT", data[start:])
            proxy.settle()
            assert proxy.metric("outrider_served_bytes_total", source="origin") > from_origin
            sick.heal()
            trials.record("disk", "errors in the middle of a hit", RIGHT)


def test_a_disk_error_in_mid_hit_cuts_the_reply_when_the_version_is_gone(bucket: Bucket, trials: Trials) -> None:
    known = KnownObjects.make(bucket, "disk-moved", 1)
    with proxy_of(bucket) as proxy, SickDisk(proxy.cache_dir) as sick:
        assert known.read_all(proxy.address) == RIGHT
        proxy.settle()
        KnownObjects.make(bucket, "disk-moved", 1, 300 * KIB)
        sick.after_bytes = PAGE_BYTES + 1000
        sick.fail(["send"], errno.EIO)
        assert known.read_all(proxy.address) == BROKEN
        sick.heal()
        trials.record("disk", "errors in the middle of a hit, and the object was overwritten", BROKEN)
        assert KnownObjects.make(bucket, "disk-moved", 1, 300 * KIB).read_all(proxy.address) == RIGHT


@pytest.mark.parametrize("times", [1, None])
def test_a_flight_whose_file_cannot_be_read_is_relayed_and_not_followed_over_a_gap(
    times: int | None, bucket: Bucket, simulator: Simulator, known: KnownObjects, trials: Trials,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    # The disk gives less than a piece of a flight. With `times` 1 it is well again at the next piece. The second reader
    # reads the flight from the disk; the first reader has all bytes from memory.
    async def on_disk() -> None:
        flight = min(flights_of(proxy.outrider.flights), key=lambda each: each.meta.index)
        while flight.reach(0) < 30_000:
            await asyncio.sleep(0)

    simulator.conditions.faults = [Fault(FaultKind.STALL, after_bytes=30_000)]
    for name in ("_BUFFER_BYTES", "_BUFFER_BYTES_MIN"):
        monkeypatch.setattr(fill, name, 10_000)
    with proxy_of(bucket, origin=simulator.endpoint) as proxy, SickDisk(proxy.cache_dir) as sick:
        with RawConnection(proxy.address) as first, RawConnection(proxy.address) as second:
            first.send(request("GET", f"/{known.name}/0"))
            reply = first.read_head()
            begun = reply.read(30_000)
            proxy.on_loop(on_disk)
            sick.after_bytes, sick.times = PAGE_BYTES + 10_000, times
            sick.fail(["send"], errno.EIO)
            assert known.read(second, "0") == RIGHT
            assert sick.failed >= 1
            simulator.release()
            assert begun + reply.read() == known.objects["0"]
        sick.heal()
        trials.record("disk", "errors while a fill is read", RIGHT)
        recovered(proxy, known)


@pytest.mark.parametrize("act", ["send", "read"])
def test_a_block_that_could_not_be_read_is_verified_before_it_is_used_again(
    bucket: Bucket, known: KnownObjects, act: str, trials: Trials
) -> None:
    with proxy_of(bucket) as proxy, SickDisk(proxy.cache_dir) as sick:
        recovered(proxy, known)
        sick.after_bytes, sick.times = PAGE_BYTES, 1
        sick.fail([act], errno.EIO)
        for file in block_files(proxy.cache_dir):
            flip(file, PAGE_BYTES + 10)
            header = file.read_bytes()[:PAGE_BYTES]
            meta, _ = block_file.decode_header(header)
            sick.times = 1
            with RawConnection(proxy.address) as connection:
                start, stop = meta.extent.start, meta.extent.stop
                for _ in range(2):
                    assert known.read(connection, meta.version.ref.key, start, stop) == RIGHT
            proxy.settle()
        trials.record("disk", "errors on a block that is bad as well", RIGHT, times=2 * BLOCKS)
        assert proxy.metric("outrider_bad_blocks_total") == BLOCKS


# -- slow ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "acts", [("write",), ("create",), ("rename",), ("open", "read", "pread"), ("statvfs",), ("unlink",)], ids=" ".join
)
def test_a_disk_that_does_not_answer_is_waited_for_only_so_long(
    acts: tuple[str, ...], bucket: Bucket, known: KnownObjects, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The cache has room for one of the two sets of objects. LRU keeps the one that was read last. The policy epoch
    # expects that both are read again, and keeps parts of both.
    small = str(BLOCKS * (BLOCK_BYTES + PAGE_BYTES))
    # With one fill at a time, a fill that the disk holds has to give up its slot.
    with proxy_of(bucket, cache_size=small, policy="lru", fills=1) as proxy:
        other = KnownObjects.make(bucket, "disk-other", 3)
        assert other.read_all(proxy.address) == RIGHT
        proxy.settle()
        # No block file is open yet, and one is bad.
        proxy.restart()
        os.truncate(block_files(proxy.cache_dir)[0], PAGE_BYTES + 100)
        with SickDisk(proxy.cache_dir) as sick:
            sick.hold(*acts)
            with monkeypatch.context() as hasty:
                # Far below the time that a client waits.
                hasty.setattr(disk_threads, "PATIENCE_S", 0.05)
                hasty.setattr(sender, "_READ_PATIENCE_S", 0.05)
                assert known.read_all(proxy.address) == RIGHT
                assert other.read_all(proxy.address) == RIGHT
            sick.release()
            trials.record("disk", f"no answer to {' '.join(acts)}", RIGHT, times=8)
            proxy.settle()
            recovered(proxy, known)


async def test_while_the_disk_does_not_answer_later_reads_do_not_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_threads, "FAILURE_PAUSE_S", 5.0)
    store = Disk(tmp_path / "cache", open_files=1)
    await store.write(*(meta_of(index) for index in range(3)))
    with SickDisk(store.root) as sick:
        sick.hold("open")
        monkeypatch.setattr(disk_threads, "PATIENCE_S", 0.05)
        assert await store.read(meta_of(0)) is None
        monkeypatch.setattr(disk_threads, "PATIENCE_S", 60.0)
        # Without the pause the second read would wait for the disk as long as the first did.
        async with asyncio.timeout(60):
            assert await store.read(meta_of(1)) is None
        sick.release()
        store.clock.advance(5.1)
        assert await store.read(meta_of(1)) == payload_of(meta_of(1))
    store.close()


# -- gone ---------------------------------------------------------------------------------------------------------


def test_a_directory_that_is_removed_and_comes_back(bucket: Bucket, known: KnownObjects, trials: Trials) -> None:
    with proxy_of(bucket) as proxy:
        for _ in range(rounds(2)):
            recovered(proxy, known)
            shutil.rmtree(proxy.cache_dir)
            assert read(proxy, known, random.Random(3)) == {RIGHT}
            proxy.settle()
            trials.record("disk", "gone: the directory was removed", RIGHT, times=36)
            proxy.cache_dir.mkdir()
            # The restart closes the open files, which are served on although the directory is gone.
            proxy.restart()
            recovered(proxy, known)


def lock_is_free(directory: Path) -> bool:
    """Another process could take the lock; a second descriptor of this process shows the same."""
    fd = os.open(directory / "outrider-cache", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_a_directory_that_was_made_again_is_locked_again(bucket: Bucket, known: KnownObjects, trials: Trials) -> None:
    with proxy_of(bucket) as proxy:
        recovered(proxy, known)
        for what in (proxy.cache_dir, proxy.cache_dir / "outrider-cache"):
            assert not lock_is_free(proxy.cache_dir)
            (shutil.rmtree if what.is_dir() else os.unlink)(what)
            proxy.cache_dir.mkdir(exist_ok=True)
            other = KnownObjects.make(bucket, f"disk-{what.name}", 2)
            assert other.read_all(proxy.address) == RIGHT
            proxy.settle()
            assert not lock_is_free(proxy.cache_dir)
            with pytest.raises(UnusableCacheDir, match="another process"):
                BlockDir.open(proxy.cache_dir)
            trials.record("disk", "gone, and made again: the lock", "the right bytes", times=2)


def test_a_directory_that_another_process_made_again_belongs_to_that_process(
    bucket: Bucket, known: KnownObjects, trials: Trials
) -> None:
    with proxy_of(bucket, cache_size=str(8 * (BLOCK_BYTES + PAGE_BYTES))) as proxy:
        assert known.read_all(proxy.address) == RIGHT
        proxy.settle()
        names = [path.relative_to(proxy.cache_dir) for path in block_files(proxy.cache_dir)]
        shutil.rmtree(proxy.cache_dir)
        with closing(BlockDir.open(proxy.cache_dir)):
            # By chance the other process has blocks of the same names.
            for name in names:
                # Two of the files may lie in one directory.
                (proxy.cache_dir / name).parent.mkdir(parents=True, exist_ok=True)
                (proxy.cache_dir / name).write_bytes(b"his")
            assert read(proxy, known, random.Random(7)) == {RIGHT}
            proxy.settle()
            trials.record("disk", "gone, and made again by another process", RIGHT, times=36)
            proxy.stop()
            left = {path.relative_to(proxy.cache_dir) for path in proxy.cache_dir.rglob("*") if path.is_file()}
            assert left == {*names, Path("outrider-cache")}
        proxy.start()


class Mounted:
    """A tmpfs of 2 MiB at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def mount(self) -> bool:
        self.path.mkdir(exist_ok=True)
        words = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(self.path)]
        return subprocess.run(words, capture_output=True, check=False).returncode == 0

    def unmount(self) -> None:
        # The unmount is lazy: as with a network disk that goes away, open files stay open.
        subprocess.run(["umount", "-l", str(self.path)], capture_output=True, check=False)


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Mounted]:
    small = Mounted(tmp_path / "small")
    if os.geteuid() != 0 or not small.mount():
        pytest.skip("nothing may be mounted here")
    yield small
    small.unmount()


@pytest.mark.parametrize("known_s", [0.0, float("inf")], ids=["seen", "unseen"])
def test_a_file_system_that_is_really_full(
    known_s: float,
    mounted: Mounted,
    bucket: Bucket,
    known: KnownObjects,
    trials: Trials,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The free space is measured before a fill, or it was measured a moment ago and is believed. The tmpfs has 2 MiB, of
    # which the objects need 1.33; the budget allows far more.
    monkeypatch.setattr(disk_limits, "_FREE_KNOWN_S", known_s)
    hog = mounted.path / "hog"
    with proxy_of(bucket, cache_dir=str(mounted.path / "cache")) as proxy:
        for _ in range(rounds(2)):
            with RawConnection(proxy.address) as connection:
                assert known.read(connection, "0") == RIGHT
            proxy.settle()
            cached = len(proxy.outrider.store)
            hog.write_bytes(bytes(os.statvfs(mounted.path).f_bavail * 4096))
            assert read(proxy, known, random.Random(4)) == {RIGHT}
            proxy.settle()
            trials.record("disk", "full: a real file system", RIGHT, times=36)
            assert len(proxy.outrider.store) <= cached < BLOCKS, "the file system was not full"
            assert (proxy.metric("outrider_store_errors_total") > 0) is (known_s > 0)
            hog.unlink()
            recovered(proxy, known)
            proxy.stop()
            shutil.rmtree(proxy.cache_dir)
            proxy.start()


def test_a_file_system_that_is_unmounted_and_another_mounted(
    mounted: Mounted, bucket: Bucket, known: KnownObjects, trials: Trials
) -> None:
    with proxy_of(bucket, cache_dir=str(mounted.path / "cache")) as proxy:
        for _ in range(rounds(2)):
            recovered(proxy, known)
            mounted.unmount()
            assert read(proxy, known, random.Random(5)) == {RIGHT}
            proxy.settle()
            trials.record("disk", "gone: really unmounted", RIGHT, times=36)
            assert mounted.mount()
            proxy.cache_dir.mkdir()
            assert read(proxy, known, random.Random(6)) == {RIGHT}
            proxy.settle()
            trials.record("disk", "an empty file system in its place", RIGHT, times=36)


# -- at a start ---------------------------------------------------------------------------------------------------


def test_a_snapshot_that_cannot_be_read_is_replaced_by_a_scan(
    bucket: Bucket, known: KnownObjects, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    with proxy_of(bucket) as proxy:
        recovered(proxy, known)
        proxy.stop()
        read_bytes = Path.read_bytes

        def failing(path: Path) -> bytes:
            if path.name == "index":
                raise OSError(errno.EIO, "sick sector")
            return read_bytes(path)

        with monkeypatch.context() as sick:
            sick.setattr(Path, "read_bytes", failing)
            proxy.start()
        assert len(proxy.outrider.store) == BLOCKS
        recovered(proxy, known)
        trials.record("disk", "errors on reading the snapshot", RIGHT, times=5)


# -- room, when many want it at once --------------------------------------------------------------------------------


class ByHand(ThreadPoolExecutor):
    """An executor whose jobs end when the test says so, in any order."""

    def __init__(self) -> None:
        super().__init__(1)
        self.waiting: list[Callable[[], None]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()

        def work() -> None:
            try:
                future.set_result(fn(*args, **kwargs))
            except Exception as error:  # noqa: BLE001 - it is the caller's, as with threads
                future.set_exception(error)

        self.waiting.append(work)
        return future


async def test_the_budget_holds_for_any_order_in_which_room_is_made_and_taken(tmp_path: Path, trials: Trials) -> None:
    room = 4
    for seed in range(rounds(8, of=40)):
        chance = random.Random(seed)
        store = Disk(tmp_path / str(seed), room * FILE)
        await store.write(*(meta_of(index) for index in range(room)))
        store.store.disks[0].work.threads.shutdown()
        store.store.disks[0].work.threads = threads = ByHand()
        outstanding = [asyncio.create_task(store.store.create(meta_of(10 + number))) for number in range(room)]
        while not all(task.done() for task in outstanding):
            store.keep_budget()
            if threads.waiting and chance.random() < 0.4:
                threads.waiting.pop(chance.randrange(len(threads.waiting)))()
            else:
                # The free space is measured again from time to time.
                store.clock.advance(chance.choice([0.0, 0.6, 1.1]))
                await asyncio.sleep(0)
        store.keep_budget()
        assert on_disk(store.root) <= room * FILE
        assert store.metrics.value("outrider_evicted_blocks_total") == room
        store.close()
        trials.record("disk", "many want room at once, in any order", "no more than the budget", times=room)
