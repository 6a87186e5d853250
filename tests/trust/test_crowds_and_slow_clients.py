"""Load tests: crowds, slow clients and clients that hang up get the right bytes, and leave no memory, file or task."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest

from outrider.http.s3.connection import Connection
from tests.support.conditions import Fault, FaultKind
from tests.support.fakes import ramp
from tests.support.proxy import Proxy, ServedProxy, Vitals, free_bytes, memory_of, status
from tests.support.rawhttp import Client, RawConnection, ask, request
from tests.support.recorder import Recorder
from tests.support.trials import SCALE, Trials, rounds

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

MIB = 1024 * 1024
NAME = "crowds"
SMALL, LARGE = ramp(1000), ramp(8 * MIB)
"""More than a connection and the client's socket hold together."""
CROWD_BYTES = 256 * 1024 + 77
STEP_S = 0.02
"""How long a trickling client listens for an answer between two bytes."""


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="small", Body=SMALL)
    client.put_object(Bucket=NAME, Key="large", Body=LARGE)
    client.close()


_FLAGLESS = {"buffer_bytes", "origin_connections", "origin_timeout_s"}


def served(bucket: Bucket, tmp_path: Path, origin: str | None = None, **settings: str) -> ServedProxy:
    """A setting of `settings` that has no flag goes into a configuration file."""
    config = tmp_path / "config.toml"
    flagless = {name: settings[name] for name in _FLAGLESS & settings.keys()}
    config.write_text("".join(f"{name} = {value}\n" for name, value in flagless.items()))
    flags = {name: value for name, value in settings.items() if name not in flagless}
    proxy = ServedProxy(bucket, tmp_path, origin, prefetch="off", config=str(config), **flags)
    proxy.forked = False  # its memory is measured
    return proxy


async def until(proxy: ServedProxy, what: str, least: int) -> None:
    """Wait until the proxy's own count of `what` is at least `least`."""
    async with asyncio.timeout(600):
        while (await asyncio.to_thread(status, proxy))[what] < least:
            await asyncio.sleep(0)


@contextlib.asynccontextmanager
async def crowd(address: tuple[str, int], count: int, *, slow: bool = False) -> AsyncIterator[list[Client]]:
    clients = [await Client.connect(address, slow=slow) for _ in range(count)]
    try:
        yield clients
    finally:
        for client in clients:
            await client.close()


# -- one cold object ----------------------------------------------------------------------------------------------


async def test_500_clients_that_read_one_cold_object_cost_one_fill_per_block(
    bucket: Bucket, simulator: Simulator, tmp_path: Path, trials: Trials
) -> None:
    clients_count = 500
    for number in range(rounds(1)):
        data = ramp(CROWD_BYTES, start=number)
        direct = bucket.client()
        direct.put_object(Bucket=NAME, Key=f"cold-{number}", Body=data)
        direct.close()
        # All clients have connected before the bucket sends its first byte, however long that takes.
        with served(bucket, tmp_path, simulator.endpoint, block_size="64KiB", origin_timeout_s="3600") as proxy:
            all_here = threading.Event()
            waits = functools.partial(all_here.wait, 600)
            simulator.conditions.faults = [Fault(FaultKind.ACT, path_contains=f"cold-{number}", act=waits)]
            simulator.reset()
            async with crowd(proxy.address, clients_count) as clients:
                reads = [asyncio.create_task(client.get(f"/{NAME}/cold-{number}", data)) for client in clients]
                await until(proxy, "requests", clients_count)
                all_here.set()
                answers = await asyncio.gather(*reads)
            counts = simulator.reset()
            right = sum(head.status == 200 and whole for head, whole in answers)
            trials.record(
                "load", "500 clients ask for one cold object", "the right bytes", times=right,
                lost=clients_count - right,
            )  # fmt: skip
            assert right == clients_count
            assert counts.body_bytes == CROWD_BYTES
            assert counts.gets == _fills(counts.gets)
            assert counts.heads <= 1, "for the checksum of the object"


def _fills(gets: int) -> int:
    """One GET opens the object with its first block. The four other blocks come by as many GETs at most."""
    assert 1 <= gets <= 5
    return gets


