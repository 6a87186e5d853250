"""Reads from the kernel's page cache, with real files; by mincore on file systems without RWF_NOWAIT."""

from __future__ import annotations

import errno
import mmap
import os
from typing import TYPE_CHECKING, Any

import pytest

from outrider import pagecache
from outrider.adapters.disk.block_dir import BlockDir
from outrider.core.memo import Memo

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BYTES = os.urandom(300_000)


def _slow_disk(preadv: Any, fd: int, memory: Any, offset: int, flags: int) -> int:
    """The kernel's answer on a slow disk: the bytes in memory, up to the first page that is not.

    The kernel begins to read the missing page when it is asked. A real disk may be so fast that the page is there with
    the answer, and the test would then depend on the machine's speed.
    """
    assert flags == os.RWF_NOWAIT, "the read would wait for the disk"
    asked = sum(map(len, memory))
    there = 0
    while there < asked and pagecache.is_in_memory(fd, offset + there):
        there = min(asked, there + mmap.PAGESIZE - (offset + there) % mmap.PAGESIZE)
    if not there:
        raise BlockingIOError(errno.EAGAIN, "a disk would have to be asked")
    (buffer,) = memory
    return int(preadv(fd, (memoryview(buffer)[:there],), offset))


def _without_nowait(preadv: Any, fd: int, memory: Any, offset: int, flags: int) -> int:
    if flags:
        raise OSError(errno.EOPNOTSUPP, "an overlayfs does not know that")
    assert pagecache.is_in_memory(fd, offset, sum(map(len, memory))), "the read would wait for the disk"
    return int(preadv(fd, memory, offset))


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[int]:
    """A file whose pages are not in memory."""
    path = tmp_path / "file"
    path.write_bytes(BYTES)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if pagecache.is_in_memory(file.fileno(), 0):
            pytest.skip("a file system that lies in memory")
        yield file.fileno()


