"""Hits that wait for the disk: pages that are not in memory, and blocks that were not verified since the start.

The fast path reads them in a thread, and answers when they are ready.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from outrider.adapters.disk import block_reads
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.http.access import Principal
from outrider.http.s3 import connection as connection_module
from outrider.http.s3 import fast_path
from outrider.http.s3.exchange import ColdHit, Recognised
from tests.support.damage import block_files
from tests.support.rawhttp import ask, request
from tests.support.watched import NAME, OBJECTS, Watched, watched_proxy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tests.support.bucket import Bucket

    Cold = Callable[..., AbstractContextManager[tuple["Watched", "GatedReaders"]]]


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {key: OBJECTS[key] for key in "ab"})


class GatedReaders(ThreadPoolExecutor):
    """Reader threads that wait for the test before they wait for the disk."""

    def __init__(self) -> None:
        super().__init__(1)
        self.open, self.asked = threading.Event(), threading.Event()
        self.begun = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        def gated() -> Any:
            self.begun += 1
            self.open.wait(60)
            return fn(*args, **kwargs)

        self.asked.set()
        return super().submit(gated)


@contextmanager
def page_cold(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Iterator[tuple[Watched, GatedReaders]]:
    """The pages of object `a`, and only its pages, are not in memory before the gate opens."""
    with watched_proxy(bucket, **settings) as watched:
        (file,) = block_files(watched.proxy.cache_dir)
        read_b(watched)
        there, preadv, readers = os.stat(file).st_ino, os.preadv, GatedReaders()

        def cold(fd: int, *rest: Any) -> int:
            # The kernel begins to read the pages that it is asked about, so real pages would be in memory at the second
            # look.
            if os.fstat(fd).st_ino == there and not readers.open.is_set():
                raise BlockingIOError
            return preadv(fd, *rest)

        monkeypatch.setattr(os, "preadv", cold)
        watched.proxy.outrider.server.readers = readers
        watched.results.clear()
        try:
            yield watched, readers
        finally:
            readers.open.set()


@contextmanager
def unverified(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Iterator[tuple[Watched, GatedReaders]]:
    """The block of object `a` was not verified since the start. The disk's threads wait for the gate."""
    with watched_proxy(bucket, scrub_bandwidth="0", **settings) as before:
        before.proxy.restart()
        watched, readers = Watched(before.proxy), GatedReaders()
        read_b(watched)
        # Its pages are in memory, and no block is so small that it is verified at once.
        monkeypatch.setattr(block_reads, "_AT_ONCE_BYTES_MAX", 0)
        work = watched.proxy.outrider.store.disks[0].work
        threads, work.threads = work.threads, readers
        watched.results.clear()
        try:
            yield watched, readers
        finally:
            readers.open.set()
            work.threads = threads


def read_b(watched: Watched) -> None:
    """Object `b` is a hit from then on."""
    for _ in range(2):
        ask(watched.proxy.address, "GET", f"/{NAME}/b")
        watched.proxy.settle()


