"""Who waited for whom, over real sockets; and that each byte is told once, whichever way it went."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, ask, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.certificate import Certificate

NAME = "stalls"
# Far more than the sockets of both sides take at once.
LARGE = bytes(range(250)) * (64 * 4000)
SMALL = LARGE[:10_000]
CLIENTS = """
[[client]]
name = "alice"
access_key = "ALICEKEY"
secret_key = "alice/secret"
grants = [{bucket = "stalls", access = "read"}]
"""


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="large-001.tar", Body=LARGE)
    for number in range(4):
        client.put_object(Bucket=NAME, Key=f"small-{number:03d}.tar", Body=SMALL)
    client.close()


@pytest.fixture(params=["1", "2"])
def proxy(bucket: Bucket, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    """With one loop, and with one more."""
    with Proxy(bucket, freshness="immutable", workers=request.param) as running:
        yield running


def status(proxy: Proxy) -> dict[str, Any]:
    async def look() -> str:
        return json.dumps(proxy.outrider.status())

    told: dict[str, Any] = json.loads(proxy.on_loop(look))
    return told


def reader(proxy: Proxy, dataset: str) -> dict[str, Any]:
    (found,) = [one for one in status(proxy)["readers"] if one["dataset"] == dataset]
    return dict(found)


class Hand:
    """A clock in the hands of the test: `time.perf_counter`, pushed on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        import time

        self._real = time.perf_counter
        self._more = 0.0
        monkeypatch.setattr(time, "perf_counter", self)

    def __call__(self) -> float:
        return self._real() + self._more

    def push(self, seconds: float) -> None:
        self._more += seconds


def test_a_pause_between_requests_is_the_readers(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    hand = Hand(monkeypatch)
    with RawConnection(proxy.address) as connection:
        for _ in range(2):
            connection.ask("GET", f"/{NAME}/small-000.tar")
            proxy.settle()
        before = reader(proxy, "small-{}.tar")
        hand.push(30.0)
        connection.ask("GET", f"/{NAME}/small-000.tar")
        proxy.settle()
        after = reader(proxy, "small-{}.tar")
        assert after["requests"] - before["requests"] == 1
        assert 30 <= after["away_s"] - before["away_s"] < 45
        assert after["wait_s"] - before["wait_s"] < 15
        hand.push(5000.0)
        connection.ask("GET", f"/{NAME}/small-000.tar")
        proxy.settle()
        assert reader(proxy, "small-{}.tar")["away_s"] - after["away_s"] <= 60, "a spare connection tells nothing"


@pytest.mark.parametrize("warm", [True, False])
def test_a_full_socket_is_the_readers(proxy: Proxy, monkeypatch: pytest.MonkeyPatch, *, warm: bool) -> None:
    if warm:
        ask(proxy.address, "GET", f"/{NAME}/large-001.tar")
        proxy.settle()
        before = reader(proxy, "large-{}.tar")
    else:
        before = {"away_s": 0.0, "wait_s": 0.0, "requests": 0}
    hand = Hand(monkeypatch)
    with RawConnection(proxy.address) as connection:
        connection.send(request("GET", f"/{NAME}/large-001.tar"))
        connection.read_head()
        until_full(proxy)
        hand.push(40.0)
        connection.read_rest(len(LARGE))
    proxy.settle()
    after = reader(proxy, "large-{}.tar")
    assert after["requests"] - before["requests"] == 1
    assert 40 <= after["away_s"] - before["away_s"] < 55
    assert after["wait_s"] - before["wait_s"] < 15
