"""The verdict of a running proxy before a real bucket: reads that wait, fail, and are served; and how it is shown."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

from outrider.cli.stats import view
from outrider.http.s3.connection import Connection
from tests.server.test_waiting_times import MovedClock
from tests.support.conditions import Fault, FaultKind
from tests.support.control_bucket import TARGET, batch, body_of, entries_in
from tests.support.fakes import no_wait_patience
from tests.support.nodes import until
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, ask, request

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

NAME = "verdicts"
BODY = bytes(range(250)) * 400
# More than the sockets of both sides take at once.
LARGE = bytes(range(250)) * (16 * 4000)


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {f"train/shard-{number:06d}.tar": BODY for number in range(6)} | {"large/shard-1.tar": LARGE})


@pytest.fixture
def proxy(bucket: Bucket, simulator: Simulator) -> Iterator[Proxy]:
    with Proxy(bucket, simulator.endpoint, freshness="immutable", verify_origin="off") as running:
        yield running


def read(proxy: Proxy, *numbers: int) -> None:
    for number in numbers:
        assert ask(proxy.address, "GET", f"/{NAME}/train/shard-{number:06d}.tar").body == BODY
        proxy.settle()


def only_reader(proxy: Proxy) -> dict[str, Any]:
    (reader,) = proxy.status()["readers"]
    return dict(reader)


def test_a_reader_whose_first_read_waits_is_waiting_and_judged(
    proxy: Proxy, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovedClock(monkeypatch)
    simulator.conditions.faults = [Fault(FaultKind.LATE)]
    with RawConnection(proxy.address) as connection:
        connection.send(request("GET", f"/{NAME}/train/shard-000000.tar"))
        until(lambda: simulator.counts().requests, "the request to the bucket")
        clock.push(30.0)
        reader = only_reader(proxy)
        assert (reader["dataset"], reader["requests"], reader["reads_under_way"]) == ("train/shard-{}.tar", 0, 1)
        assert 30 <= reader["waiting_s"] < 60
        assert (reader["slow"], reader["stall"]) == ("bucket", 1.0)
        verdict = proxy.status()["verdict"]
        assert verdict["text"].startswith("bucket-bound: reads wait for the bucket (waited 100 %")
        assert verdict["next"] == f"Warm the data before the job reads it: `outrider warm s3://{NAME}/train/`."
        simulator.release()
        assert connection.read_answer().body == BODY
    proxy.settle()
    reader = only_reader(proxy)
    assert (reader["requests"], reader["reads_under_way"], reader["waiting_s"]) == (1, 0, None)


def test_a_batch_under_way_is_a_read_that_waits(
    proxy: Proxy, simulator: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = MovedClock(monkeypatch)
    simulator.conditions.faults = [Fault(FaultKind.LATE, times=None)]
    body = body_of([f"s3://{NAME}/train/shard-{number:06d}.tar" for number in range(6)])
    with RawConnection(proxy.address) as connection:
        connection.send(request("POST", TARGET, (("content-length", str(len(body))),), body))
        until(lambda: simulator.counts().requests, "the request to the bucket")
        clock.push(30.0)
        reader = only_reader(proxy)
        assert (reader["dataset"], reader["requests"], reader["reads_under_way"]) == ("train/shard-{}.tar", 0, 1)
        assert 30 <= reader["waiting_s"] < 60
        assert reader["slow"] == "bucket"
        simulator.conditions.faults = []
        simulator.release()
        assert [entry.content for entry in entries_in(connection.read_answer("POST").body)] == [BODY] * 6
    proxy.settle()
    reader = only_reader(proxy)
    assert (reader["requests"], reader["reads_under_way"], reader["waiting_s"]) == (6, 0, None)


def test_a_reader_that_takes_no_bytes_does_not_wait(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = MovedClock(monkeypatch)
    with RawConnection(proxy.address) as connection:
        connection.send(request("GET", f"/{NAME}/large/shard-1.tar"))
        connection.read_head()
        (client,) = proxy.outrider.server.connections
        assert isinstance(client, Connection)
        until(lambda: client.wire is not None and client.wire.full_since is not None, "a full socket")
        clock.push(300.0)
        reader = only_reader(proxy)
        assert (reader["reads_under_way"], reader["waiting_s"]) == (1, None)
        assert reader["slow"] == "readers"


def test_reads_that_fail_are_an_alert_for_a_minute_and_stand_among_the_last_errors(
    bucket: Bucket, simulator: Simulator
) -> None:
    simulator.conditions.faults = [Fault(FaultKind.STATUS, times=None, status=500)]
    with Proxy(bucket, simulator.endpoint, verify_origin="off", patience=no_wait_patience()) as proxy:
        assert proxy.status()["verdict"]["alerts"] == []
        for number in (0, 1):
            assert ask(proxy.address, "GET", f"/{NAME}/train/shard-{number:06d}.tar").status >= 500
        batch(proxy, [f"s3://{NAME}/train/shard-{number:06d}.tar" for number in range(3)])
        proxy.settle()
        status = proxy.status()
        assert status["verdict"]["alerts"] == ["5 reads failed in the last minute: see the last errors"]
        assert any(error["detail"].startswith("GET /verdicts/train/") for error in status["errors"])


def test_a_bucket_that_cannot_be_reached_fails_in_plain_words(bucket: Bucket, simulator: Simulator) -> None:
    with Proxy(bucket, simulator.endpoint, verify_origin="off", origin_patience_s=60.0) as proxy, simulator.outage():
        reading = threading.Thread(target=ask, args=(proxy.address, "GET", f"/{NAME}/train/shard-000000.tar"))
        reading.start()
        until(lambda: proxy.status()["verdict"]["slow"] == "failing", "a read that waits")
        verdict = proxy.status()["verdict"]
        assert verdict["level"] == "bad"
        assert verdict["text"].endswith(" s (cannot connect: Connection refused)")
        assert "`outrider doctor`" in verdict["next"]
        proxy.stop()
        reading.join()


def test_hits_that_wait_for_the_disk_are_measured(bucket: Bucket) -> None:
    with Proxy(bucket, freshness="immutable", verify_origin="off") as proxy:
        read(proxy, 0)
        assert proxy.metric("outrider_disk_wait_seconds_total") == 0
        proxy.restart()
        assert ask(proxy.address, "GET", f"/{NAME}/large/shard-1.tar").body == LARGE
        proxy.settle()
        proxy.restart()
        assert proxy.metric("outrider_disk_wait_seconds_total") == 0
        # A block is read from disk and verified at its first use.
        assert ask(proxy.address, "GET", f"/{NAME}/large/shard-1.tar").headers["x-cache"] == "HIT"
        proxy.settle()
        assert proxy.metric("outrider_disk_wait_seconds_total") > 0


def shown(status: dict[str, Any]) -> list[str]:
    console = Console(width=200, highlight=False, force_terminal=False)
    with console.capture() as captured:
        console.print(view(status))
    return [line.rstrip() for line in captured.get().splitlines()]


def test_stats_shows_the_next_step_and_the_alerts(proxy: Proxy) -> None:
    read(proxy, 0, 1)
    status = proxy.status()
    status["verdict"] = {
        "slow": "cache", "level": "slower", "text": "cache too small: 40.0 GB more would save 31 % of GETs",
        "next": "Give the cache 40.0 GB more: `--cache-size 80GB`.", "alerts": ["1 of 3 members is away"],
    }  # fmt: skip
    (reader,) = status["readers"]
    reader.update(silent_s=31.0, reads_under_way=1, waiting_s=31.4)
    lines = shown(status)
    assert lines[1:4] == [
        "cache too small: 40.0 GB more would save 31 % of GETs", "Give the cache 40.0 GB more: `--cache-size 80GB`.",
        "1 of 3 members is away",
    ]  # fmt: skip
    assert any("train/shard-{}.tar" in line and line.endswith("waiting for 31 s") for line in lines)
    older = status | {"verdict": {"slow": "machine", "text": "served from disk"}}
    assert shown(older)[1] == "served from disk"
