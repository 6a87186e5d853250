"""Writes through the proxy into a real bucket: stored exactly or not at all, and the next read sees them."""

from __future__ import annotations

import http.client
import io
import re
from base64 import b64encode
from hashlib import md5, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import ClientError

from tests.support import signed_requests
from tests.support.control_bucket import wait_until
from tests.support.proxy import Proxy, ServedProxy
from tests.support.rawhttp import Answer, RawConnection, ask
from tests.support.signed_requests import Chunked, checksum, chunk_signing, signed_head

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.bucket import Bucket

MIB = 1024 * 1024
RAMP = (bytes(range(251)) * (20 * MIB // 251 + 1))[: 20 * MIB]
NAME = "writes"
KEYS = ("WRITER", "writer-secret")


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


@pytest.fixture(scope="module")
def strict(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    """A proxy that verifies signatures."""
    clients = tmp_path_factory.mktemp("writers") / "clients.toml"
    clients.write_text(
        f'[[client]]\naccess_key = "{KEYS[0]}"\nsecret_key = "{KEYS[1]}"\n'
        f'grants = [{{bucket = "{NAME}", access = "write"}}]\n'
    )
    with Proxy(bucket, auth="sigv4", clients=clients) as running:
        yield running


def stored(direct: Any, key: str) -> bytes | None:
    """The object's content in the bucket itself; None: no such object."""
    try:
        return bytes(direct.get_object(Bucket=NAME, Key=key)["Body"].read())
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchKey":
            raise
        return None


def read(proxy: Proxy, key: str) -> bytes:
    answer = ask(proxy.address, "GET", f"/{NAME}/{key}")
    assert answer.status == 200, answer.body
    return answer.body


def put(proxy: Proxy, key: str, headers: list[tuple[str, str]], body: bytes) -> Answer:
    return ask(proxy.address, "PUT", f"/{NAME}/{key}", [*headers, ("content-length", str(len(body)))], body)


def test_a_put_is_stored_and_the_next_read_is_the_new_one(proxy: Proxy, direct: Any) -> None:
    client = proxy.client()
    for size in (0, 1, 70_000, 9 * MIB):
        client.put_object(
            Bucket=NAME, Key="plain", Body=RAMP[:size], ContentType="x/y", Metadata={"note": str(size)},
            ContentEncoding="gzip", CacheControl="no-cache",
        )  # fmt: skip
        answer = client.get_object(Bucket=NAME, Key="plain")
        assert answer["Body"].read() == RAMP[:size]
        assert stored(direct, "plain") == RAMP[:size]
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
    assert stored(direct, "changed") is None


def test_a_read_during_a_write_does_not_outlive_it(proxy: Proxy, direct: Any) -> None:
    """The old version, learned after the write began and before it was committed, is not trusted after it."""
    direct.put_object(Bucket=NAME, Key="overtaken", Body=b"old version")
    with RawConnection(proxy.address) as writer:
        writer.send(f"PUT /{NAME}/overtaken HTTP/1.1\r\nhost: x\r\ncontent-length: 11\r\n\r\nnew ".encode())
        assert read(proxy, "overtaken") == b"old version"
        writer.send(b"version")
        assert writer.read_answer("PUT").status == 200
    assert read(proxy, "overtaken") == b"new version"


def test_a_form_upload_makes_the_next_read_revalidate(proxy: Proxy, direct: Any) -> None:
    direct.put_object(Bucket=NAME, Key="form", Body=b"old")
    assert read(proxy, "form") == b"old"
    answer = upload_form(proxy, direct, "form")
    assert answer.status in (200, 204), answer.body
    assert read(proxy, "form") == b"new"


def upload_form(proxy: Proxy, direct: Any, key: str) -> Answer:
    post = direct.generate_presigned_post(NAME, key, ExpiresIn=600)
    lines = [
        f'--XX\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in post["fields"].items()
    ]
    lines.append('--XX\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\nnew\r\n--XX--\r\n')
    body = "".join(lines).encode()
    head = [("content-type", "multipart/form-data; boundary=XX"), ("content-length", str(len(body)))]
    return ask(proxy.address, "POST", f"/{NAME}", head, body)


@pytest.mark.parametrize("way", ["put", "copy", "multipart", "form"])
def test_what_is_written_where_a_rule_says_so_is_read_from_the_cache(proxy: Proxy, direct: Any, way: str) -> None:
    client, key = proxy.client(), f"warm/{way}"
    proxy.settle()
    before = proxy.status()["blocks"]
    if way == "put":
        client.put_object(Bucket=NAME, Key="cold/put", Body=b"new")
        client.put_object(Bucket=NAME, Key=key, Body=b"new")
    elif way == "copy":
        client.copy_object(Bucket=NAME, Key=key, CopySource={"Bucket": NAME, "Key": "warm/put"})
    elif way == "multipart":
        upload = client.create_multipart_upload(Bucket=NAME, Key=key)["UploadId"]
        etag = client.upload_part(Bucket=NAME, Key=key, UploadId=upload, PartNumber=1, Body=b"new")["ETag"]
        parts = {"Parts": [{"ETag": etag, "PartNumber": 1}]}
        client.complete_multipart_upload(Bucket=NAME, Key=key, UploadId=upload, MultipartUpload=parts)
    else:
        assert upload_form(proxy, direct, key).status in (200, 204)
    wait_until(lambda: proxy.status()["blocks"] > before)
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


def test_the_transfer_manager_stores_the_exact_bytes(proxy: Proxy, direct: Any) -> None:
    client = proxy.client()
    client.upload_fileobj(io.BytesIO(RAMP), NAME, "parts", Config=TransferConfig(max_concurrency=4))
    assert stored(direct, "parts") == RAMP
    assert read(proxy, "parts") == RAMP
    copied = client.upload_part_copy
    upload = client.create_multipart_upload(Bucket=NAME, Key="copied")["UploadId"]
    source = {"Bucket": NAME, "Key": "parts"}
    etag = copied(Bucket=NAME, Key="copied", UploadId=upload, PartNumber=1, CopySource=source)["CopyPartResult"]["ETag"]
    client.complete_multipart_upload(
        Bucket=NAME, Key="copied", UploadId=upload, MultipartUpload={"Parts": [{"ETag": etag, "PartNumber": 1}]}
    )
    assert read(proxy, "copied") == RAMP


def test_a_client_that_expects_100_continue_gets_it_and_no_other_does(proxy: Proxy, direct: Any) -> None:
    with RawConnection(proxy.address) as connection:
        head = f"PUT /{NAME}/expected HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\nexpect: 100-continue\r\n\r\n"
        connection.send(head.encode())
        assert connection.sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.send(b"body")
        assert connection.read_answer("PUT").status == 200
    assert stored(direct, "expected") == b"body"
    with RawConnection(proxy.address) as connection:
        connection.send(head.replace(f"/{NAME}/", "/.../").encode())
        assert connection.read_answer("PUT").code == "InvalidBucketName"
        assert connection.is_closed_by_peer(), "an unrequested body might be taken for a request"


def test_no_body_is_asked_for_while_the_origin_cannot_be_reached(bucket: Bucket) -> None:
    with Proxy(bucket, "http://127.0.0.1:9") as away:
        for length in (4, 4 * MIB):
            with RawConnection(away.address) as connection:
                head = f"PUT /{NAME}/k HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nexpect: 100-continue\r\n\r\n"
                connection.send(head.encode())
                assert connection.read_line().startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize("key", ["nothing-expected", "no-such-parameter?uploadId=none&partNumber=1"])
def test_an_empty_body_that_expects_100_continue_gets_it_too(proxy: Proxy, key: str) -> None:
    """Otherwise awscli takes the final answer for an early one, and misreads the next one on that connection."""
    with RawConnection(proxy.address) as connection:
        head = f"PUT /{NAME}/{key} HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nexpect: 100-continue\r\n\r\n"
        connection.send(head.encode())
        assert connection.read_line() == b"HTTP/1.1 100 Continue\r\n"
        assert connection.read_line() == b"\r\n"
        assert connection.read_answer("PUT").status == (404 if "?" in key else 200)
        assert connection.ask("HEAD", f"/{NAME}/{key.partition('?')[0]}").status == (404 if "?" in key else 200)


@pytest.mark.parametrize("name", ["crc32", "crc32c", "crc64nvme", "sha256"])
@pytest.mark.parametrize("size", [0, 1, 40_000])
def test_an_unsigned_trailer_is_passed_on(proxy: Proxy, direct: Any, name: str, size: int) -> None:
    body = RAMP[:size]
    upload = Chunked(body, trailer=(f"x-amz-checksum-{name}", checksum(name, body)))
    headers = [*upload.headers(), ("x-amz-content-sha256", upload.form), ("x-amz-sdk-checksum-algorithm", name.upper())]
    assert put(proxy, f"trailer-{name}", headers, upload.encode()).status == 200
    assert stored(direct, f"trailer-{name}") == body
    assert read(proxy, f"trailer-{name}") == body
    head = direct.head_object(Bucket=NAME, Key=f"trailer-{name}", ChecksumMode="ENABLED")
    assert head.get("ContentEncoding", "") == ""
    assert head.get(f"Checksum{name.upper()}", checksum(name, body)) == checksum(name, body)


def test_the_objects_content_encoding_is_kept_and_aws_chunked_is_removed(proxy: Proxy, direct: Any) -> None:
    upload = Chunked(b"zipped", trailer=("x-amz-checksum-crc32", checksum("crc32", b"zipped")))
    headers = [*upload.headers()[::2], ("content-encoding", "aws-chunked,gzip"), ("x-amz-content-sha256", upload.form)]
    assert put(proxy, "zipped", headers, upload.encode()).status == 200
    assert direct.head_object(Bucket=NAME, Key="zipped")["ContentEncoding"] == "gzip"


def test_a_chunked_transfer_of_aws_chunks_is_stored(proxy: Proxy, direct: Any) -> None:
    upload = Chunked(RAMP[:50_000], trailer=("x-amz-checksum-crc32", checksum("crc32", RAMP[:50_000])))
    headers = [*upload.headers(), ("x-amz-content-sha256", upload.form), ("transfer-encoding", "chunked")]
    wire = upload.encode()
    halves = b"".join(b"%x\r\n%s\r\n" % (len(half), half) for half in (wire[:777], wire[777:]))
    assert ask(proxy.address, "PUT", f"/{NAME}/te", headers, halves + b"0\r\n\r\n").status == 200
    assert stored(direct, "te") == RAMP[:50_000]


@pytest.mark.parametrize(
    "form", [signed_requests.SIGNED, signed_requests.SIGNED_TRAILER, signed_requests.UNSIGNED_TRAILER]
)
def test_chunks_of_each_form_are_verified_and_stored(strict: Proxy, direct: Any, form: str) -> None:
    body = RAMP[:70_000]
    trailer = None if form == signed_requests.SIGNED else ("x-amz-checksum-sha256", checksum("sha256", body))
    upload = Chunked(body, form, trailer)

    def send(key: str, wire_of: Any) -> Answer:
        target = f"/{NAME}/{key}"
        head = signed_head("PUT", strict.endpoint, target, KEYS, upload.headers(), form)
        signing = None if form == signed_requests.UNSIGNED_TRAILER else chunk_signing(head, KEYS[1])
        wire = wire_of(upload.encode(signing))
        with RawConnection(strict.address) as connection:
            lines = "".join(f"{name}: {value}\r\n" for name, value in [*head, ("content-length", str(len(wire)))])
            connection.send(f"PUT {target} HTTP/1.1\r\n{lines}\r\n".encode() + wire)
            return connection.read_answer("PUT")

    assert send(f"good-{form}", bytes).status == 200
    assert stored(direct, f"good-{form}") == body
    flipped = send(f"bad-{form}", lambda wire: wire.replace(RAMP[300:400], RAMP[301:401], 1))
    assert flipped.status in (400, 403)
    assert flipped.code in ("SignatureDoesNotMatch", "BadDigest")
    assert stored(direct, f"bad-{form}") is None


def test_a_payload_that_differs_from_the_signed_one_is_not_stored(proxy: Proxy, strict: Proxy, direct: Any) -> None:
    for size in (10, 3 * MIB):
        for each in (proxy, strict):
            wrong = sha256(b"something else").hexdigest()
            target = f"/{NAME}/wrong-hash"
            head = signed_head("PUT", each.endpoint, target, KEYS, [], wrong)
            with RawConnection(each.address) as connection:
                lines = "".join(f"{name}: {value}\r\n" for name, value in head)
                connection.send(
                    f"PUT {target} HTTP/1.1\r\n{lines}content-length: {size}\r\n\r\n".encode() + RAMP[:size]
                )
                answer = connection.read_answer("PUT")
            assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")
            assert stored(direct, "wrong-hash") is None


TRAILER = ("x-amz-checksum-crc32", checksum("crc32", RAMP[:5000]))
WRONG_CHUNKS: dict[str, tuple[Chunked, Callable[[bytes], bytes]]] = {
    "a trailer that does not match": (Chunked(RAMP[:5000], trailer=("x-amz-checksum-crc32", "AAAAAA==")), bytes),
    "a trailer without a valid checksum": (Chunked(RAMP[:5000], trailer=("x-amz-checksum-crc32", "!")), bytes),
    "a trailer that is missing": (Chunked(RAMP[:5000], trailer=TRAILER), lambda w: w[: w.rindex(b"x-amz")] + b"\r\n"),
    "a malformed size": (Chunked(RAMP[:5000], trailer=TRAILER), lambda w: b"zz" + w[4:]),
    "a size that is too large": (Chunked(RAMP[:5000], trailer=TRAILER), lambda w: b"fffffffffffffffff" + w[4:]),
    "less than was announced": (
        Chunked(RAMP[:5000], trailer=TRAILER),
        lambda w: Chunked(RAMP[:4000], trailer=TRAILER).encode(),
    ),
    "more than was announced": (
        Chunked(RAMP[:5000], trailer=TRAILER),
        lambda w: Chunked(RAMP[:6000], trailer=TRAILER).encode(),
    ),
    "no last chunk": (Chunked(RAMP[:5000], trailer=TRAILER), lambda w: w[: w.rindex(b"0\r\nx-amz")]),
    "bytes after the end": (Chunked(RAMP[:5000], trailer=TRAILER), lambda w: w + b"GET / HTTP/1.1\r\n"),
}


@pytest.mark.parametrize("case", WRONG_CHUNKS)
def test_wrong_chunks_are_not_stored(proxy: Proxy, direct: Any, case: str) -> None:
    upload, damage = WRONG_CHUNKS[case]
    answer = put(proxy, "wrong", [*upload.headers(), ("x-amz-content-sha256", upload.form)], damage(upload.encode()))
    assert answer.status == 400, answer.body
    assert answer.error["RequestId"]
    assert stored(direct, "wrong") is None


def test_a_digest_in_a_header_that_does_not_match_is_not_stored(proxy: Proxy, direct: Any) -> None:
    wrong_md5 = b64encode(md5(b"other").digest()).decode()
    for header in (("content-md5", wrong_md5), ("x-amz-checksum-crc32", "AAAAAA==")):
        answer = put(proxy, "wrong-digest", [header], b"body")
        assert answer.status == 400, answer.body
        assert stored(direct, "wrong-digest") is None


@pytest.mark.parametrize("size", [0, 10, 3 * MIB])
def test_a_body_that_ends_early_is_not_stored(proxy: Proxy, direct: Any, size: int) -> None:
    direct.put_object(Bucket=NAME, Key="early", Body=b"before")
    with RawConnection(proxy.address) as connection:
        connection.send(f"PUT /{NAME}/early HTTP/1.1\r\nhost: x\r\ncontent-length: {4 * MIB}\r\n\r\n".encode())
        connection.send(RAMP[:size])
    proxy.settle()
    assert stored(direct, "early") == b"before"


def test_a_body_without_a_length_is_refused(proxy: Proxy, direct: Any) -> None:
    answer = ask(proxy.address, "PUT", f"/{NAME}/endless", [("transfer-encoding", "chunked")], b"1\r\na\r\n0\r\n\r\n")
    assert (answer.status, answer.code) == (411, "MissingContentLength")
    assert stored(direct, "endless") is None


def test_an_early_refusal_of_the_origin_reaches_the_client(proxy: Proxy) -> None:
    body = RAMP[: 8 * MIB]
    answer = ask(proxy.address, "PUT", "/no-such-bucket-here/key", [("content-length", str(len(body)))], body)
    assert (answer.status, answer.code) == (404, "NoSuchBucket")


def test_a_write_while_the_origin_is_down_gets_503(proxy: Proxy, bucket: Bucket) -> None:
    with Proxy(bucket, "http://127.0.0.1:1") as lost:
        answer = put(lost, "key", [], b"body")
        assert (answer.status, answer.code) == (503, "ServiceUnavailable")
        listed = b"<Delete><Object><Key>a</Key></Object></Delete>"
        head = [("content-length", str(len(listed))), ("content-md5", b64encode(md5(listed).digest()).decode())]
        assert ask(lost.address, "POST", f"/{NAME}?delete", head, listed).code == "ServiceUnavailable"


def _peak_bytes(pid: int) -> int:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def test_a_large_upload_is_streamed(bucket: Bucket, direct: Any, tmp_path: Path) -> None:
    pieces = 200
    served = ServedProxy(bucket, tmp_path)
    served.forked = False  # its memory is measured
    with served:
        ask(served.address, "PUT", f"/{NAME}/warm-up", [("content-length", "1000000")], RAMP[:1_000_000])
        before = _peak_bytes(served.pid)
        connection = http.client.HTTPConnection(*served.address, timeout=60)
        body = (RAMP[n : n + MIB] for n in range(pieces))
        connection.request("PUT", f"/{NAME}/large", body=body, headers={"content-length": str(pieces * MIB)})
        response = connection.getresponse()
        assert response.status == 200, response.read()
        connection.close()
        grown = _peak_bytes(served.pid) - before
    assert direct.head_object(Bucket=NAME, Key="large")["ContentLength"] == pieces * MIB
    direct.delete_object(Bucket=NAME, Key="large")
    # A sixth of the bytes that passed: buffers of sockets and of two HTTP libraries, not the object.
    assert grown < 32 * MIB, f"{grown} bytes"
