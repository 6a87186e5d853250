"""SIGKILL at any moment, and power loss: the next start repairs the directory, and clients get right bytes."""

from __future__ import annotations

import asyncio
import http.client
import os
import random
import signal
import threading
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
import xxhash

from outrider import app
from outrider import settings as outrider_settings
from outrider.adapters.disk import block_io
from outrider.adapters.disk.block_store import DiskBlockStore
from outrider.app import running
from outrider.composition import Outrider
from outrider.core.cache import block_file
from outrider.core.cache.block_file import PAGE_BYTES
from tests.support.damage import AFTER_POWER_LOSS, block_files
from tests.support.proxy import Proxy, ServedProxy
from tests.support.rawhttp import RawConnection
from tests.support.trials import BROKEN, KIB, RIGHT, KnownObjects, WrongBytes, rounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.trials import Trials

BLOCK_BYTES = 64 * KIB
# The cache holds 24 of the objects' 96 blocks, and so most reads evict.
BUDGET_BYTES = 24 * (BLOCK_BYTES + PAGE_BYTES)
READERS = 3
# This many reads bring every operation at which a running proxy can be killed.
READS = 20


@pytest.fixture(scope="module")
def known(bucket: Bucket) -> KnownObjects:
    return KnownObjects.make(bucket, "crash", 24)