@pytest.fixture(params=[page_cold, unverified], ids=lambda made: made.__name__)
def cold(request: pytest.FixtureRequest, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Cold:
    return partial(request.param, bucket, monkeypatch)


async def some_loop_iterations() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_hit_that_waits_for_the_disk_delays_no_other_client_and_counts_its_wait(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, clock = [0.0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + ahead[0])
    with cold() as (watched, readers), watched.connect() as waiting, watched.connect() as other:
        before = watched.proxy.metric("outrider_first_byte_seconds_sum", op="get")
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        assert watched.seen == ["cold"]
        assert watched.next(other, "GET", f"/{NAME}/b").body == OBJECTS["b"]
        assert watched.seen == [True]
        ahead[0] = 1000.0
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        assert watched.seen == [True, True], "answered by the fast path, once the pages were in memory"
        assert watched.proxy.metric("outrider_first_byte_seconds_sum", op="get") - before > 1000.0
        assert watched.next(waiting, "GET", f"/{NAME}/a").body == OBJECTS["a"]
        assert watched.seen == [True], "now the page is in memory"


def test_a_request_behind_one_that_waits_for_the_disk_is_answered_in_order(cold: Cold) -> None:
    with cold() as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        waiting.send(request("GET", f"/{NAME}/b"))
        watched.proxy.on_loop(some_loop_iterations)
        readers.open.set()
        assert [waiting.read_answer().body for _ in range(2)] == [OBJECTS["a"], OBJECTS["b"]]
        watched.proxy.settle()
        assert watched.seen == ["cold"], "the slow path keeps the order of requests"
        assert watched.next(waiting, "GET", f"/{NAME}/a").body == OBJECTS["a"]


def test_a_disk_that_brings_nothing_in_time_is_left_to_the_slow_path(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "DISK_WAIT_S", 0.0)
    with cold() as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        while len(watched.seen) < 2:
            watched.proxy.on_loop(some_loop_iterations)
        assert watched.seen == ["cold", False]
        assert watched.proxy.outrider.server.handler.in_flight == 1
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        watched.proxy.settle()
        assert watched.seen == ["cold", False]
        if watched.proxy.outrider.store.disks[0].work.threads is readers:
            assert readers.begun == 1, "a verification that is late is not begun once more"


def test_a_stop_waits_for_requests_that_wait_for_the_disk(cold: Cold) -> None:
    with cold() as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        server = watched.proxy.outrider.server

        async def drain() -> None:
            server.pre_shutdown()
            idle = asyncio.ensure_future(server.idle())
            await some_loop_iterations()
            assert not idle.done()
            readers.open.set()
            await idle

        watched.proxy.on_loop(drain)
        assert waiting.read_answer().body == OBJECTS["a"]
        assert waiting.is_closed_by_peer()


def test_a_connection_that_waits_for_the_disk_does_not_count_as_idle(cold: Cold) -> None:
    with cold(client_idle_s=0.4) as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)

        async def closes_in_s() -> float:
            # aiohttp's time of the end.
            closes_at = watched.connection_of(waiting)._next_keepalive_close_time
            return closes_at - asyncio.get_running_loop().time()

        assert watched.proxy.on_loop(closes_in_s) > 0.5, "the disk has one second"
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]


def test_the_disk_is_not_read_for_a_client_that_has_left(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with page_cold(bucket, monkeypatch) as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        readers.asked.clear()
        with watched.connect() as leaving:
            leaving.send(request("GET", f"/{NAME}/a"))
            assert readers.asked.wait(60)
        while len(watched.proxy.outrider.server.connections) > 1:
            watched.proxy.on_loop(some_loop_iterations)
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        readers.shutdown()
        assert readers.begun == 1


def test_a_client_that_leaves_while_the_disk_is_waited_for_leaves_nothing_behind(
    cold: Cold, caplog: pytest.LogCaptureFixture
) -> None:
    with cold() as (watched, readers):
        with watched.connect() as waiting:
            waiting.send(request("GET", f"/{NAME}/a"))
            assert readers.asked.wait(60)
        while watched.proxy.outrider.server.connections:
            watched.proxy.on_loop(some_loop_iterations)
        readers.open.set()
        watched.proxy.settle()
        assert watched.seen == ["cold"]
        assert watched.ask("GET", f"/{NAME}/a")[0].body == OBJECTS["a"]
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_pages_that_come_late_do_not_affect_the_next_request(cold: Cold) -> None:
    with cold() as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)

        async def late() -> None:
            recognised = Recognised(b"", Principal(None, None, UNSIGNED), None)
            watched.connection_of(waiting)._is_ready(ColdHit(None, None, 0.0, recognised))

        watched.proxy.on_loop(late)
        assert watched.seen == ["cold"]
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        assert watched.seen == ["cold", True]


def test_a_request_that_a_wait_cannot_speed_up_takes_the_slow_path_at_once(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fast_path, "_PAGED_IN_BYTES", len(OBJECTS["a"]) - 1)
    with cold() as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        assert watched.seen == [False]
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
