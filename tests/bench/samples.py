"""Objects that are samples: the cost of many small ones. `make bench-samples`; `BENCH="--objects 1000000"` for the size
of ImageNet.

The origin is nginx, where each key is a link to one file, without limits. The proxy has one core, its origin and the
clients another. All connections read whole objects of 10 kB.

    cold      each object once: objects a second, CPU each, and the share of the next pass that the bucket is asked for
    warm      in random order over all, at once after the cold pass and once all has settled, beside one fixed object
    restart   after SIGTERM and after SIGKILL: how long until it serves, what the bucket is asked for, reads a second
    starts    (`--only starts`) the blocks of so many objects written without a proxy: the CPU of a start by reading all
              headers, after SIGKILL and after SIGTERM; and the memory and the notes of an object
    list      (`--only list`) so many names listed page by page, direct, through the proxy, and again; and `find` over a
              mount of them
    memory    what the proxy grows by for each object, and for each of the second half of the cold pass, when open files
              and answers in memory are at their bounds; and the disk, by the bytes of the objects
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench import procs, sample_lists, sample_starts
from tests.bench.clients import Took, Wanted, wrk, wrk_fixed, wrk_once
from tests.bench.targets import NGINX
from tests.support.bucket import Bucket
from tests.support.child import Child, free_ports, program, scratch_directory
from tests.support.proxy import ServedProxy

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

NAME = "samples"
OBJECT_BYTES = 10_000
CONNECTIONS = 16
_WARM_S = 5
_APART = {"starts": sample_starts.measured, "list": sample_lists.measured}
GOALS = {
    "cold: objects/s": ">= 1,000", "cold: CPU ms an object": "<= 0.9", "cold: not kept, %": "<= 1",
    "warm at once / one fixed object": ">= 0.6", "warm settled / one fixed object": ">= 0.6",
    "memory: bytes an object": "<= 500", "disk: x the objects": "<= 1.25",
    "restart, SIGTERM: s until the index is read": "<= 3", "restart, SIGTERM: the bucket is asked, %": "<= 1",
    "restart, SIGKILL: the bucket is asked, %": "<= 1",
    "start after SIGTERM: CPU s": "<= 3", "start after SIGKILL: objects per CPU s": ">= 100,000",
    "LIST, the first time / direct": "<= 1.1", "LIST, later / direct": "<= 0.3",
    "find over the mount, the first time / LIST direct": "<= 1.1", "find over the mount, later / LIST direct": "<= 0.3",
    "mount: bytes a name": "<= 150",
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--objects", type=int, default=30_000, help="number of objects (%(default)s)")
    parser.add_argument("--only", choices=["all", *_APART], default="all", help="which rows (%(default)s)")
    parser.add_argument("--busy", type=int, default=0, help="processes of other work on each core (%(default)s)")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    chosen = parser.parse_args()
    os.environ["PATH"] = f"{os.environ.get('PATH', os.defpath)}{os.pathsep}/usr/sbin"
    results: dict[str, float] = {}
    print("| measured | | goal |\n| --- | --- | --- |")
    apart = _APART.get(chosen.only)
    rows = measured(chosen.objects, busy=chosen.busy) if apart is None else apart(chosen.objects)
    for name, value in rows:
        results[name] = value
        print(f"| {name} | {value:,.{0 if value >= 100 else 2}f} | {GOALS.get(name, '')} |", flush=True)
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(results, indent=1))


def measured(count: int, *, busy: int) -> Iterator[tuple[str, float]]:
    with ExitStack() as stack:
        directory = stack.enter_context(scratch_directory("outrider-samples-"))
        # About as many in a folder as ImageNet has.
        folders = max(1, count // 1000)
        keys = [f"n{number % folders:08d}/n{number % folders:08d}_{number}.JPEG" for number in range(count)]
        random.Random(1).shuffle(keys)
        origin = stack.enter_context(_origin(directory, keys))
        bucket = stack.enter_context(Bucket())
        proxy = ServedProxy(bucket, directory, origin, cache_size=str(count * 40_000), freshness="immutable")
        proxy.forked = False
        cores = sorted(os.sched_getaffinity(0))
        proxy.argv = [str(program("taskset")), "--cpu-list", str(cores[0]), *proxy.argv]
        os.sched_setaffinity(0, set(cores[1:]) or set(cores))
        for number, core in enumerate(cores * busy):
            spin = ["--cpu-list", str(core), sys.executable, "-c", "while True: pass"]
            argv: list[str | Path] = [program("taskset"), *spin]
            stack.callback(Child(argv, log=directory / f"busy-{number}.log").stop)
        try:
            proxy.start()
            yield from _rows(proxy, keys, directory)
        finally:
            proxy.stop()


def _rows(proxy: ServedProxy, keys: Sequence[str], directory: Path) -> Iterator[tuple[str, float]]:
    empty = procs.rss_bytes(proxy.pid)
    half = len(keys) // 2
    first, first_cpu_s, _ = _once(proxy, keys[:half], directory)
    half_full = procs.rss_bytes(proxy.pid)
    second, second_cpu_s, _ = _once(proxy, keys[half:], directory)
    further = (procs.rss_bytes(proxy.pid) - half_full) / (len(keys) - half)
    yield "cold: objects/s", len(keys) / (first.seconds + second.seconds)
    yield "cold: CPU ms an object", (first_cpu_s + second_cpu_s) / len(keys) * 1e3
    at_once = _random(proxy, keys, directory)
    proxy.settle()
    settled = _random(proxy, keys, directory)
    fixed = wrk_fixed(_url(proxy, keys[0]), None, OBJECT_BYTES, connections=CONNECTIONS, seconds=_WARM_S)
    yield "warm at once: requests/s", at_once.requests / at_once.seconds
    yield "warm settled: requests/s", settled.requests / settled.seconds
    yield "warm at once / one fixed object", at_once.requests / at_once.seconds / fixed.requests * fixed.seconds
    yield "warm settled / one fixed object", settled.requests / settled.seconds / fixed.requests * fixed.seconds
    _, _, asked = _once(proxy, keys, directory)
    yield "cold: not kept, %", asked / len(keys) * 100
    proxy.settle()
    yield "memory: bytes an object", (procs.rss_bytes(proxy.pid) - empty) / len(keys)
    yield "memory: bytes each further object", further
    yield "disk: x the objects", _disk_bytes(proxy.cache_dir) / len(keys) / OBJECT_BYTES
    for number in (signal.SIGTERM, signal.SIGKILL):
        if number == signal.SIGKILL:
            os.kill(proxy.pid, number)
        proxy.stop()
        began = time.monotonic()
        proxy.start()
        yield f"restart, {number.name}: s until the index is read", time.monotonic() - began
        took, _, asked = _once(proxy, keys, directory)
        yield f"restart, {number.name}: reads/s", len(keys) / took.seconds
        yield f"restart, {number.name}: the bucket is asked, %", asked / len(keys) * 100


def _once(proxy: ServedProxy, keys: Sequence[str], directory: Path) -> tuple[Took, float, float]:
    """Each once. The time, the proxy's CPU seconds, and the requests to its origin."""
    before_s, asked_before = procs.cpu_s(proxy.pid), _asked(proxy)
    took = wrk_once([_url(proxy, key) for key in keys], OBJECT_BYTES, connections=CONNECTIONS, directory=directory)
    return took, procs.cpu_s(proxy.pid) - before_s, _asked(proxy) - asked_before