@pytest.fixture(params=[_slow_disk, _without_nowait], ids=["a slow disk", "without RWF_NOWAIT"])
def fd(request: pytest.FixtureRequest, cold: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """The same file, on a slow disk, or on a file system without RWF_NOWAIT."""
    preadv = os.preadv

    def asked(fd: int, memory: Any, offset: int, flags: int = 0) -> int:
        return request.param(preadv, fd, memory, offset, flags)  # type: ignore[no-any-return]

    monkeypatch.setattr(os, "preadv", asked)
    return cold


def test_a_read_at_once_gives_the_right_bytes_or_none(cold: int) -> None:
    assert pagecache.read_known(cold, 4096) in (None, BYTES[:4096])


def test_bytes_that_were_read_can_be_read_at_once(cold: int) -> None:
    os.pread(cold, len(BYTES), 0)
    assert pagecache.read_known(cold, 4096) == BYTES[:4096]
    assert pagecache.in_memory(cold, 5000, 200_000)


def test_bytes_only_on_disk_are_not_read_at_once(fd: int) -> None:
    assert pagecache.read_known(fd, 4096) is None


def test_bytes_only_on_disk_are_not_sent_at_once(fd: int) -> None:
    assert not pagecache.in_memory(fd, 5000, 200_000)


def test_bytes_only_on_disk_are_not_copied_at_once(fd: int) -> None:
    assert not pagecache.read_in_memory(fd, 5000, memoryview(bytearray(20_000)))


def test_bytes_that_were_read_can_be_opened_and_read_at_once(fd: int) -> None:
    os.pread(fd, len(BYTES), 0)
    into = bytearray(20_000)
    assert pagecache.read_known(fd, 4096) == BYTES[:4096]
    assert pagecache.in_memory(fd, 5000, 200_000)
    assert pagecache.read_in_memory(fd, 5000, memoryview(into))
    assert into == BYTES[5000:25_000]


def test_a_single_page_that_is_not_in_memory_is_noticed(fd: int) -> None:
    os.pread(fd, len(BYTES), 0)
    os.posix_fadvise(fd, 8192, 4096, os.POSIX_FADV_DONTNEED)
    if pagecache.is_in_memory(fd, 8192):
        pytest.skip("the kernel has them by many")
    assert not pagecache.is_in_memory(fd, 5000, 20_000)
    assert not pagecache.read_in_memory(fd, 5000, memoryview(bytearray(20_000)))


@pytest.mark.parametrize(
    ("offset", "count"), [(5000, 290_000), (100_000, 40_000)], ids=["a run in the middle", "the last page's own run"]
)
def test_each_run_of_pages_is_checked_before_it_is_sent(fd: int, offset: int, count: int) -> None:
    os.pread(fd, len(BYTES), 0)
    assert pagecache.in_memory(fd, offset, count)
    os.posix_fadvise(fd, 128 * 1024, 128 * 1024, os.POSIX_FADV_DONTNEED)
    if pagecache.is_in_memory(fd, 128 * 1024):
        pytest.skip("the kernel has them by many")
    assert not pagecache.in_memory(fd, offset, count)


def test_a_file_that_is_too_short_gives_the_bytes_that_it_has(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"abc")
    with (tmp_path / "short").open("rb") as file:
        assert pagecache.read_known(file.fileno(), 4096) == b"abc"
        assert not pagecache.read_in_memory(file.fileno(), 0, memoryview(bytearray(10)))


def test_files_on_a_file_system_that_may_be_remote_are_not_opened_on_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not pagecache.opens_at_once(b"/proc")
    assert not pagecache.opens_at_once(b"/nothing/there")
    monkeypatch.setattr(pagecache, "opens_at_once", lambda path: False)
    directory = BlockDir.open(tmp_path)
    assert not directory.can_probe_memory
    directory.close()


def test_after_another_disk_was_mounted_the_kind_of_its_file_system_is_looked_up_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []
    is_local = True

    def opens_at_once(path: bytes) -> bool:
        asked.append(path)
        return is_local

    monkeypatch.setattr(pagecache, "opens_at_once", opens_at_once)
    root = tmp_path / "c"
    directory = BlockDir.open(root)
    try:
        assert directory.can_probe_memory
        for is_local in (False, True):
            root.rename(tmp_path / f"gone-{is_local}")
            root.mkdir()
            directory.hold()
            assert directory.can_probe_memory is is_local
    finally:
        directory.close()
    assert set(asked) == {os.fsencode(root / "v2")}


@pytest.mark.parametrize(
    ("kind", "swaps", "stays"),
    [
        (0x01021994, "Filename Type Size Used Priority\n", True),
        (0x01021994, "Filename Type Size Used Priority\n/swapfile file 1024 0 -2\n", False),
        (0x01021994, None, False),
        (0xEF53, "Filename Type Size Used Priority\n", False),
        (None, "Filename Type Size Used Priority\n", False),
    ],
    ids=[
        "a tmpfs",
        "a tmpfs that may be swapped out",
        "it is not known whether there is swap space",
        "a disk",
        "nothing",
    ],
)
def test_only_files_of_a_tmpfs_without_swap_space_stay_in_memory(
    kind: int | None, swaps: str | None, stays: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if swaps is not None:
        (tmp_path / "swaps").write_text(swaps)
    monkeypatch.setattr(pagecache, "_SWAPS", tmp_path / "swaps")
    monkeypatch.setattr(pagecache, "_kind_of", lambda path: kind)
    assert pagecache.stays_in_memory(b"/anywhere") == stays


def test_a_file_that_stays_in_memory_is_read_without_a_question(cold: int, monkeypatch: pytest.MonkeyPatch) -> None:
    flags: list[int] = []
    preadv = os.preadv

    def noted(fd: int, memory: Any, offset: int, flag: int = 0) -> int:
        flags.append(flag)
        return preadv(fd, memory, offset)

    monkeypatch.setattr(os, "preadv", noted)
    into = bytearray(20_000)
    assert pagecache.read_in_memory(cold, 5000, memoryview(into), stays=True)
    assert into == BYTES[5000:25_000]
    assert flags == [0]
    assert not pagecache.read_in_memory(cold, len(BYTES) - 1, memoryview(into), stays=True), "the file is too short"


@pytest.mark.parametrize("stays", [False, True])
def test_without_nowait_the_pages_of_a_tmpfs_are_not_looked_at(
    stays: bool, cold: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(fd: int, memory: Any, offset: int, flag: int = 0) -> int:
        raise OSError(errno.EOPNOTSUPP, "neither a tmpfs nor an overlayfs knows that")

    monkeypatch.setattr(os, "preadv", refused)
    monkeypatch.setattr(pagecache, "_devices", Memo[int, bool](4))
    monkeypatch.setattr(pagecache, "stays_in_memory", lambda path: stays)
    assert pagecache.in_memory(cold, 0, len(BYTES)) == stays