def on_disk(root: Path) -> int:
    """The bytes of all files that the store keeps there, in full pages."""
    sizes = [path.stat().st_size for part in ("v2", "tmp") for path in (root / part).rglob("*") if path.is_file()]
    return sum(-(-size // PAGE_BYTES) * PAGE_BYTES for size in sizes)


class Mortal(ServedProxy):
    """`outrider serve` with a small cache. It kills itself at the operation that `KILL_POINT` names
    (`tests.support.kill_points`)."""

    def __init__(self, bucket: Bucket, directory: Path) -> None:
        super().__init__(
            bucket, directory, cache_size=str(BUDGET_BYTES), block_size=str(BLOCK_BYTES), freshness="immutable",
            prefetch="off",
        )  # fmt: skip
        self.argv[self.argv.index("outrider")] = "tests.support.kill_points"
        self.environment["PYTHONPATH"] += ":."

    def start_to_die(self, point: str) -> bool:
        """False if the proxy died before it served."""
        self.environment["KILL_POINT"] = point
        try:
            self.start()
        except RuntimeError:
            assert self.wait() == -signal.SIGKILL, self.log.read_text()[-4000:]
            return False
        finally:
            del self.environment["KILL_POINT"]
        return True

    @property
    def is_dead(self) -> bool:
        assert self._child is not None
        return not self._child.running

    def outlives_an_examination(self) -> bool:
        """False if the proxy died before the first read. The scrubber reads files from the start on, without any
        read."""
        try:
            self.examine()
        except (OSError, http.client.HTTPException):
            assert self.wait() == -signal.SIGKILL, self.log.read_text()[-4000:]
            return False
        return True

    def examine(self) -> None:
        """After a start and before the first read, the index knows exactly the files on disk, and they keep the
        budget."""
        assert [path.name for path in (self.cache_dir / "tmp").iterdir()] == ["descriptors"]
        assert not list(self.cache_dir.glob("*.part"))
        assert on_disk(self.cache_dir) == self.status()["bytes"] <= BUDGET_BYTES


def load(proxy: Mortal, known: KnownObjects, seed: int) -> list[str]:
    """The outcomes of the reads, until all were made or the proxy died."""
    seen: list[str] = []
    wrong: list[WrongBytes] = []

    def read(number: int) -> None:
        chance = random.Random(seed * READERS + number)
        try:
            with RawConnection(proxy.address) as connection:
                for _ in range(READS):
                    seen.append(known.read_any(connection, chance))
                    if seen[-1] != RIGHT:
                        return
        except WrongBytes as error:
            wrong.append(error)
        except OSError:
            return

    threads = [threading.Thread(target=read, args=(number,)) for number in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if wrong:
        raise wrong[0]
    return seen


def summary(seen: list[str]) -> str:
    if not seen:
        return "nothing: it did not serve yet"
    return "right bytes until a broken connection" if BROKEN in seen else RIGHT


# The operations at which the proxy is killed, each with the highest count to wait for: operations of a start, of fills,
# of evictions, and of the stop.
MOMENTS = [
    ("a fill", "open tmp", 25), ("a fill", "write tmp", 40), ("a fill", "rename v2", 25),
    ("an eviction", "remove v2", 20), ("a start", "scandir v2", 12), ("a start", "open v2", 12),
    ("a start", "remove index", 1), ("the snapshot of a stop", "open index", 1),
    ("the snapshot of a stop", "write index", 1), ("the snapshot of a stop", "rename index", 1),
]  # fmt: skip


def test_killed_at_any_moment_it_starts_again_with_right_bytes_and_within_its_budget(
    bucket: Bucket, known: KnownObjects, trials: Trials, tmp_path: Path
) -> None:
    chance = random.Random(6)
    # Each operation comes up from time to time, in no fixed order.
    moments = [MOMENTS[i % len(MOMENTS)] for i in range(rounds(len(MOMENTS)))]
    chance.shuffle(moments)
    proxy = Mortal(bucket, tmp_path)
    with ExitStack() as stack:
        stack.push(proxy.__exit__)
        for number, (fault, moment, latest) in enumerate(moments):
            point = f"{moment}:{chance.randint(1, latest)}" + chance.choice(["", ":after"])
            seen: list[str] = []
            if proxy.start_to_die(point) and proxy.outlives_an_examination():
                seen = load(proxy, known, number)
                if not proxy.is_dead:
                    proxy.send(signal.SIGTERM)
                status = proxy.wait()
                assert status in (0, -signal.SIGKILL), proxy.log.read_text()[-4000:]
                assert on_disk(proxy.cache_dir) <= BUDGET_BYTES
                if status == 0:
                    continue  # the operation did not come up: an orderly stop between two kills
            trials.record("crash", f"SIGKILL in {fault}", summary(seen))
    with proxy:
        proxy.examine()
        assert known.read_all(proxy.address) == RIGHT
        proxy.settle()
        assert on_disk(proxy.cache_dir) <= BUDGET_BYTES


# -- power loss -------------------------------------------------------------------------------------------------


def served_right(proxy: Proxy, known: KnownObjects) -> None:
    """All reads give the right bytes, and the store's count of its bytes is that of the disk."""
    assert known.read_all(proxy.address) == RIGHT
    proxy.settle()
    assert on_disk(proxy.cache_dir) == proxy.outrider.store.used_bytes <= BUDGET_BYTES


@pytest.fixture
def roomy(bucket: Bucket) -> Iterator[Proxy]:
    """A cache that holds all of `few`."""
    with Proxy(
        bucket, cache_size=str(BUDGET_BYTES), block_size=str(BLOCK_BYTES), freshness="immutable", scrub_bandwidth="0"
    ) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def few(bucket: Bucket) -> KnownObjects:
    return KnownObjects.make(bucket, "power", 5)


@pytest.mark.parametrize("clean", [True, False], ids=["snapshot", "scan"])
def test_files_that_power_loss_damaged_are_found_and_never_served(
    clean: bool, roomy: Proxy, few: KnownObjects, trials: Trials
) -> None:
    chance = random.Random(clean)
    served_right(roomy, few)
    for _ in range(rounds(1)):
        for fault, damage in AFTER_POWER_LOSS.items():
            roomy.stop()
            files = chance.sample(block_files(roomy.cache_dir), 3)
            for file in files:
                damage(file, chance)
            if not clean:
                (roomy.cache_dir / "index").unlink()
            roomy.start()
            if not clean:
                assert on_disk(roomy.cache_dir) == roomy.outrider.store.used_bytes, (
                    "the scan left a file that the index does not know"
                )
            served_right(roomy, few)
            # The object's two other blocks were still hits.
            assert roomy.metric("outrider_served_bytes_total", source="disk") > 0
            trials.record("crash", f"power loss: {fault}", RIGHT, times=len(files))


def stale_snapshot(proxy: Proxy, _: bytes) -> None:
    """A snapshot of the last stop, in a directory that has changed since: blocks went, and other blocks have their
    names."""
    files = block_files(proxy.cache_dir)
    for file in files[::3]:
        file.unlink()
    for file, other in zip(files[1::3], files[2::3], strict=False):
        file.write_bytes(other.read_bytes())


def flipped_snapshot(proxy: Proxy, chance: bytes) -> None:
    """The snapshot can be read, but one entry names another block than the file that is there."""
    index = proxy.cache_dir / "index"
    lines = index.read_bytes().splitlines(keepends=True)
    pages = [number for number, line in enumerate(lines) if b'"numbers":"' in line]
    number = pages[chance[0] % len(pages)]
    line = bytearray(lines[number])
    line[-4] ^= 1
    lines[number] = bytes(line)
    index.write_bytes(b"".join(lines))


def half_a_snapshot(proxy: Proxy, version: int) -> None:
    """A snapshot of that format with a right checksum. Its contents are not true: they mean something else there."""
    index = proxy.cache_dir / "index"
    head, *lines = index.read_bytes().splitlines(keepends=True)
    body = head.replace(b":5", b":%d" % version) + b"".join(lines[: len(lines) // 2])
    index.write_bytes(body + b'{"xxh3":"%s"}\n' % xxhash.xxh3_64(body).hexdigest().encode())


def older_snapshot(proxy: Proxy, _: bytes) -> None:
    half_a_snapshot(proxy, 1)


def newer_snapshot(proxy: Proxy, _: bytes) -> None:
    half_a_snapshot(proxy, 6)


@pytest.mark.parametrize("spoil", [stale_snapshot, flipped_snapshot, older_snapshot, newer_snapshot])
def test_a_snapshot_that_does_not_fit_the_directory_makes_no_wrong_byte_and_no_orphan(
    spoil: Callable[[Proxy, bytes], None], roomy: Proxy, few: KnownObjects, trials: Trials
) -> None:
    chance = random.Random(spoil.__name__)
    served_right(roomy, few)
    for _ in range(rounds(1)):
        roomy.stop()
        spoil(roomy, chance.randbytes(4096))
        there = {path.name for path in block_files(roomy.cache_dir)}
        roomy.start()
        if spoil is not stale_snapshot:
            assert {block_io.file_name(block) for block in roomy.outrider.store.present()} == there, (
                "the scan missed a block"
            )
        served_right(roomy, few)
        trials.record("crash", f"power loss: {spoil.__name__.replace('_', ' ')}", RIGHT)


def test_a_snapshot_is_removed_durably_before_its_blocks_are_adopted(
    roomy: Proxy, few: KnownObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    # If the snapshot came back after a power loss, blocks written later would be on the disk and in no budget.
    index = roomy.cache_dir / "index"
    served_right(roomy, few)
    roomy.stop()
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def seen(fd: int) -> None:
        fsync(fd)
        synced.append((os.readlink(f"/proc/self/fd/{fd}"), index.exists()))

    adopt = DiskBlockStore.adopt

    def adopted(self: DiskBlockStore, *args: Any) -> bool:
        assert synced == [(str(roomy.cache_dir), False)], "a block was adopted before the removal was synced"
        return adopt(self, *args)

    monkeypatch.setattr(os, "fsync", seen)
    monkeypatch.setattr(DiskBlockStore, "adopt", adopted)
    roomy.start()
    assert len(roomy.outrider.store) == 20


# -- two versions of the format -----------------------------------------------------------------------------------


def of_format(path: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a block file of that format: it has right checksums, and its payload means something else there."""
    raw = path.read_bytes()
    meta, _ = block_file.decode_header(raw[:PAGE_BYTES])
    payload = bytes(byte ^ 0xFF for byte in raw[PAGE_BYTES:])
    with monkeypatch.context() as patch:
        patch.setattr(block_file, "FORMAT", version)
        header = block_file.Header(meta).sealed(block_file.PayloadChecksum(payload).digest())
    path.write_bytes(header + payload)


@pytest.mark.parametrize("clean", [True, False], ids=["snapshot", "scan"])
@pytest.mark.parametrize("version", [block_file.FORMAT - 1, block_file.FORMAT + 1])
def test_blocks_of_another_format_are_discarded_and_never_misread(
    version: int, clean: bool, roomy: Proxy, few: KnownObjects, monkeypatch: pytest.MonkeyPatch, trials: Trials
) -> None:
    served_right(roomy, few)
    roomy.stop()
    for path in block_files(roomy.cache_dir)[::2]:
        of_format(path, version, monkeypatch)
    if not clean:
        (roomy.cache_dir / "index").unlink()
    roomy.start()
    served_right(roomy, few)
    assert len(roomy.outrider.store) == 20
    trials.record("crash", f"block files of {'an older' if version < block_file.FORMAT else 'a newer'} format", RIGHT)


# -- ready before the directory is known --------------------------------------------------------------------------


class Gate:
    """A disk that does not answer until the gate is opened, and the list of calls until then."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.asked: list[str] = []

    def before(self, call: Callable[..., Any], place: str) -> Callable[..., Any]:
        def gated(path: Any, *args: Any, **named: Any) -> Any:
            if str(path) == place:
                self.asked.append(str(path))
                assert self.open.wait(60)
            return call(path, *args, **named)

        return gated


@pytest.fixture
def stopped(roomy: Proxy, few: KnownObjects) -> Proxy:
    served_right(roomy, few)
    roomy.stop()
    return roomy


@asynccontextmanager
async def started(stopped: Proxy) -> AsyncIterator[Outrider]:
    """Start as `Proxy.start` does, without waiting for the index."""
    with patch.dict(os.environ, stopped.environment):
        settings = outrider_settings.load(stopped.settings, environ={})
        async with running(settings) as outrider:
            yield outrider


async def test_ready_does_not_wait_for_the_scan(
    stopped: Proxy, few: KnownObjects, monkeypatch: pytest.MonkeyPatch, trials: Trials
) -> None:
    (stopped.cache_dir / "index").unlink()
    gate = Gate()
    blocks = str(stopped.cache_dir / "v2")
    monkeypatch.setattr(os, "scandir", gate.before(os.scandir, blocks))
    opened: list[str] = []
    os_open = os.open

    def counted(path: Any, *args: Any, **named: Any) -> int:
        if os.fsdecode(path).startswith(blocks):
            opened.append(os.fsdecode(path))
        return os_open(path, *args, **named)

    monkeypatch.setattr(os, "open", counted)
    try:
        async with asyncio.timeout(60), started(stopped) as outrider:
            assert outrider.ready
            assert not outrider.indexed.is_set()
            assert (gate.asked, opened) == ([blocks], []), "the scan has begun, and no file was read"
            host, _, port = outrider.listen.rpartition(":")
            assert await asyncio.to_thread(few.read_all, (host, int(port))) == RIGHT
            assert len(outrider.store) == 0, "no block is admitted before the directory has been scanned"
            gate.open.set()
            await outrider.indexed.wait()
            assert len(outrider.store) == 20
    finally:
        gate.open.set()
    trials.record("crash", "a read before the directory was scanned", RIGHT, times=len(few.objects))


@pytest.mark.parametrize("length", ["short", "long"])
async def test_ready_waits_a_moment_for_a_short_snapshot_and_not_at_all_for_a_long_one(
    length: str, stopped: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate()
    monkeypatch.setattr(os, "replace", gate.before(os.replace, str(stopped.cache_dir / "index")))
    if length == "long":
        # If the start waited for this snapshot at all, it would wait without end.
        monkeypatch.setattr(app, "_INDEX_WAIT_BYTES_MAX", 1)
        monkeypatch.setattr(app, "_INDEX_WAIT_S", None)
    try:
        async with asyncio.timeout(60), started(stopped) as outrider:
            assert outrider.ready
            assert not outrider.indexed.is_set()
            gate.open.set()
            await outrider.indexed.wait()
    finally:
        gate.open.set()


async def test_after_a_clean_stop_the_index_is_complete_before_the_first_read(
    stopped: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_INDEX_WAIT_S", None)
    async with asyncio.timeout(60), started(stopped) as outrider:
        assert outrider.indexed.is_set()
        assert len(outrider.store) == 20
