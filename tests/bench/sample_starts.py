"""Starts of a proxy whose cache has many small objects: rows of `tests.bench.samples`.

No object is read: the block files are written here, by the product's own code, with few bytes in each.
"""

from __future__ import annotations

import hashlib
import os
import signal
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from outrider.adapters.disk.block_dir import BlockDir
from outrider.core.block_layout import BlockLayout
from outrider.core.cache import block_file
from outrider.core.cache.block_file import BlockMeta, Header
from outrider.core.model import ObjectRef, ObjectVersion
from outrider.settings import Settings
from tests.bench import procs
from tests.support.bucket import Bucket
from tests.support.child import scratch_directory
from tests.support.proxy import ServedProxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_OBJECT_BYTES = 1000
_DEADLINE_S = 3600.0
# Notes of blocks are written every ten seconds.
_NOTED_S = 15.0


def measured(count: int) -> Iterator[tuple[str, float]]:
    with ExitStack() as stack:
        directory = stack.enter_context(scratch_directory("outrider-starts-"))
        bucket = stack.enter_context(Bucket())
        proxy = ServedProxy(bucket, directory, cache_size=str(count * 40_000), freshness="immutable")
        proxy.forked, proxy.start_deadline_s = False, _DEADLINE_S
        # Its reads would be counted, too.
        proxy.environment["OUTRIDER_SCRUB_BANDWIDTH"] = "0"
        proxy.start()
        empty = procs.rss_bytes(proxy.pid)
        started_s = procs.cpu_s(proxy.pid)
        proxy.stop()
        _fill(proxy.cache_dir, bucket.endpoint, count)
        try:
            yield from _starts(proxy, count, empty, started_s)
        finally:
            if proxy.is_started:
                proxy.stop()


def _starts(proxy: ServedProxy, count: int, empty: int, started_s: float) -> Iterator[tuple[str, float]]:
    for how in ("by all headers", "after SIGKILL", "after SIGTERM"):
        began = time.monotonic()
        proxy.start()
        cpu_s, seconds = procs.cpu_s(proxy.pid), time.monotonic() - began
        assert proxy.lines("index ready")[-1]["blocks"] == count
        yield f"start {how}: CPU s", cpu_s
        yield f"start {how}: seconds", seconds
        yield f"start {how}: objects per CPU s", count / max(cpu_s - started_s, 0.01)
        proxy.wait_until(lambda: _blocks(proxy) == count, "all blocks")
        proxy.settle()
        if how == "by all headers":
            _wait_for_notes(proxy, count)
        if how != "after SIGKILL":
            yield f"memory after a start {how}: bytes an object", (procs.rss_bytes(proxy.pid) - empty) / count
        if how == "by all headers":
            yield "notes: bytes an object", (proxy.cache_dir / "landed").stat().st_size / count
            os.kill(proxy.pid, signal.SIGKILL)
        proxy.stop()


def _blocks(proxy: ServedProxy) -> int:
    return int(proxy.status()["blocks"])


def _wait_for_notes(proxy: ServedProxy, count: int) -> None:
    """Until the policy knows all blocks, and the notes have them."""
    landed = proxy.cache_dir / "landed"

    def length() -> int:
        return landed.stat().st_size if landed.exists() else 0

    proxy.wait_until(lambda: length() > 100 * count, "notes of blocks")
    last = -1
    while length() != last:
        last = length()
        time.sleep(_NOTED_S)


def _fill(root: Path, origin: str, count: int) -> None:
    directory = BlockDir.open(root)
    directory.snapshot.unlink()
    layout = BlockLayout(origin, Settings.model_fields["block_size"].default)
    payload = bytes(_OBJECT_BYTES)
    checksum, etag = block_file.PayloadChecksum(payload).digest(), f'"{hashlib.md5(payload).hexdigest()}"'
    folders = max(1, count // 1000)
    try:
        for number in range(count):
            modified = f"Mon, 23 Nov 2026 {number % 24:02}:{number // 24 % 60:02}:{number % 59:02} GMT"
            headers = (("accept-ranges", "bytes"), ("content-type", "image/jpeg"), ("last-modified", modified))
            key = f"n{number % folders:08d}/n{number % folders:08d}_{number}.JPEG"
            version = ObjectVersion(ObjectRef("samples", key), etag, _OBJECT_BYTES, headers)
            meta = BlockMeta(layout, version, 0)
            path = directory.path_of(meta.key)
            if number < 4096:
                path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(Header(meta).sealed(checksum) + payload)
    finally:
        directory.close()
