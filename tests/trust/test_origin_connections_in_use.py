"""All connections to the origin in use by slow readers: other requests get a 503 SlowDown in time."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import TYPE_CHECKING

import pytest

from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.core.errors import OriginBusy
from outrider.metrics import Metrics
from outrider.ports import OriginRequest
from tests.contract.test_origin import Keys
from tests.support.bucket import REGION
from tests.support.conditions import Conditions, Fault, FaultKind
from tests.support.fakes import pieces_of, ramp, reply_to
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, ask, request

if TYPE_CHECKING:
    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator
    from tests.support.trials import Trials

MIB = 1024 * 1024
NAME = "busy"
# Larger than all buffers between the bucket and a client that reads nothing.
LARGE = ramp(64 * MIB)


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="large", Body=LARGE)
    client.put_object(Bucket=NAME, Key="small", Body=LARGE[:1000])
    client.close()


def test_while_slow_readers_have_all_connections_others_are_asked_to_slow_down(bucket: Bucket, trials: Trials) -> None:
    asked = [
        ("PUT", f"/{NAME}/written", b"data"),
        ("PUT", f"/{NAME}/empty", b""),
        ("GET", f"/{NAME}/small", b""),
        ("HEAD", f"/{NAME}/small", b""),
        ("GET", f"/{NAME}?list-type=2", b""),
        ("DELETE", f"/{NAME}/small", b""),
    ]
    # No block is cached: a body passes by the cache, as fast as its reader takes it.
    with Proxy(
        bucket, policy="none", cache_size="4KiB", origin_connections=1, origin_timeout_s="1"
    ) as proxy, ThreadPoolExecutor(len(asked)) as clients:  # fmt: skip
        with RawConnection(proxy.address) as slow:
            slow.send(request("GET", f"/{NAME}/large"))
            head = slow.read_head()
            # The read begins after the first block, which a connection of its own brought.
            assert head.read(12 * MIB) == LARGE[: 12 * MIB]

            def turned_away(case: tuple[str, str, bytes]) -> None:
                method, target, body = case
                length = [("content-length", str(len(body)))] if method == "PUT" else []
                # Less than the time that the proxy waits for a connection that never becomes free.
                with RawConnection(proxy.address, 30.0) as connection:
                    answer = connection.ask(method, target, length, body)
                assert (answer.status, answer.headers.get("retry-after")) == (503, "1"), (case, answer)
                assert method == "HEAD" or answer.code == "SlowDown", case

            list(clients.map(turned_away, asked))
            trials.record("load", "all connections to the bucket in use", "503 SlowDown", times=len(asked))
            assert head.read() == LARGE[12 * MIB :], "a reader that has a connection keeps it"
            proxy.settle()
            assert slow.ask("HEAD", f"/{NAME}/small").status == 200
        assert ask(proxy.address, "GET", f"/{NAME}/written").code == "NoSuchKey"
        assert ask(proxy.address, "GET", f"/{NAME}/small").body == LARGE[:1000]


async def test_a_connection_is_free_once_the_reply_was_read_even_before_its_reader_ends(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = HttpOrigin(bucket.endpoint, REGION, Keys(bucket), Metrics(), time.time, connections=1, read_timeout_s=60)
    await origin.open()
    small, large = (OriginRequest("GET", NAME, key) for key in ("small", "large"))
    try:
        async with reply_to(origin, small) as first, aclosing(pieces_of(first)) as chunks:
            assert b"".join([chunk async for chunk in chunks]) == LARGE[:1000]
            async with reply_to(origin, large) as second:
                assert second.status == 200
                with monkeypatch.context() as hasty:
                    # For the wait for a connection alone: the bucket may take its time.
                    hasty.setattr(origin, "_read_timeout_s", 0.1)
                    with pytest.raises(OriginBusy):
                        async with reply_to(origin, small):
                            pass
        waiting, holding = asyncio.Event(), asyncio.Event()

        async def leave(held: HttpOrigin) -> None:
            async with reply_to(held, large):
                holding.set()
                await waiting.wait()

        # A request that gives up its wait, or is cancelled with the connection in hand, leaves the connection to
        # others.
        holder = asyncio.create_task(leave(origin))
        await holding.wait()
        queued = [asyncio.create_task(leave(origin)) for _ in range(3)]
        await asyncio.sleep(0)
        assert origin.waiting == 3
        for task in (queued[0], holder, queued[1]):
            task.cancel()
        await asyncio.wait([holder, *queued[:2]])
        waiting.set()
        await queued[2]
        assert origin.waiting == 0
        async with reply_to(origin, small) as reply:
            assert reply.status == 200
    finally:
        await origin.close()


@pytest.mark.parametrize("connections", [1, 4])
def test_first_bodies_that_break_do_not_keep_their_connections_from_those_that_go_on(
    bucket: Bucket, simulator: Simulator, trials: Trials, connections: int
) -> None:
    data = LARGE[: 5 * MIB]
    direct = bucket.client()
    for number in range(connections):
        direct.put_object(Bucket=NAME, Key=f"first-{connections}-{number}", Body=data)
    direct.close()
    broken = Fault(FaultKind.TRUNCATE, times=connections, path_contains=f"first-{connections}", after_bytes=2 * MIB)
    simulator.conditions = Conditions(connection_bytes_s=8e6, faults=[broken])
    with Proxy(
        bucket, simulator.endpoint, origin_connections=connections, origin_timeout_s="2", prefetch="off"
    ) as proxy, ThreadPoolExecutor(connections) as clients:  # fmt: skip
        targets = [f"/{NAME}/first-{connections}-{number}" for number in range(connections)]
        answers = list(clients.map(lambda target: ask(proxy.address, "GET", target), targets))
    trials.record("load", "all connections in use, bodies that break", "the right bytes", times=connections)
    assert [answer.body == data for answer in answers] == [True] * connections
