"""Writes through the proxy into a real bucket: stored exactly, in bounded memory, and the next read sees them.

`tests/engine/write` and `tests/unit/s3` have the bodies that are refused, `test_areas` the calls of S3's API.
"""

from __future__ import annotations

import http.client
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from tests.support import forms
from tests.support.control_bucket import wait_until
from tests.support.proxy import Proxy, ServedProxy
from tests.support.rawhttp import RawConnection, ask
from tests.support.signed_requests import Chunked, checksum

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket

MIB = 1024 * 1024
RAMP = (bytes(range(251)) * (9 * MIB // 251 + 1))[: 9 * MIB]
NAME = "writes"


@pytest.fixture(scope="module", autouse=True)
def home(bucket: Bucket) -> str:
    return bucket.make_bucket(NAME)


@pytest.fixture
def direct(bucket: Bucket) -> Iterator[Any]:
    client = bucket.client()
    yield client
    client.close()


@pytest.fixture(scope="module")
def proxy(bucket: Bucket) -> Iterator[Proxy]:
    # The proxy sends no needless request to the bucket: it learns of new content from the writes alone.
    with Proxy(bucket, freshness="immutable", warm_writes=(f"{NAME}/warm/*",)) as running:
        yield running


def read(proxy: Proxy, key: str) -> bytes:
    answer = ask(proxy.address, "GET", f"/{NAME}/{key}")
    assert answer.status == 200, answer.body
    return answer.body


def test_a_put_is_stored_and_the_next_read_is_the_new_one(proxy: Proxy, direct: Any) -> None:
    client = proxy.client()
    for size in (0, 1, 70_000, 9 * MIB):
        client.put_object(
            Bucket=NAME, Key="plain", Body=RAMP[:size], ContentType="x/y", Metadata={"note": str(size)},
            ContentEncoding="gzip", CacheControl="no-cache",
        )  # fmt: skip
        answer = client.get_object(Bucket=NAME, Key="plain")
        assert answer["Body"].read() == RAMP[:size]
        assert direct.get_object(Bucket=NAME, Key="plain")["Body"].read() == RAMP[:size]
        head = direct.head_object(Bucket=NAME, Key="plain")
        assert (head["ContentType"], head["Metadata"], head["ContentEncoding"]) == ("x/y", {"note": str(size)}, "gzip")
        assert answer["Metadata"] == head["Metadata"]
        proxy.settle()
        assert client.get_object(Bucket=NAME, Key="plain")["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == "HIT"


def test_every_kind_of_write_makes_the_next_read_revalidate(proxy: Proxy, direct: Any) -> None:
    client = proxy.client()

    def begin() -> None:
        direct.put_object(Bucket=NAME, Key="changed", Body=b"old")
        direct.put_object(Bucket=NAME, Key="source", Body=b"new")
        assert client.put_object(Bucket=NAME, Key="changed", Body=b"old")
        assert read(proxy, "changed") == b"old"

    begin()
    client.put_object(Bucket=NAME, Key="changed", Body=b"new")
    assert read(proxy, "changed") == b"new"
    begin()
    client.copy_object(Bucket=NAME, Key="changed", CopySource={"Bucket": NAME, "Key": "source"})
    assert read(proxy, "changed") == b"new"
    begin()
    parts = client.create_multipart_upload(Bucket=NAME, Key="changed")["UploadId"]
    etag = client.upload_part(Bucket=NAME, Key="changed", UploadId=parts, PartNumber=1, Body=b"new")["ETag"]
    assert read(proxy, "changed") == b"old"
    client.complete_multipart_upload(
        Bucket=NAME, Key="changed", UploadId=parts, MultipartUpload={"Parts": [{"ETag": etag, "PartNumber": 1}]}
    )
    assert read(proxy, "changed") == b"new"
    begin()
    client.delete_object(Bucket=NAME, Key="changed")
    assert ask(proxy.address, "GET", f"/{NAME}/changed").code == "NoSuchKey"
    begin()
    listed = {"Objects": [{"Key": "changed"}, {"Key": "ä & <b>"}], "Quiet": True}
    assert "Errors" not in client.delete_objects(Bucket=NAME, Delete=listed)
    assert ask(proxy.address, "GET", f"/{NAME}/changed").code == "NoSuchKey"


def test_a_write_where_a_rule_says_so_is_read_from_the_cache(proxy: Proxy) -> None:
    client = proxy.client()

    def put(key: str) -> None:
        client.put_object(Bucket=NAME, Key="cold/put", Body=b"new")
        client.put_object(Bucket=NAME, Key=key, Body=b"new")

    def copy(key: str) -> None:
        client.copy_object(Bucket=NAME, Key=key, CopySource={"Bucket": NAME, "Key": "warm/put"})

    def multipart(key: str) -> None:
        upload = client.create_multipart_upload(Bucket=NAME, Key=key)["UploadId"]
        etag = client.upload_part(Bucket=NAME, Key=key, UploadId=upload, PartNumber=1, Body=b"new")["ETag"]
        parts = {"Parts": [{"ETag": etag, "PartNumber": 1}]}
        client.complete_multipart_upload(Bucket=NAME, Key=key, UploadId=upload, MultipartUpload=parts)

    def form(key: str) -> None:
        assert forms.post(proxy.address, NAME, forms.encoded([("key", key)], b"new")).status == 204

    for write in (put, copy, multipart, form):
        key = f"warm/{write.__name__}"
        proxy.settle()
        before = proxy.status()["blocks"]
        write(key)
        wait_until(lambda before=before: proxy.status()["blocks"] > before)  # type: ignore[misc]
        proxy.settle()
        assert proxy.status()["blocks"] == before + 1, "nothing else was fetched"
        asked = proxy.metric("outrider_origin_requests_total")
        answer = client.get_object(Bucket=NAME, Key=key)
        assert (answer["Body"].read(), answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"]) == (b"new", "HIT")
        assert proxy.metric("outrider_origin_requests_total") == asked


def test_a_write_that_fails_and_one_that_makes_nothing_warm_nothing(proxy: Proxy, direct: Any) -> None:
    proxy.settle()
    client, before = proxy.client(), proxy.status()["blocks"]
    for key in ("kept", "gone"):
        direct.put_object(Bucket=NAME, Key=f"warm/{key}", Body=b"old")
    client.delete_object(Bucket=NAME, Key="warm/gone")
    client.put_object_tagging(Bucket=NAME, Key="warm/kept", Tagging={"TagSet": [{"Key": "k", "Value": "v"}]})
    upload = client.create_multipart_upload(Bucket=NAME, Key="warm/kept")["UploadId"]
    client.upload_part(Bucket=NAME, Key="warm/kept", UploadId=upload, PartNumber=1, Body=b"new")
    client.abort_multipart_upload(Bucket=NAME, Key="warm/kept", UploadId=upload)
    with pytest.raises(ClientError):
        client.copy_object(Bucket=NAME, Key="warm/kept", CopySource={"Bucket": NAME, "Key": "no such"})
    proxy.settle()
    assert proxy.status()["blocks"] == before


def test_a_client_that_expects_100_continue_gets_it_and_no_other_does(proxy: Proxy) -> None:
    def head(target: str, length: int) -> bytes:
        lines = f"PUT {target} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nexpect: 100-continue\r\n\r\n"
        return lines.encode()

    with RawConnection(proxy.address) as connection:
        # An empty body, too: otherwise awscli takes the final answer for an early one, and misreads the next one.
        for key, length, status in (
            ("expected", 4, 200), ("nothing-expected", 0, 200), ("none?uploadId=none&partNumber=1", 0, 404)
        ):  # fmt: skip
            connection.send(head(f"/{NAME}/{key}", length))
            assert connection.read_line() == b"HTTP/1.1 100 Continue\r\n"
            assert connection.read_line() == b"\r\n"
            connection.send(b"body"[:length])
            assert connection.read_answer("PUT").status == status
    assert read(proxy, "expected") == b"body"
    with RawConnection(proxy.address) as connection:
        connection.send(head("/.../k", 4))
        assert connection.read_answer("PUT").code == "InvalidBucketName"
        assert connection.is_closed_by_peer(), "an unrequested body might be taken for a request"


def test_no_body_of_a_write_is_requested_while_the_origin_cannot_be_reached(bucket: Bucket) -> None:
    with Proxy(bucket, "http://127.0.0.1:9") as away:
        for length in (4, 4 * MIB):
            with RawConnection(away.address) as connection:
                head = f"PUT /{NAME}/k HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nexpect: 100-continue\r\n\r\n"
                connection.send(head.encode())
                assert connection.read_line().startswith(b"HTTP/1.1 503 ")


def test_an_unsigned_trailer_is_passed_on(proxy: Proxy, direct: Any) -> None:
    body = RAMP[:40_000]
    for name in ("crc32", "crc32c", "crc64nvme", "sha256"):
        key = f"trailer-{name}"
        upload = Chunked(body, trailer=(f"x-amz-checksum-{name}", checksum(name, body)))
        wire = upload.encode()
        headers = [*upload.headers(), ("x-amz-content-sha256", upload.form), ("content-length", str(len(wire))),
                   ("x-amz-sdk-checksum-algorithm", name.upper())]  # fmt: skip
        assert ask(proxy.address, "PUT", f"/{NAME}/{key}", headers, wire).status == 200
        assert read(proxy, key) == body
        head = direct.head_object(Bucket=NAME, Key=key, ChecksumMode="ENABLED")
        assert head.get("ContentEncoding", "") == ""
        assert head.get(f"Checksum{name.upper()}", checksum(name, body)) == checksum(name, body)


def peak_bytes(pid: int) -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def test_large_uploads_are_streamed(bucket: Bucket, direct: Any, tmp_path: Path) -> None:
    size = 64 * MIB
    served = ServedProxy(bucket, tmp_path)
    served.forked = False  # its memory is measured

    def put(key: str, size: int) -> None:
        connection = http.client.HTTPConnection(*served.address, timeout=60)
        body = (RAMP[:MIB] for _ in range(size // MIB))
        connection.request("PUT", f"/{NAME}/{key}", body=body, headers={"content-length": str(size)})
        assert connection.getresponse().status == 200
        connection.close()

    def form(key: str, size: int) -> None:
        assert forms.post(served.address, NAME, forms.encoded([("key", key)], bytes(size))).status == 204

    with served:
        for write in (put, form):
            write("warm-up", MIB)
            before = peak_bytes(served.pid)
            write("large", size)
            grown = peak_bytes(served.pid) - before
            assert direct.head_object(Bucket=NAME, Key="large")["ContentLength"] == size
            # Buffers of sockets and of two HTTP libraries, not the object.
            assert grown < 32 * MIB, f"{grown} bytes by {write.__name__}"
    direct.delete_object(Bucket=NAME, Key="large")
