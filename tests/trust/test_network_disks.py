"""A cache directory on a file system that asks another process or machine (NFS, FUSE), where each call may wait: no
event loop makes one."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from outrider import pagecache
from outrider.core.cache.block_file import PAGE_BYTES
from tests.support.faulty_disk import HangingDisk, can_hang
from tests.support.proxy import Proxy, ServedProxy
from tests.support.rawhttp import RawConnection, request
from tests.support.trials import KIB, RIGHT, KnownObjects

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.bucket import Bucket

CALLS = (
    "close", "fstat", "fsync", "mkdir", "open", "pread", "preadv", "pwritev", "rename", "scandir", "sendfile", "stat",
    "statvfs", "unlink",
)  # fmt: skip
# A hit of 5 KB is copied, and one of 200 KiB is sent by the kernel, where the disk is local.
SIZES = (5000, 200 * KIB)
# A request that waits for the disk is answered after 10 s.
_AT_ONCE_S = 5.0


@pytest.fixture(scope="module", params=SIZES, ids=["small", "large"])
def known(request: pytest.FixtureRequest, bucket: Bucket) -> KnownObjects:
    return KnownObjects.make(bucket, f"remote-{request.param}", 6, request.param)


def test_no_loop_makes_a_call_on_a_remote_disk(
    bucket: Bucket, known: KnownObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pagecache, "opens_at_once", lambda path: False)
    monkeypatch.setattr(pagecache, "stays_in_memory", lambda path: False)
    # Room for four of the six objects: files are removed, too.
    size = 4 * (len(known.objects["0"]) + PAGE_BYTES)
    calls: Counter[str] = Counter()
    waits: Counter[str] = Counter()
    with Proxy(bucket, block_size="256KiB", freshness="immutable", cache_size=str(size)) as proxy:

        def watched(name: str) -> Callable[..., Any]:
            call = getattr(os, name)

            def made(*args: Any, **named: Any) -> Any:
                if any(_is_below(proxy.cache_dir, each) for each in args[:2]):
                    calls[name] += 1
                    waits[name] += asyncio._get_running_loop() is not None
                return call(*args, **named)

            return made

        with monkeypatch.context() as patch, RawConnection(proxy.address) as connection:
            for name in CALLS:
                patch.setattr(os, name, watched(name))
            for key in "000123455":
                assert known.read(connection, key) == RIGHT
                proxy.settle()
        assert proxy.metric("outrider_served_bytes_total", source="disk") > 0
        assert proxy.metric("outrider_evicted_blocks_total") > 0
    assert {"pread", "close", "unlink", "rename"} <= calls.keys()
    assert +waits == Counter()


def test_a_remote_disk_that_hangs_keeps_nobody_waiting_who_does_not_need_it(bucket: Bucket, tmp_path: Path) -> None:
    if not can_hang():
        pytest.skip("no root, no FUSE, or no bindfs")
    known = KnownObjects.make(bucket, "remote-hangs", 1)
    with HangingDisk(tmp_path / "disk") as disk:
        proxy = ServedProxy(bucket, tmp_path, cache_dir=str(tmp_path / "disk" / "cache"), freshness="immutable")
        proxy.forked = False
        proxy.argv = disk.wrapped(proxy.argv)
        with proxy, RawConnection(proxy.address) as one, RawConnection(proxy.address, _AT_ONCE_S) as other:
            assert [known.read(one, "0") for _ in range(2)] == [RIGHT, RIGHT]
            proxy.settle()
            disk.hang()
            try:
                one.send(request("GET", f"/{known.name}/0"))
                # Both at least come after the read of the disk has begun.
                for _ in range(2):
                    assert other.ask("HEAD", f"/{known.name}/0").status == 200
            finally:
                disk.go_on()
            answer = one.read_answer()
            assert (answer.status, answer.body) == (200, known.objects["0"])


def _is_below(root: Path, where: Any) -> bool:
    """`where`: a path or a descriptor."""
    if isinstance(where, int):
        try:
            where = os.readlink(f"/proc/self/fd/{where}")
        except OSError:
            return False
    return isinstance(where, str | bytes | os.PathLike) and os.fsdecode(where).startswith(str(root))
