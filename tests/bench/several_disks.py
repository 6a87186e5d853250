"""Warm streams from two disks beside those from one: `python -m tests.bench.several_disks`, as root.

The disks are FUSE mounts of `bindfs`, each of which gives so many bytes a second (`--mb-s`). Their pages are dropped
before each run. The goal: two disks give 1.9 times what one gives.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.cold_pages import drain, drop_pages, fill
from tests.support.bucket import Bucket
from tests.support.child import Child
from tests.support.proxy import ServedProxy

if TYPE_CHECKING:
    from collections.abc import Iterator

STREAMS = 8
BLOCK_BYTES = 2**20
"""Small, so that the shares of two disks are even."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb-s", type=int, default=100, help="MB a second that each disk gives")
    parser.add_argument("--objects", type=int, default=4, help="how many objects of 256 MiB are read")
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="outrider-disks-") as directory, Bucket() as bucket, ExitStack() as stack:
        fill(bucket, words.objects)
        disks = [
            stack.enter_context(limited_disk(Path(directory) / name, words.mb_s * 10**6)) for name in ("one", "two")
        ]
        one, two = (bytes_per_s(bucket, Path(directory), disks[:count], words.objects) for count in (1, 2))
    print(f"one disk: {one / 1e6:.0f} MB/s; two: {two / 1e6:.0f} MB/s, {two / one:.2f} times as much, goal 1.9")


def bytes_per_s(bucket: Bucket, directory: Path, disks: list[Path], objects: int) -> float:
    roots = [disk / f"cache-{len(disks)}" for disk in disks]
    flags = {"cache_size": "8GiB", "block_size": str(BLOCK_BYTES), "freshness": "immutable", "prefetch": "off"}
    proxy = ServedProxy(bucket, directory, **flags)
    place = proxy.argv.index("--cache-dir")
    proxy.argv[place : place + 2] = [word for root in roots for word in ("--cache-dir", str(root))]
    proxy.environment["OUTRIDER_SCRUB_BANDWIDTH"] = "0"
    with proxy, ThreadPoolExecutor(STREAMS) as streams:
        keys = [f"big-{number}" for number in range(objects)]
        list(streams.map(lambda key: drain(proxy, key), keys))
        proxy.settle()
        for root in roots:
            drop_pages(root, larger_than=0)
        began, before = time.perf_counter(), served(proxy)
        list(streams.map(lambda key: drain(proxy, key), keys))
        return (served(proxy) - before) / (time.perf_counter() - began)


def served(proxy: ServedProxy) -> float:
    """The bytes of hits so far."""
    return float(proxy.status()["served_bytes"]["disk"])


@contextmanager
def limited_disk(place: Path, bytes_per_s: int) -> Iterator[Path]:
    files = place.with_name(f"{place.name}-files")
    files.mkdir()
    place.mkdir()
    log = place.with_name(f"{place.name}.log")
    daemon = Child(["bindfs", "-f", f"--read-rate={bytes_per_s}", str(files), str(place)], log=log)
    try:
        daemon.wait_until(lambda: os.path.ismount(place), what="bindfs", deadline_s=10.0)
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)
        daemon.stop()


if __name__ == "__main__":
    main()
