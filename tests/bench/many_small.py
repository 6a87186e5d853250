"""The CPU cost of warm small objects, when they outnumber the files that stay open, and when they are not in memory.

One object a sample, as DELI reads them. `python -m tests.bench.many_small` prints CPU time of the proxy a read, and
reads a second, beside those of a few objects; and the memory that it takes to know all of them. The limit of open files
is so low that most blocks' files are closed.
"""

from __future__ import annotations

import argparse
import os
import random
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from tests.bench import clients, procs
from tests.bench.cold_pages import drop_pages
from tests.support.bucket import Bucket
from tests.support.proxy import ServedProxy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

NAME = "many-small"
OBJECT_BYTES = 16 * 1024
OPEN_FILES = 2048
"""A quarter of these descriptors are for blocks."""
CONNECTIONS = 8
ROUNDS = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=8000, help="number of objects; the few are 256 of them")
    count = max(256, parser.parse_args().objects)
    with tempfile.TemporaryDirectory(prefix="outrider-many-small-") as directory, Bucket() as bucket:
        keys = [f"sample-{number:07}" for number in range(count)]
        fill(bucket, keys)
        proxy = ServedProxy(bucket, Path(directory), freshness="immutable")
        proxy.argv = ["prlimit", f"--nofile={OPEN_FILES}", *proxy.argv]
        with proxy:
            epochs: dict[str, Callable[[], tuple[float, float]]] = {
                "a few": lambda: read(proxy, keys[:256] * (count // 256)),
                "all of them": lambda: read(proxy, shuffled(keys)),
                "all of them, pages not in memory": lambda: read(proxy, shuffled(keys), proxy.cache_dir),
            }
            proxy.settle()
            empty = procs.rss_bytes(proxy.pid)
            read(proxy, keys)
            proxy.settle()
            grown = procs.rss_bytes(proxy.pid) - empty
            told: dict[str, list[tuple[float, float]]] = {name: [] for name in epochs}
            for _ in range(ROUNDS):
                for name, measure in epochs.items():
                    told[name].append(measure())
    print(f"memory: {grown / 1e6:.0f} MB more than empty, {grown / count / 1e3:.1f} kB an object")
    few_us, few_s = (median(part) for part in zip(*told["a few"], strict=True))
    for name, rounds in told.items():
        cpu_us, reads_s = (median(part) for part in zip(*rounds, strict=True))
        print(
            f"{name}: {cpu_us:.0f} us of CPU a read, {reads_s:.0f} reads/s "
            f"({cpu_us / few_us:.2f} x the CPU and {reads_s / few_s:.2f} x the reads of a few)"
        )


def fill(bucket: Bucket, keys: Sequence[str]) -> None:
    bucket.make_bucket(NAME)
    client, body = bucket.client(), os.urandom(OBJECT_BYTES)
    with ThreadPoolExecutor(8) as writers:
        list(writers.map(lambda key: client.put_object(Bucket=NAME, Key=key, Body=body), keys))
    client.close()


def shuffled(keys: Sequence[str]) -> list[str]:
    return random.sample(keys, len(keys))


def read(proxy: ServedProxy, keys: Sequence[str], cold: Path | None = None) -> tuple[float, float]:
    """CPU time of the proxy for each read in microseconds, and reads a second. `cold`: the cache's pages are dropped
    first."""
    proxy.settle()
    if cold is not None:
        drop_pages(cold, larger_than=0)
    before = procs.cpu_s(proxy.pid)
    urls = [f"{proxy.endpoint}/{NAME}/{key}" for key in keys]
    took = clients.one_by_one(urls, OBJECT_BYTES, CONNECTIONS)
    return (procs.cpu_s(proxy.pid) - before) / len(keys) * 1e6, len(keys) / took.seconds


if __name__ == "__main__":
    main()