def _random(proxy: ServedProxy, keys: Sequence[str], directory: Path) -> Took:
    wanted = [Wanted(_url(proxy, key)) for key in random.sample(keys, len(keys))]
    return wrk(wanted, OBJECT_BYTES, connections=CONNECTIONS, seconds=_WARM_S, directory=directory)


def _url(proxy: ServedProxy, key: str) -> str:
    return f"{proxy.endpoint}/{NAME}/{key}"


def _asked(proxy: ServedProxy) -> float:
    with urllib.request.urlopen(f"{proxy.admin}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("outrider_origin_requests_total{"))


def _disk_bytes(root: Path) -> float:
    return float(subprocess.check_output([program("du"), "--summarize", "--block-size=1", root]).split()[0])


@contextmanager
def _origin(directory: Path, keys: Sequence[str]) -> Iterator[str]:
    """Its endpoint."""
    root, (port,) = directory / "origin", free_ports(1)
    for folder in {key.partition("/")[0] for key in keys}:
        (root / NAME / folder).mkdir(parents=True)
    (root / "sample").write_bytes(random.Random(2).randbytes(OBJECT_BYTES))
    for key in keys:
        (root / NAME / key).symlink_to(root / "sample")
    server = f"listen 127.0.0.1:{port}; root {root};"
    text = NGINX.format(directory=root, http="", server=server)
    (root / "conf").write_text(("user root;\n" if os.geteuid() == 0 else "") + text)
    argv: list[str | Path] = [program("nginx"), "-p", root, "-e", root / "log", "-c", root / "conf"]
    child = Child(argv, log=directory / "origin.log", cwd=root)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        child.stop()


if __name__ == "__main__":
    main()
