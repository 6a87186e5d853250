"""The access log of a real proxy identifies readers, so that `outrider simulate` can distinguish them."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING

import pytest

from outrider.simulator.logs import requests_of
from tests.support.proxy import ServedProxy, s3_client

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket

NAME = "access-log"
APPS = ["sweep-1", "sweep-2", None]
READERS = ["127.0.0.1", "127.0.0.2"]
KEYS = [f"train/{number:03d}.tar" for number in range(3)]


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {key: key.encode() for key in KEYS})


def read(proxy: ServedProxy, reader: str, key: str) -> str:
    """Returns the reply's `x-cache`."""
    connection = http.client.HTTPConnection(*proxy.address, timeout=60.0, source_address=(reader, 0))
    try:
        connection.request("GET", f"/{NAME}/{key}")
        with connection.getresponse() as response:
            assert response.read() == key.encode()
            return response.headers["x-cache"]
    finally:
        connection.close()


def test_two_addresses_are_two_readers_in_a_simulation_of_the_log(bucket: Bucket, tmp_path: Path) -> None:
    with ServedProxy(bucket, tmp_path, prefetch="off", freshness="immutable") as proxy:
        seen = []
        for key in KEYS:
            for reader in (*READERS, *READERS):
                seen.append((reader, read(proxy, reader, key)))
                proxy.settle()
    assert {cache for reader, cache in seen if reader == READERS[1]} == {"HIT"}
    lines = proxy.log.read_text().splitlines()
    addresses = [json.loads(line)["address"] for line in lines if '"event": "request"' in line]
    assert addresses == [reader for reader, _ in seen], "hits, whose lines are bundled, and misses"
    requests = requests_of(lines)
    assert len(requests) == len(seen)
    readers = {request.client for request in requests}
    assert len(readers) == 2
    assert {(request.client, request.key) for request in requests} == {
        (reader, key) for reader in readers for key in KEYS
    }


def test_jobs_at_one_address_that_name_themselves_are_readers_of_their_own(bucket: Bucket, tmp_path: Path) -> None:
    """A job names itself by AWS_SDK_UA_APP_ID, which any AWS SDK sends, or by the client's own setting."""
    with ServedProxy(bucket, tmp_path, prefetch="off", freshness="immutable") as proxy:
        for app in APPS:
            client = s3_client(proxy.endpoint, user_agent_appid=app)
            for key in KEYS * 2:
                assert client.get_object(Bucket=NAME, Key=key)["Body"].read() == key.encode()
                proxy.settle()
            client.close()
        shown = {reader["name"]: reader["requests"] for reader in proxy.status()["readers"]}
    assert shown == {"127.0.0.1": 6, "127.0.0.1 sweep-1": 6, "127.0.0.1 sweep-2": 6}, "hits and misses"
    lines = proxy.log.read_text().splitlines()
    apps = [json.loads(line).get("app") for line in lines if '"event": "request"' in line]
    assert apps == [app for app in APPS for _ in range(6)]
    assert len({request.client for request in requests_of(lines)}) == len(APPS)
