"""Batches of objects over HTTP: a real proxy before a real bucket answers a list by one tar."""

from __future__ import annotations

import asyncio
import http.client
import os
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from outrider.http.control.batch_body import _AHEAD_MAX, _BATCH_BYTES
from tests.support.conditions import Fault, FaultKind
from tests.support.control_bucket import TARGET, batch, body_of, entries_in, post
from tests.support.fakes import ramp
from tests.support.nodes import until
from tests.support.odd_origin import OddOrigin
from tests.support.oddities import Oddities
from tests.support.proxy import Proxy, ServedProxy, free_bytes, memory_of
from tests.support.rawhttp import RawConnection, ask, request
from tests.support.simulator import Simulator
from tests.support.tenants import CLIENTS, OTHER, TEAM, answer_to, wire
from tests.support.tenants import NAME as SHARED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from outrider.core.cache.memory_budget import MemoryBudget
    from tests.support.bucket import Bucket

NAME = "batches"
MIB = 2**20
RAMP = ramp(MIB + 251)
DEADLINE_S = 20.0

SAMPLES = {f"samples/{number:04}": RAMP[number : number + 10_000] for number in range(256)}
AWKWARD = {
    "/".join(["k" * 100] * 8): b"long",
    "ä 日本/%2F+?.jpg": b"umlaut",
    "a\nb": b"line",
    "x" * 92: b"99",
    "x" * 93: b"100",
}
OBJECTS = {
    **SAMPLES, **AWKWARD, "empty": b"", "large": RAMP,
    **{f"mib/{number:02}": RAMP[number:] for number in range(2 * _AHEAD_MAX)},
}  # fmt: skip
FIRST = "samples/0000"


def url(key: str) -> str:
    return f"s3://{NAME}/{key}"