# -- slow readers, and those that leave -----------------------------------------------------------------------------


# A pool's thread costs a stack and a heap of its own, and Python's allocator keeps some MiB of 1,000 short-lived
# requests. 80 bodies of 8 MiB would be 640 MiB, and one 64 KiB buffer for each of 400 clients 25 MiB.
GROWTH_BYTES_MAX = 24 * MIB


@pytest.mark.parametrize("cold", [False, True], ids=["hits", "a cold object"])
async def test_slow_readers_take_no_memory_and_get_the_right_bytes(
    bucket: Bucket, tmp_path: Path, trials: Trials, cold: bool
) -> None:
    readers_count = 200 if SCALE > 1 else 80
    with served(bucket, tmp_path, block_size="4MiB") as proxy:
        warm = ask(proxy.address, "GET", f"/{NAME}/{'small' if cold else 'large'}")
        assert warm.status == 200
        proxy.settle()
        before = Vitals.of(proxy)
        async with crowd(proxy.address, readers_count, slow=True) as clients:
            for client in clients:
                client.ask("GET", f"/{NAME}/large")
            assert [(await client.head()).status for client in clients] == [200] * readers_count
            during = Vitals.of(proxy)
            assert during.anonymous_bytes - before.anonymous_bytes < GROWTH_BYTES_MAX
            # Other clients are served meanwhile.
            assert ask(proxy.address, "GET", f"/{NAME}/small").body == SMALL
            # Some clients read on to the end, and the others hang up.
            whole = [await client.is_body(LARGE) for client in clients[: readers_count // 40]]
        proxy.settle()
        await gone(proxy, before)
        trials.record("load", "200 slow readers", "the right bytes", times=readers_count, lost=whole.count(False))
        assert all(whole)
        after = Vitals.of(proxy)
        assert after.anonymous_bytes - before.anonymous_bytes < GROWTH_BYTES_MAX
        assert after.temporary_files == 0


async def gone(proxy: ServedProxy, before: Vitals) -> None:
    """Wait until no connection is left, and no more tasks than before."""
    async with asyncio.timeout(60):
        while True:
            now = await asyncio.to_thread(Vitals.of, proxy)
            if now.connections == 0 and now.tasks <= before.tasks:
                return
            await asyncio.sleep(0)


@pytest.mark.parametrize("flags", [{}, {"cache_size": "0"}], ids=["kept", "relayed"])
async def test_clients_that_hang_up_in_mid_body_leave_no_resource_behind(
    bucket: Bucket, tmp_path: Path, trials: Trials, flags: dict[str, str]
) -> None:
    leavers_count = rounds(100 if flags else 400)
    with served(bucket, tmp_path, block_size="1MiB", freshness="immutable", **flags) as proxy:
        # The first clients pay for threads, pools and caches, which are made once.
        await _hang_up(proxy.address, 50)
        proxy.settle()
        # From here on all blocks are cached, where there is room.
        assert ask(proxy.address, "GET", f"/{NAME}/large").body == LARGE
        proxy.settle()
        before = Vitals.of(proxy)
        for _ in range(leavers_count // 50):
            await _hang_up(proxy.address, 50)
        proxy.settle()
        await gone(proxy, before)
        after = Vitals.of(proxy)
        assert after.anonymous_bytes - before.anonymous_bytes < GROWTH_BYTES_MAX
        # Block files stay open, at most one for each block of the object, and so do idle connections to the origin.
        kept_open = 8 + 64
        assert after.descriptors <= before.descriptors + kept_open
        assert after.threads <= before.threads + 8
        assert after.temporary_files == 0
        async with crowd(proxy.address, 1) as (client,):
            _, whole = await client.get(f"/{NAME}/large", LARGE)
        assert whole
        trials.record("load", "clients that hang up in mid-body", "no more than they wanted", times=leavers_count)


async def _hang_up(address: tuple[str, int], count: int) -> None:
    """Half of the clients close their connection, half reset it, each at another place."""
    clients = [await Client.connect(address, slow=True) for _ in range(count)]
    for number, client in enumerate(clients):
        client.ask("GET", f"/{NAME}/large", f"range: bytes={number * 150_000}-")
    for number, client in enumerate(clients):
        if number % 3:
            await client.head()
            await client.some(number)
        await (client.hang_up() if number % 2 else client.close())


# -- too many connections -------------------------------------------------------------------------------------------


def test_more_connections_than_allowed_are_asked_to_slow_down(bucket: Bucket, trials: Trials) -> None:
    with contextlib.ExitStack() as open_ones:
        proxy = open_ones.enter_context(Proxy(bucket, max_connections=10))
        ask(proxy.address, "GET", f"/{NAME}/small")
        proxy.settle()
        _connected(proxy, 0)
        allowed = [open_ones.enter_context(RawConnection(proxy.address)) for _ in range(10)]
        for connection in allowed:
            assert connection.ask("GET", f"/{NAME}/small").body == SMALL
        for method in ("GET", "PUT", "HEAD"):
            with RawConnection(proxy.address) as one_too_many:
                body = b"x" * 100_000 if method == "PUT" else b""
                lines = [("content-length", str(len(body)))] if body else []
                answer = one_too_many.ask(method, f"/{NAME}/small", lines, body)
                assert (answer.status, answer.headers["retry-after"]) == (503, "1")
                assert method == "HEAD" or answer.code == "SlowDown"
                assert one_too_many.is_closed_by_peer()
                trials.record("load", "more connections than allowed", "503 SlowDown")
        # Connected clients are served on, and a new one is served once another has left.
        for connection in allowed:
            assert connection.ask("GET", f"/{NAME}/small").body == SMALL
        allowed[0].close()
        _connected(proxy, 9)
        assert ask(proxy.address, "GET", f"/{NAME}/small").body == SMALL


def _connected(proxy: Proxy, count: int) -> None:
    """Wait until no more than `count` clients are connected."""

    async def fewer() -> None:
        async with asyncio.timeout(60):
            while proxy.outrider.server.connected > count:
                await asyncio.sleep(0)

    proxy.on_loop(fewer)


def test_silent_clients_beyond_the_limit_are_cut_also_many_at_once(bucket: Bucket) -> None:
    with contextlib.ExitStack() as open_ones:
        proxy = open_ones.enter_context(Proxy(bucket, max_connections=1, client_timeout_s=1.0, client_idle_s=3600))
        first = open_ones.enter_context(RawConnection(proxy.address))
        assert first.ask("GET", f"/{NAME}/small").body == SMALL
        silent = [open_ones.enter_context(RawConnection(proxy.address)) for _ in range(300)]
        assert all(connection.is_closed_by_peer() for connection in silent)
        assert first.ask("GET", f"/{NAME}/small").body == SMALL


# -- clients that take their time -----------------------------------------------------------------------------------


@pytest.fixture
def impatient(bucket: Bucket) -> Iterator[Proxy]:
    """A proxy that waits half a second for a head, or in a silence of a body. It would keep an idle connection for an
    hour."""
    with Proxy(bucket, client_timeout_s=0.5, client_idle_s=3600.0) as running:
        assert ask(running.address, "GET", f"/{NAME}/small").body == SMALL
        yield running


def trickle(connection: RawConnection, data: bytes, step: int = 1) -> bytes:
    """Send a few bytes at a time until the proxy answers or closes; returns the first bytes of its answer."""
    connection.sock.settimeout(STEP_S)
    for position in range(0, len(data), step):
        with contextlib.suppress(TimeoutError):
            try:
                connection.sock.sendall(data[position : position + step])
                return connection.sock.recv(65536)
            except ConnectionError:
                return b""
    raise AssertionError("it took all of it")


def test_a_head_that_trickles_in_is_cut(impatient: Proxy, trials: Trials) -> None:
    with RawConnection(impatient.address) as connection:
        head = request("GET", f"/{NAME}/small", [("x-a", "b" * 2000)])
        assert trickle(connection, head[:-4]) == b""
    trials.record("load", "a head that trickles in", "a closed connection")


def test_half_a_head_behind_a_request_is_cut(impatient: Proxy, trials: Trials) -> None:
    with contextlib.ExitStack() as open_ones:
        for method, body in (("GET", b""), ("PUT", b"body")):
            for half in (b"G", b"GET /x HTTP/1.1\r\n", b"GET /x HTTP/1.1\r\nhost: x\r\nx-a: "):
                connection = open_ones.enter_context(RawConnection(impatient.address))
                lines = [("content-length", str(len(body)))] if body else []
                key = "behind" if body else "small"
                connection.send(request(method, f"/{NAME}/{key}", lines, body) + half)
                assert connection.read_answer(method).status == 200
                open_ones.callback(_is_cut, connection, trials)


def _is_cut(connection: RawConnection, trials: Trials) -> None:
    assert connection.is_closed_by_peer()
    trials.record("load", "half a head behind a request", "the answer, and a closed connection")


def test_after_a_write_a_connection_may_idle_as_after_a_read(bucket: Bucket) -> None:
    head = request("PUT", f"/{NAME}/idle", [("content-length", "4")])
    with Proxy(bucket) as proxy, contextlib.ExitStack() as open_ones:
        idle = [open_ones.enter_context(RawConnection(proxy.address)) for _ in range(3)]
        # The body comes with its head, after it, or in two pieces; the proxy has read each piece before the next is
        # sent.
        idle[0].send(head + b"body")
        for connection, pieces in ((idle[1], [b"body"]), (idle[2], [b"bo", b"dy"])):
            connection.send(request("PUT", f"/{NAME}/idle", [("content-length", "4"), ("expect", "100-continue")]))
            _skip_continue(connection)
            for piece in pieces:
                connection.send(piece)
        for connection in idle:
            assert connection.read_answer("PUT").status == 200
        proxy.settle()

        async def timers() -> list[object]:
            async with asyncio.timeout(60):
                while any(
                    not isinstance(connection, Connection) or connection.has_work
                    for connection in proxy.outrider.server.connections
                ):
                    await asyncio.sleep(0)
            return [getattr(connection, "_head_timer", connection) for connection in proxy.outrider.server.connections]

        # The test looks at the timers and does not wait for them: on a busy machine half a second is too short for a
        # body.
        assert proxy.on_loop(timers) == [None] * 3, "a timer for a head is running"
        for connection in idle:
            assert connection.ask("HEAD", f"/{NAME}/idle").status == 200


def _skip_continue(connection: RawConnection) -> None:
    assert connection.read_line().startswith(b"HTTP/1.1 100")
    assert connection.read_line() == b"\r\n"


def test_a_head_without_end_is_cut_before_it_takes_memory(bucket: Bucket) -> None:
    with Proxy(bucket) as proxy, RawConnection(proxy.address) as connection:
        connection.send(b"GET / HTTP/1.1\r\nhost: x\r\n")
        field = b"x-a: " + b"b" * 8000 + b"\r\n"
        # Each field is allowed, and 100 of at most 128 come: 800 KB.
        assert trickle(connection, field * 100, 8192) == b""


def test_an_upload_that_trickles_in_is_cut_and_not_stored(impatient: Proxy, bucket: Bucket, trials: Trials) -> None:
    with RawConnection(impatient.address) as connection:
        connection.send(request("PUT", f"/{NAME}/trickle", [("content-length", "100000")]))
        said = trickle(connection, b"x" * 100_000)
        assert b" 400 " in said.partition(b"\r\n")[0]
        assert b"<Code>RequestTimeout</Code>" in said
    assert ask(impatient.address, "GET", f"/{NAME}/trickle").code == "NoSuchKey"
    trials.record("load", "an upload that trickles in", "400 RequestTimeout")


def test_a_connection_that_idles_is_closed(bucket: Bucket) -> None:
    with Proxy(bucket, client_idle_s=1.0, freshness="immutable") as proxy:
        ask(proxy.address, "GET", f"/{NAME}/small")
        proxy.settle()
        connections = []
        for number in range(2):
            connections.append(RawConnection(proxy.address))
            if number:  # the first sends no request; the others do at once, since each idles from its beginning on
                assert connections[-1].ask("GET", f"/{NAME}/small").body == SMALL
        assert all(connection.is_closed_by_peer() for connection in connections)
        for connection in connections:
            connection.close()


# -- memory ---------------------------------------------------------------------------------------------------------

# The budget of 16 MiB has room for five exchanges with the origin, cached LISTs, cached heads, and ten uploads.
BUDGET, UPLOADS = "16MiB", 10


def _upload_begun(address: tuple[str, int], key: str) -> RawConnection:
    connection = RawConnection(address)
    connection.send(request("PUT", f"/{NAME}/{key}", [("content-length", "4"), ("expect", "100-continue")]))
    return connection


def test_uploads_beyond_the_budget_are_asked_to_slow_down_and_reads_go_on(
    bucket: Bucket, simulator: Simulator, trials: Trials
) -> None:
    with contextlib.ExitStack() as open_ones:
        proxy = open_ones.enter_context(Proxy(bucket, buffer_bytes=BUDGET, origin_connections=64))
        ask(proxy.address, "GET", f"/{NAME}/small")
        begun = [open_ones.enter_context(_upload_begun(proxy.address, f"up-{n}")) for n in range(UPLOADS)]
        # The first five uploads have an exchange with the origin, and so the proxy asks for their bodies.
        for connection in begun[:5]:
            _skip_continue(connection)
        _requests(proxy, UPLOADS)
        refused = ask(proxy.address, "PUT", f"/{NAME}/up", [("content-length", "4")], b"body")
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "SlowDown", "1")
        listed = b"<Delete><Object><Key>up</Key></Object></Delete>"
        many = [("content-length", str(3 * MIB))]
        refused = ask(proxy.address, "POST", f"/{NAME}?delete", many, listed.ljust(3 * MIB))
        assert (refused.status, refused.code) == (503, "SlowDown")
        assert ask(proxy.address, "GET", f"/{NAME}/small").body == SMALL
        for connection in begun[:5]:
            connection.send(b"body")
            assert connection.read_answer("PUT").status == 200
        for connection in begun[5:]:
            _skip_continue(connection)
            connection.send(b"body")
            assert connection.read_answer("PUT").status == 200
        assert ask(proxy.address, "PUT", f"/{NAME}/up", [("content-length", "4")], b"body").status == 200
        trials.record("load", "uploads beyond the memory's budget", "503 SlowDown", times=2)


def _requests(proxy: Proxy, count: int) -> None:
    async def under_way() -> None:
        async with asyncio.timeout(60):
            while proxy.outrider.server.handler.in_flight < count:
                await asyncio.sleep(0)

    proxy.on_loop(under_way)


async def test_relays_to_slow_readers_keep_to_the_memory_budget(
    bucket: Bucket, simulator: Simulator, tmp_path: Path, trials: Trials
) -> None:
    """Without room on disk all bytes pass through memory: five exchanges of 1.5 MiB each, for any number of clients."""
    with served(
        bucket, tmp_path, simulator.endpoint, cache_size="0", buffer_bytes=str(16 * MIB), origin_connections="64"
    ) as proxy:
        async with crowd(proxy.address, 8) as clients:
            for client in clients:
                assert (await client.get(f"/{NAME}/large", LARGE))[1]
        proxy.settle()
        simulator.reset()
        before = Vitals.of(proxy)
        async with crowd(proxy.address, 40, slow=True) as clients:
            for client in clients:
                client.ask("GET", f"/{NAME}/large")
            answered = [asyncio.create_task(client.head()) for client in clients]
            await until(proxy, "requests", 40)
            await asyncio.wait(answered, return_when=asyncio.FIRST_COMPLETED)
            during = Vitals.of(proxy)
            assert during.anonymous_bytes - before.anonymous_bytes < 16 * MIB
            # Half of the budget has room for five exchanges of 1.5 MiB; the setting of the connections would allow 64.
            assert 0 < simulator.counts().concurrent_max <= 5
            for task in answered:
                task.cancel()
            await asyncio.wait(answered)
        proxy.settle()
        trials.record("load", "slow readers past the cache", "nothing, or their turn", times=40)


def test_reply_heads_that_are_kept_ready_are_bounded_in_bytes(bucket: Bucket) -> None:
    value = "m" * 1800
    client = bucket.client()
    for number in range(150):
        client.put_object(Bucket=NAME, Key=f"heads/{number}", Body=b"x", Metadata={"long": value})
    client.close()
    with Proxy(bucket, buffer_bytes=BUDGET, freshness="immutable") as proxy:
        path, limit = proxy.outrider.server.fast_path, 16 * MIB // 24
        with RawConnection(proxy.address) as connection:
            for _ in range(2):
                for number in range(150):
                    answer = connection.ask("GET", f"/{NAME}/heads/{number}")
                    assert (answer.body, answer.headers["x-amz-meta-long"]) == (b"x", value)
                proxy.settle()
        cached = sum(len(subject.whole) + len(subject.whole_with_checksums) + len(subject.part)
                   for subject in path._subjects.values())  # fmt: skip
        assert 0 < cached <= limit
        assert cached <= path._subjects_bytes <= limit


def test_a_listing_that_finds_no_room_is_passed_on_and_not_kept(bucket: Bucket, tmp_path: Path) -> None:
    config: dict[str, Any] = {"list_cache": ({"prefixes": "*", "ttl_s": 3600},)}
    with Proxy(bucket, **config) as proxy:
        target = f"/{NAME}?list-type=2&prefix=small"
        memory = memory_of(proxy)
        room = free_bytes(memory)
        assert memory.take(room)
        for _ in range(2):
            answer = ask(proxy.address, "GET", target)
            assert (answer.status, answer.headers["x-cache"]) == (200, "BYPASS")
        memory.give_back(room)
        ask(proxy.address, "GET", target)
        kept = ask(proxy.address, "GET", target)
        assert kept.headers["x-cache"] == "HIT"
        proxy.settle()
        assert memory.used_bytes == 0
        with memory.held(room):
            answer = ask(proxy.address, "GET", target)
            assert (answer.status, answer.headers["x-cache"], answer.body) == (200, "BYPASS", kept.body)


async def test_a_kept_list_on_its_way_to_slow_clients_is_in_memory_once(bucket: Bucket) -> None:
    """20 pages of a megabyte would not fit into the budget of 16 MiB, and none of them fits into a socket."""
    keys = (f"listed/{number:04}/{'n' * 900}" for number in range(1000))
    entries = "".join(f"<Contents><Key>{key}</Key><Size>0</Size></Contents>" for key in keys)
    xml = f"<ListBucketResult><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>".encode()
    with (
        Recorder(lambda _: b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(xml) + xml) as origin,
        Proxy(bucket, origin.endpoint, buffer_bytes=BUDGET, list_cache=({"prefixes": "*", "ttl_s": 3600},)) as proxy,
    ):
        target, memory = f"/{NAME}?list-type=2&prefix=listed/", memory_of(proxy)
        page = ask(proxy.address, "GET", target)
        assert page.headers["x-cache"] == "BYPASS"
        async with crowd(proxy.address, 20, slow=True) as clients:
            for client in clients:
                client.ask("GET", target)
            heads = [await client.head() for client in clients]
            assert {(head.status, head.headers["x-cache"]) for head in heads} == {(200, "HIT")}
            assert memory.used_bytes == len(page.body) > 900_000
            # One reads on to the end, and the others hang up.
            assert await clients[0].is_body(page.body)
        proxy.settle()
        assert memory.used_bytes == 0


def test_at_the_limit_of_connections_the_proxy_closes_sockets_and_lives_on(bucket: Bucket) -> None:
    """Hundreds of connections come and go at the limit of connections."""
    with Proxy(bucket, max_connections=5) as proxy:
        for _ in range(rounds(3)):
            sockets = [socket.create_connection(proxy.address, timeout=60) for _ in range(100)]
            for each in sockets:
                each.close()
        _connected(proxy, 0)
        assert ask(proxy.address, "GET", f"/{NAME}/small").body == SMALL
