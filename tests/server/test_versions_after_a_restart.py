"""A proxy that was stopped or killed asks the bucket nothing about the objects in its cache, unless their time is up or
a write came in between."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import forms
from tests.support.conditions import Fault, FaultKind
from tests.support.proxy import Proxy, ServedProxy, s3_client
from tests.support.rawhttp import RawConnection, ask, request

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator

NAME = "restart"
COUNT = 10
KEYS = [f"train/{number:06d}.jpg" for number in range(COUNT)]
NEW = b"written through the proxy"


def body_of(key: str) -> bytes:
    return key.encode() * 500  # 8 KiB and some


@pytest.fixture(autouse=True)
def objects(bucket: Bucket) -> None:
    bucket.store(NAME, {key: body_of(key) for key in KEYS})


def end(proxy: ServedProxy, number: signal.Signals) -> None:
    proxy.settle()
    proxy.send(number)
    assert proxy.wait() == (0 if number is signal.SIGTERM else -number)


def read_all(endpoint: str) -> list[str]:
    """The `x-cache` of each object. boto3 asks for checksums, too."""
    with closing(s3_client(endpoint)) as client:
        seen = []
        for key in KEYS:
            answer = client.get_object(Bucket=NAME, Key=key)
            assert answer["Body"].read() == body_of(key)
            seen.append(answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"])
        return seen


def test_a_restarted_proxy_asks_the_bucket_nothing_about_immutable_objects(
    bucket: Bucket, simulator: Simulator, tmp_path: Path
) -> None:
    with ServedProxy(bucket, tmp_path, simulator.endpoint, freshness="immutable", prefetch="off") as proxy:
        assert read_all(proxy.endpoint) == ["MISS"] * COUNT
        for ends in (signal.SIGTERM, signal.SIGTERM, signal.SIGKILL, signal.SIGKILL):
            end(proxy, ends)
            proxy.start()
            simulator.reset()
            assert read_all(proxy.endpoint) == ["HIT"] * COUNT
            assert simulator.log() == []


def put(client: Any, address: tuple[str, int], key: str) -> None:
    client.put_object(Bucket=NAME, Key=key, Body=NEW)


def copy(client: Any, address: tuple[str, int], key: str) -> None:
    client.put_object(Bucket=NAME, Key="source", Body=NEW)
    client.copy_object(Bucket=NAME, Key=key, CopySource={"Bucket": NAME, "Key": "source"})


def multipart(client: Any, address: tuple[str, int], key: str) -> None:
    upload = client.create_multipart_upload(Bucket=NAME, Key=key)["UploadId"]
    part = client.upload_part(Bucket=NAME, Key=key, UploadId=upload, PartNumber=1, Body=NEW)
    client.complete_multipart_upload(
        Bucket=NAME, Key=key, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    )


def form(client: Any, address: tuple[str, int], key: str) -> None:
    body = forms.encoded([("key", key)], NEW)
    kind = ("content-type", f"multipart/form-data; boundary={forms.BOUNDARY}")
    answer = ask(address, "POST", f"/{NAME}", [kind, ("content-length", str(len(body)))], body)
    assert answer.status == 204


def delete(client: Any, address: tuple[str, int], key: str) -> None:
    client.delete_object(Bucket=NAME, Key=key)


def delete_many(client: Any, address: tuple[str, int], key: str) -> None:
    client.delete_objects(Bucket=NAME, Delete={"Objects": [{"Key": key}]})


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_write_through_the_proxy_shows_after_it_was_stopped_or_killed(
    number: signal.Signals, bucket: Bucket, simulator: Simulator, tmp_path: Path
) -> None:
    writes = dict(zip(KEYS, (put, copy, multipart, form, delete, delete_many), strict=False))
    with ServedProxy(bucket, tmp_path, simulator.endpoint, freshness="immutable", prefetch="off") as proxy:
        assert read_all(proxy.endpoint) == ["MISS"] * COUNT
        with closing(s3_client(proxy.endpoint)) as client:
            for key, write in writes.items():
                write(client, proxy.address, key)
        for _ in range(2):
            end(proxy, number)
            proxy.start()
            simulator.reset()
            for key in KEYS:
                answer = ask(proxy.address, "GET", f"/{NAME}/{key}")
                if writes.get(key) in (delete, delete_many):
                    assert answer.status == 404
                else:
                    assert answer.body == (NEW if key in writes else body_of(key))
            assert {asked.path for asked in simulator.log()} <= {f"/{NAME}/{key}" for key in writes}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_write_that_a_stop_or_a_crash_cut_off_is_in_doubt_after_the_start(
    number: signal.Signals, bucket: Bucket, simulator: Simulator, tmp_path: Path
) -> None:
    served = ServedProxy(bucket, tmp_path, simulator.endpoint, freshness="immutable", prefetch="off")
    served.environment["OUTRIDER_DRAIN_S"] = "0"
    with served as proxy:
        assert read_all(proxy.endpoint) == ["MISS"] * COUNT
        proxy.settle()
        simulator.conditions.faults = [Fault(FaultKind.LATE, method="PUT")]
        with RawConnection(proxy.address) as connection:
            connection.send(request("PUT", f"/{NAME}/{KEYS[0]}", [("content-length", str(len(NEW)))]) + NEW)
            proxy.wait_until(lambda: any(asked.method == "PUT" for asked in simulator.log()), "the write at the bucket")
            proxy.send(number)
            assert proxy.wait() == (0 if number is signal.SIGTERM else -number)
        simulator.release()
        proxy.start()
        for _ in range(3):
            simulator.reset()
            ask(proxy.address, "GET", f"/{NAME}/{KEYS[0]}")
            assert [asked.path for asked in simulator.log()] == [f"/{NAME}/{KEYS[0]}"]


def test_a_version_that_the_bucket_no_longer_has_is_not_served_after_a_crash(
    bucket: Bucket, simulator: Simulator, tmp_path: Path
) -> None:
    with ServedProxy(bucket, tmp_path, simulator.endpoint, freshness="immutable", prefetch="off") as proxy:
        assert read_all(proxy.endpoint) == ["MISS"] * COUNT
        with closing(bucket.client()) as client:
            client.delete_object(Bucket=NAME, Key=KEYS[0])
        # A condition that fails on the version in the cache is asked of the bucket.
        answer = ask(proxy.address, "GET", f"/{NAME}/{KEYS[0]}", [("if-match", '"another"')])
        assert answer.status == 404
        noted = proxy.cache_dir / "touched"
        proxy.wait_until(lambda: KEYS[0] in noted.read_text(), "the note")
        end(proxy, signal.SIGKILL)
        proxy.start()
        assert ask(proxy.address, "GET", f"/{NAME}/{KEYS[0]}").status == 404


@pytest.mark.parametrize(("freshness", "restarts"), [
    ("ttl:600", {300.0: False, 601.0: True}), ("immutable", {601.0: False, -60.0: True}), ("always", {0.0: True}),
])  # fmt: skip
def test_the_time_to_live_goes_on_while_the_proxy_is_off(
    freshness: str, restarts: dict[float, bool], bucket: Bucket, simulator: Simulator
) -> None:
    """`restarts`: at this time by the wall clock, which may step back, with or without questions to the bucket."""
    ahead_s = 0.0
    with Proxy(
        bucket, simulator.endpoint, freshness=freshness, wall_clock=lambda: time.time() + ahead_s
    ) as proxy:  # fmt: skip
        read_all(proxy.endpoint)
        for at_s, asks in restarts.items():
            proxy.settle()
            proxy.stop()
            ahead_s = at_s
            proxy.restart(crashed=True)
            simulator.reset()
            for _ in range(2):
                assert read_all(proxy.endpoint) == ["HIT"] * COUNT
            rounds = 2 if freshness == "always" else 1
            assert {asked.method for asked in simulator.log()} <= {"HEAD"}
            assert len(simulator.log()) == (rounds * COUNT if asks else 0)