def wait_until(ready: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + DEADLINE_S
    while not ready():
        assert time.monotonic() < until, what
        time.sleep(0.005)


def drop_pages(path: Path) -> None:
    """The next read of the file asks the disk, unless it is on a tmpfs."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def send(connection: RawConnection, keys: Iterable[str]) -> None:
    body = body_of([url(key) for key in keys])
    connection.send(request("POST", TARGET, (("content-length", str(len(body))),), body))


def gets_of(proxy: Proxy, cache: str) -> float:
    return proxy.metric("outrider_requests_total", op="get", cache=cache)


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, OBJECTS)
    bucket.store(SHARED, {key: key.encode() for key in ("team/a", "other/a")})


@pytest.fixture
def simulator(bucket: Bucket) -> Iterator[Simulator]:
    with Simulator(bucket.address) as running:
        yield running


@pytest.fixture
def proxy(bucket: Bucket, simulator: Simulator) -> Iterator[Proxy]:
    with Proxy(bucket, simulator.endpoint) as running:
        yield running
        simulator.conditions.faults = []
        simulator.release()
        running.settle()
        assert memory_of(running).used_bytes == 0, "all memory comes back"


# -- contents and order -----------------------------------------------------------------------------------------------


def test_the_order_is_that_of_the_list_whatever_is_cached(proxy: Proxy) -> None:
    keys = [*list(SAMPLES)[:40], "large", *list(SAMPLES)[40:60], FIRST, FIRST]
    for key in (*keys[::3], "large"):
        ask(proxy.address, "GET", f"/{NAME}/{key}")
    proxy.settle()
    read = batch(proxy, [url(key) for key in keys])
    assert [entry.name for entry in read] == [f"{NAME}/{key}" for key in keys]
    assert [entry.content for entry in read] == [OBJECTS[key] for key in keys]
    caches = [entry.cache for entry in read]
    assert caches[::3] == ["HIT"] * len(caches[::3])
    assert Counter(caches) == {"HIT": 24, "MISS": 39}
    proxy.settle()
    assert {entry.cache for entry in batch(proxy, [url(key) for key in keys])} == {"HIT"}


def test_an_object_that_comes_late_holds_up_its_place_alone(proxy: Proxy, simulator: Simulator) -> None:
    keys = list(SAMPLES)[:20]
    simulator.conditions.faults = [Fault(FaultKind.LATE, path_contains=keys[5])]
    with RawConnection(proxy.address) as connection:
        send(connection, keys)
        head = connection.read_head()
        # Those before it are sent, and those behind it are fetched, while it is held back.
        before = head.read(5 * (3 * 512 + 10_240))
        assert [entry.content for entry in entries_in(before)] == [OBJECTS[key] for key in keys[:5]]
        wait_until(lambda: len(simulator.log()) == len(keys), "all are asked for side by side")
        simulator.release()
        assert [entry.content for entry in entries_in(before + head.read())] == [OBJECTS[key] for key in keys]


def test_an_entry_has_the_bytes_or_the_refusal_of_a_get(proxy: Proxy) -> None:
    for temperature in ("cold", "warm"):
        ranges = ["bytes=0-0", "bytes=10-99", "bytes=9990-", "bytes=-7", "bytes=9000-20000"]
        read = batch(proxy, [{"url": url(FIRST), "range": span} for span in ranges])
        gets = [ask(proxy.address, "GET", f"/{NAME}/{FIRST}", (("range", span),)).body for span in ranges]
        assert [entry.content for entry in read] == gets
        reads = [{"url": url(FIRST), "range": "bytes=10000-"}, url("empty"), {"url": url("empty"), "range": "bytes=0-"}]
        beyond, empty, of_empty, missing, last = batch(proxy, [*reads, url("missing"), url(FIRST)])
        assert (beyond.reason["code"], beyond.cache) == ("InvalidRange", None)
        assert (empty.content, of_empty.status, last.content) == (b"", "416", OBJECTS[FIRST])
        get = ask(proxy.address, "GET", f"/{NAME}/missing")
        assert (missing.cache, missing.status) == (None, "404")
        assert missing.reason == {"status": 404, "code": get.error["Code"], "message": get.error["Message"]}
        # Keys that need pax keep their names.
        read = batch(proxy, [url(key) for key in AWKWARD])
        assert {entry.name.removeprefix(f"{NAME}/"): entry.content for entry in read} == AWKWARD
        proxy.settle()
        if temperature == "warm":
            assert {entry.cache for entry in read} == {"HIT"}


def test_a_batch_is_a_post_of_a_list_by_http_1_1(proxy: Proxy, simulator: Simulator) -> None:
    simulator.reset()
    assert batch(proxy, []) == []
    for body, code in ((b"no JSON", "InvalidArgument"), (b" " * (8 * MIB + 1), "EntityTooLarge")):
        answer = post(proxy, body)
        assert (answer.status, answer.code) == (400, code)
    length = (("content-length", "2"),)
    assert ask(proxy.address, "GET", TARGET).status == 404
    assert ask(proxy.address, "PUT", TARGET, length, b"{}").status == 405
    assert ask(proxy.address, "POST", f"{TARGET}?uploads", length, b"{}").status == 405
    body = body_of([url(FIRST), url("large")])
    length = (("content-length", str(len(body))),)
    with RawConnection(proxy.address) as connection:
        answer = connection.ask("POST", TARGET, length, body, version="HTTP/1.0")
    assert (answer.status, answer.code) == (400, "InvalidRequest")
    assert simulator.counts().requests == 0
    with RawConnection(proxy.address) as connection:
        for _ in range(2):
            answer = connection.ask("POST", TARGET, length, body)
            assert [entry.content for entry in entries_in(answer.body)] == [OBJECTS[FIRST], OBJECTS["large"]]
            assert connection.ask("GET", f"/{NAME}/{FIRST}").body == OBJECTS[FIRST]


# -- failures ---------------------------------------------------------------------------------------------------------


def test_a_missing_object_fails_the_batch_where_that_was_asked_for(proxy: Proxy) -> None:
    answer = post(proxy, body_of([url("missing"), url(FIRST)], errors="batch"))
    assert (answer.status, answer.code) == (404, "NoSuchKey")
    for _ in ("cold", "warm"):
        # The head is out by its turn: the connection is cut, and no reader takes the tar for whole.
        with pytest.raises((http.client.IncompleteRead, ConnectionError)):
            post(proxy, body_of([url(FIRST), url("missing"), url("large")], errors="batch"))
        proxy.settle()
    assert len(batch(proxy, [url(FIRST), url("large")], errors="batch")) == 2


def test_a_failure_in_the_middle_of_an_entry_cuts_the_connection(bucket: Bucket, simulator: Simulator) -> None:
    second = f"bytes={MIB}-"
    simulator.conditions.faults = [
        Fault(FaultKind.DROP, times=None, when=lambda asked: second in asked.headers.get("range", ""))
    ]
    with Proxy(bucket, simulator.endpoint, block_size="1MiB", origin_patience_s="0.2") as proxy:
        for errors in ("entry", "batch"):
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                post(proxy, body_of([url(FIRST), url("large"), url("samples/0001")], errors=errors))
        simulator.conditions.faults = []
        proxy.settle()
        assert memory_of(proxy).used_bytes == 0
        assert [entry.content for entry in batch(proxy, [url("large")])] == [RAMP]


def test_objects_that_cannot_be_cached_are_relayed(bucket: Bucket, simulator: Simulator) -> None:
    keys = [*list(SAMPLES)[:70], "large", "missing"]
    with Proxy(bucket, simulator.endpoint, policy="none", cache_size="4KiB") as proxy:
        read = batch(proxy, [url(key) for key in keys])
        assert [entry.content for entry in read[:-1]] == [OBJECTS[key] for key in keys[:-1]]
        assert read[-1].reason["code"] == "NoSuchKey"
        proxy.settle()
        assert memory_of(proxy).used_bytes == 0


def test_a_range_is_never_the_whole_object(bucket: Bucket) -> None:
    """As an answer to a GET the status would say so; an entry has none."""
    with OddOrigin(Oddities(ignores_range=True, lacks=frozenset({"etag"}))).on_thread() as origin:
        for number, whole in enumerate((b"", RAMP[:1000])):
            origin.put("odd", f"{number}", whole)
            with Proxy(bucket, origin.endpoint) as proxy:
                assert ask(proxy.address, "GET", f"/odd/{number}", (("range", "bytes=10-99"),)).status == 200
                span = {"url": f"s3://odd/{number}", "range": "bytes=10-99"}
                part, all_of_it = batch(proxy, [span, f"s3://odd/{number}"])
            assert (part.status, part.reason["code"]) == ("501", "NotImplemented")
            assert all_of_it.content == whole


# -- grants -----------------------------------------------------------------------------------------------------------


def test_a_key_that_no_grant_covers_is_denied_as_a_get_of_it(bucket: Bucket, tmp_path: Path) -> None:
    (tmp_path / "clients.toml").write_text(CLIENTS)
    body = body_of([f"s3://{SHARED}/team/a", f"s3://{SHARED}/other/a", f"s3://{NAME}/{FIRST}"])
    with Proxy(bucket, auth="sigv4", clients=tmp_path / "clients.toml") as proxy:
        assert post(proxy, body).status == 403
        changed = wire(proxy, TEAM, "POST", TARGET, (), body, payload="0" * 64)
        assert answer_to(proxy, changed).code == "XAmzContentSHA256Mismatch"
        # Also once it is cached.
        assert answer_to(proxy, wire(proxy, OTHER, "GET", f"/{SHARED}/other/a")).body == b"other/a"
        for _ in ("cold", "warm"):
            own, others, far = entries_in(answer_to(proxy, wire(proxy, TEAM, "POST", TARGET, (), body)).body)
            assert own.content == b"team/a"
            for entry, target in ((others, f"/{SHARED}/other/a"), (far, f"/{NAME}/{FIRST}")):
                get = answer_to(proxy, wire(proxy, TEAM, "GET", target))
                assert entry.reason == {"status": 403, "code": "AccessDenied", "message": get.error["Message"]}
            proxy.settle()
        whole = answer_to(
            proxy, wire(proxy, TEAM, "POST", TARGET, (), body_of([f"s3://{SHARED}/other/a"], errors="batch"))
        )
        assert (whole.status, whole.code) == (403, "AccessDenied")
        assert proxy.metric("outrider_requests_total", op="get", status="403") == 5 + 4, "5 of batches and 4 GETs"


# -- counts -----------------------------------------------------------------------------------------------------------


def test_256_warm_samples_are_one_request_and_256_hits(proxy: Proxy, simulator: Simulator) -> None:
    reads = [url(key) for key in SAMPLES]
    batch(proxy, reads)
    proxy.settle()
    simulator.reset()
    before = proxy.status()
    steered = proxy.metric("outrider_requests_total", op="steer")
    assert {entry.cache for entry in batch(proxy, reads)} == {"HIT"}
    proxy.settle()
    after = proxy.status()
    assert simulator.counts().requests == 0
    assert proxy.metric("outrider_requests_total", op="steer") - steered == 1
    assert (gets_of(proxy, "HIT"), gets_of(proxy, "MISS")) == (256, 256)
    assert after["served_bytes"]["disk"] - before["served_bytes"]["disk"] == 2_560_000, "of objects alone"
    (dataset,) = after["datasets"]
    assert (dataset["requests"], dataset["hits"]) == (512, 256), "the hit ratio counts samples"
    (reader,) = after["readers"]
    assert (reader["name"], reader["requests"]) == ("127.0.0.1", 512)


def test_misses_are_fetched_once_and_side_by_side(proxy: Proxy, simulator: Simulator) -> None:
    reads = [url(key) for key in SAMPLES]
    simulator.conditions.faults = [Fault(FaultKind.LATE, times=None)]
    with ThreadPoolExecutor(1) as elsewhere:
        answered = elsewhere.submit(batch, proxy, [*reads, *reads])
        until(lambda: simulator.counts().concurrent_max > 8, "reads side by side")
        simulator.conditions.faults = []
        simulator.release()
        assert {entry.cache for entry in answered.result()} <= {"MISS", "HIT"}
    counts = simulator.counts()
    # A request that is late is hedged.
    hedges = proxy.metric("outrider_hedges_total")
    assert counts.gets - hedges == len(SAMPLES)
    assert counts.concurrent_max <= _AHEAD_MAX + 1 + hedges


def test_a_batch_is_one_line_of_the_access_log(bucket: Bucket, tmp_path: Path) -> None:
    keys = ["large", FIRST, "missing", "empty"]
    with ServedProxy(bucket, tmp_path, prefetch="off") as proxy:
        ask(proxy.address, "GET", f"/{NAME}/{FIRST}")
        proxy.settle()
        body = body_of([url(key) for key in keys])
        assert ask(proxy.address, "POST", TARGET, (("content-length", str(len(body))),), body).status == 200
        proxy.settle()
    (line,) = [line for line in proxy.lines("request") if line.get("key") == "batch"]
    logged = {name: line[name] for name in ("method", "status", "op", "objects", "hits", "failed", "bytes")}
    assert logged == {"method": "POST", "status": 200, "op": "steer", "objects": 4, "hits": 2, "failed": 1,
                      "bytes": len(RAMP) + 10_000}  # fmt: skip


def test_tar_unpacks_a_batch_and_says_nothing(bucket: Bucket, tmp_path: Path) -> None:
    """It warns of each PAX record that it does not know."""
    keys = [FIRST, "ä 日本/%2F+?.jpg", "large", "empty"]
    with Proxy(bucket, prefetch="off") as proxy:
        for read in ("MISS", "HIT"):
            answer = post(proxy, body_of([url(key) for key in keys]))
            assert {entry.cache for entry in entries_in(answer.body)} >= {read}
            done = subprocess.run(
                ["tar", "--extract"], input=answer.body, cwd=tmp_path, capture_output=True, check=False
            )
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
            assert {key: (tmp_path / NAME / key).read_bytes() for key in keys} == {key: OBJECTS[key] for key in keys}


def test_misses_and_hits_reach_the_planner(bucket: Bucket) -> None:
    reads = [url(key) for key in list(SAMPLES)[:64]]
    with Proxy(bucket, prefetch="epoch") as proxy:
        outlook = proxy.outrider.planner.registry.outlook
        batch(proxy, reads)
        wait_until(lambda: outlook().set_reads == 64, "64 misses")
        batch(proxy, reads)
        wait_until(lambda: outlook().ordered_reads == 64, "64 hits, in the same order")


# -- after a start ----------------------------------------------------------------------------------------------------


def test_blocks_that_a_start_found_are_verified_and_are_hits(proxy: Proxy) -> None:
    reads = [url(key) for key in (*SAMPLES, "large")]
    batch(proxy, reads)
    proxy.settle()
    proxy.stop()
    (proxy.cache_dir / "index").unlink()
    # Before the start: the scrubber verifies a block only once.
    damaged = sorted((proxy.cache_dir / "v2").glob("*/*"))[0]
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    proxy.start()
    read = batch(proxy, reads)
    assert [entry.content for entry in read] == [OBJECTS[key] for key in (*SAMPLES, "large")]
    assert Counter(entry.cache for entry in read)["HIT"] >= len(reads) - 1


def test_hits_whose_pages_are_not_in_memory_are_read_together(proxy: Proxy) -> None:
    batch(proxy, [url(key) for key in SAMPLES])
    proxy.settle()
    for path in (proxy.cache_dir / "v2").glob("*/*"):
        drop_pages(path)
    before = set(threading.enumerate())
    with RawConnection(proxy.address) as connection:
        send(connection, SAMPLES)
        while connection.read_line().strip():
            pass
        sizes = []
        while size := int(connection.read_line(), 16):
            connection.makefile().read(size + 2)
            sizes.append(size)
    assert len(sizes) < 256 / 8, "many to a call of the socket"
    # A disk that hangs must not hold the threads that read credentials, and waits for the others are not measured.
    assert {thread.name.partition("_")[0] for thread in set(threading.enumerate()) - before} <= {"outrider-read"}


# -- clients that leave, and slow ones --------------------------------------------------------------------------------


def test_a_client_that_hangs_up_ends_its_fetches(proxy: Proxy, simulator: Simulator) -> None:
    simulator.conditions.faults = [Fault(FaultKind.LATE, times=None)]
    with RawConnection(proxy.address) as connection:
        send(connection, SAMPLES)
        wait_until(lambda: len(simulator.log()) == _AHEAD_MAX, "the look-ahead asks for objects")
        assert memory_of(proxy).used_bytes >= _BATCH_BYTES
    wait_until(lambda: proxy.outrider.server.in_flight == 0, "the request ends")
    assert memory_of(proxy).used_bytes == 0

    async def early() -> int:
        return sum(task.get_name().startswith("batch:") for task in asyncio.all_tasks())

    assert proxy.on_loop(early) == 0
    simulator.conditions.faults = []
    simulator.release()
    proxy.settle()
    assert len(simulator.log()) == _AHEAD_MAX, "nothing more was asked for"


def test_a_client_that_hangs_up_in_the_middle_is_counted_for_no_more_than_it_took(proxy: Proxy) -> None:
    keys = [key for key in OBJECTS if key.startswith("mib/")]
    with RawConnection(proxy.address) as connection:
        send(connection, keys)
        head = connection.read_head()
        assert len(head.read(MIB)) == MIB
    proxy.settle()
    served = sum(proxy.metric("outrider_served_bytes_total", source=source) for source in ("disk", "flight"))
    assert served < len(keys) * MIB
    assert proxy.metric("outrider_requests_total", op="get") < len(keys)
    assert memory_of(proxy).used_bytes == 0


@pytest.mark.parametrize("cache_size", ["1GiB", "4KiB"])
def test_a_slow_reader_holds_bounded_memory(bucket: Bucket, simulator: Simulator, cache_size: str) -> None:
    keys = [key for key in OBJECTS if key.startswith("mib/")]
    with Proxy(bucket, simulator.endpoint, buffer_bytes="32MiB", cache_size=cache_size) as proxy:
        memory = memory_of(proxy)
        capacity = free_bytes(memory)
        with RawConnection(proxy.address) as connection:
            send(connection, keys)
            head = connection.read_head()
            assert memory.used_bytes >= _BATCH_BYTES
            peaks = Peaks(memory)
            with peaks:
                # A byte at a time it goes on; the proxy never holds more than its budget.
                read = b"".join(head.read(64 * 1024) for _ in range(16))
                wait_until(lambda: peaks.looks > 100, "looks at the budget")
            assert peaks.most <= capacity // 2 + 4096 + _BATCH_BYTES
            assert simulator.counts().gets < len(keys), "most objects wait until the client takes some"
            read += head.read()
        assert [entry.content for entry in entries_in(read)] == [OBJECTS[key] for key in keys]
        proxy.settle()
        assert memory.used_bytes == 0


def test_objects_that_wait_for_a_slow_reader_hold_no_connection_to_the_bucket(
    bucket: Bucket, simulator: Simulator
) -> None:
    keys = [key for key in OBJECTS if key.startswith("mib/")]
    with Proxy(
        bucket, simulator.endpoint, policy="none", cache_size="4KiB", origin_connections="4", origin_timeout_s="5"
    ) as proxy:
        # Once their versions are known they are relayed.
        batch(proxy, [url(key) for key in keys])
        proxy.settle()
        simulator.reset()
        with RawConnection(proxy.address) as connection:
            send(connection, keys)
            connection.read_head()
            wait_until(lambda: len(simulator.log()) > 8, "objects are asked for before their turn")
            assert ask(proxy.address, "GET", f"/{NAME}/{FIRST}").body == OBJECTS[FIRST]
        proxy.settle()


def test_a_write_before_the_turn_of_an_object_is_seen(proxy: Proxy, simulator: Simulator) -> None:
    batch(proxy, [url(FIRST)])
    proxy.settle()
    simulator.conditions.faults = [Fault(FaultKind.LATE, path_contains="samples/0001")]
    with RawConnection(proxy.address) as connection:
        send(connection, ("samples/0001", FIRST, "samples/0002"))
        # The look-ahead has come past the hit.
        wait_until(lambda: len(simulator.log()) == 3, "the others are asked for")
        assert ask(proxy.address, "PUT", f"/{NAME}/{FIRST}", (("content-length", "3"),), b"new").status == 200
        simulator.release()
        read = entries_in(connection.read_head().read())
    assert ask(proxy.address, "PUT", f"/{NAME}/{FIRST}", (("content-length", "10000"),), OBJECTS[FIRST]).status == 200
    assert [entry.content for entry in read] == [OBJECTS["samples/0001"], b"new", OBJECTS["samples/0002"]]


def test_a_batch_for_which_there_is_no_memory_is_refused_with_slow_down(proxy: Proxy) -> None:
    memory = memory_of(proxy)
    capacity = free_bytes(memory)
    assert memory.take(capacity - _BATCH_BYTES + 4096)
    answer = post(proxy, body_of([url(FIRST)]))
    assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "SlowDown", "1")
    memory.give_back(capacity - _BATCH_BYTES + 4096)
    assert memory.take(capacity // 2)
    # There is room for a batch, and none for a look-ahead.
    assert len(batch(proxy, [url(key) for key in list(SAMPLES)[:8]])) == 8
    memory.give_back(capacity // 2)


class Peaks:
    """Looks at the budget, again and again, in a thread of its own."""

    def __init__(self, memory: MemoryBudget) -> None:
        self._memory = memory
        self.most = self.looks = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def _look(self) -> None:
        while not self._ends.wait(0.0005):
            self.most = max(self.most, self._memory.used_bytes)
            self.looks += 1

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: Any) -> None:
        self._ends.set()
        self._thread.join()
