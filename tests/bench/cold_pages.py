"""The latency of small hits while another client reads cold pages: `python -m tests.bench.cold_pages`.

Cold pages are not in memory. The goal: the slowest of a hundred hits stays under 20 ms while 8 GB are read (`--gb 8`;
less by default, since its bucket is made anew).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from statistics import quantiles

from tests.support.bucket import Bucket
from tests.support.proxy import ServedProxy, s3_client
from tests.support.rawhttp import RawConnection

NAME = "cold-pages"
OBJECT_BYTES = 256 * 2**20
CHUNK_BYTES = 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gb", type=float, default=2.0, help="GB of cold pages to read")
    count = max(1, int(parser.parse_args().gb * 1e9 / OBJECT_BYTES))
    with tempfile.TemporaryDirectory(prefix="outrider-cold-pages-") as directory, Bucket() as bucket:
        fill(bucket, count)
        flags = {"cache_size": "64GiB", "freshness": "immutable", "prefetch": "off"}
        with ServedProxy(bucket, Path(directory), **flags) as proxy:
            keys = [f"big-{number}" for number in range(count)]
            for key in (*keys, "small"):
                drain(proxy, key)
            proxy.settle()
            idle = hits_while(proxy, [])
            # The small object stays in memory: its hits are measured.
            drop_pages(proxy.cache_dir, larger_than=CHUNK_BYTES)
            busy = hits_while(proxy, keys)
    print(f"p99 of a small hit: {idle[0]:.2f} ms without other reads ({idle[1]} hits)")
    print(
        f"while {count * OBJECT_BYTES / 1e9:.1f} GB of cold pages are read: {busy[0]:.2f} ms ({busy[1]} hits), goal 20"
    )


def fill(bucket: Bucket, count: int) -> None:
    bucket.make_bucket(NAME)
    client = s3_client(bucket.endpoint, (bucket.access_key, bucket.secret_key))
    body = os.urandom(OBJECT_BYTES)
    for number in range(count):
        client.put_object(Bucket=NAME, Key=f"big-{number}", Body=body)
    client.put_object(Bucket=NAME, Key="small", Body=body[:4096])
    client.close()


def drain(proxy: ServedProxy, key: str) -> None:
    with RawConnection(proxy.address, timeout_s=600) as connection:
        connection.send(f"GET /{NAME}/{key} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
        head = connection.read_head()
        while head.read(CHUNK_BYTES):
            pass


def drop_pages(cache_dir: Path, *, larger_than: int) -> None:
    """Make the kernel drop the pages of blocks larger than this; they must be on disk first."""
    for path in (cache_dir / "v2").glob("*/*"):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        if path.stat().st_size > larger_than:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def hits_while(proxy: ServedProxy, keys: list[str]) -> tuple[float, int]:
    """The p99 of small hits in ms, and their number, while `keys` are read. Without `keys`: for two seconds."""
    done = threading.Event()

    def read() -> None:
        for key in keys:
            drain(proxy, key)
        done.set()

    reader = threading.Thread(target=read) if keys else threading.Timer(2.0, done.set)
    reader.start()
    took_s = []
    with RawConnection(proxy.address) as connection:
        while not done.is_set():
            started = time.perf_counter()
            connection.ask("GET", f"/{NAME}/small")
            took_s.append(time.perf_counter() - started)
    reader.join()
    return quantiles(took_s, n=100)[-1] * 1e3, len(took_s)


if __name__ == "__main__":
    main()
