"""Writes through faults of the origin: each is sent once, acknowledged only by the origin, and never half stored."""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from tests.support import forms
from tests.support.conditions import Fault, FaultKind
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, ask, request
from tests.support.signed_requests import UNSIGNED_TRAILER, Chunked, checksum
from tests.support.trials import rounds
from tests.trust.origin import BLOCK, BROKEN, NAME, World

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.bucket import Bucket

LATE_READS_MAX = 100
OLD = b"as it was"
_numbers = count()


@pytest.fixture(scope="module")
def lasting(bucket: Bucket, running_world: World) -> Iterator[Proxy]:
    """A proxy that revalidates nothing by itself: it sends a request to the bucket only after a write invalidated a
    name."""
    with Proxy(bucket, running_world.simulator.endpoint, freshness="immutable", block_size=str(BLOCK)) as proxy:
        yield proxy


@dataclass
class Write:
    """A write of `key` as it is sent. `body` is its body, framed."""

    key: str
    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes = b""
    data: bytes = b""
    """The object after the write."""

    @property
    def raw(self) -> bytes:
        return request(self.method, self.target, [*self.headers, ("content-length", str(len(self.body)))], self.body)


def _new(world: World, method: str, query: str = "", *headers: tuple[str, str], body: bytes = b"") -> Write:
    key = f"written-{next(_numbers)}"
    world.direct.put_object(Bucket=NAME, Key=key, Body=OLD)
    return Write(key, method, f"/{NAME}/{key}{query}", [*headers], body, body)


def put(world: World) -> Write:
    return _new(world, "PUT", body=world.rng.randbytes(world.rng.choice((1, 1000, BLOCK, 5 * BLOCK + 1))))


def put_chunked(world: World) -> Write:
    made = put(world)
    chunked = Chunked(made.data, trailer=("x-amz-checksum-crc32", checksum("crc32", made.data)))
    made.headers, made.body = [*chunked.headers(), ("x-amz-content-sha256", UNSIGNED_TRAILER)], chunked.encode()
    return made


def put_by_form(world: World) -> Write:
    made = put(world)
    made.method, made.target = "POST", f"/{NAME}"
    made.headers = [("content-type", f"multipart/form-data; boundary={forms.BOUNDARY}")]
    made.body = forms.encoded([("key", made.key)], made.data)
    return made


def put_part(world: World) -> Write:
    made = put(world)
    upload = world.direct.create_multipart_upload(Bucket=NAME, Key=made.key)["UploadId"]
    made.target += f"?partNumber=1&uploadId={upload}"
    return made


def copy(world: World) -> Write:
    source = put(world)
    world.direct.put_object(Bucket=NAME, Key=source.key, Body=source.data)
    made = _new(world, "PUT", "", ("x-amz-copy-source", f"/{NAME}/{source.key}"))
    made.data = source.data
    return made


def create_upload(world: World) -> Write:
    return _new(world, "POST", "?uploads")


def complete_upload(world: World) -> Write:
    made = put_part(world)
    upload = made.target.rpartition("=")[2]
    part = world.direct.upload_part(Bucket=NAME, Key=made.key, UploadId=upload, PartNumber=1, Body=made.data)
    made.method, made.target = "POST", f"/{NAME}/{made.key}?uploadId={upload}"
    xml = f"<Part><PartNumber>1</PartNumber><ETag>{part['ETag']}</ETag></Part>"
    made.body = f"<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>".encode()
    return made


def abort_upload(world: World) -> Write:
    made = put_part(world)
    made.method, made.target = "DELETE", f"/{NAME}/{made.key}?uploadId={made.target.rpartition('=')[2]}"
    made.body, made.data = b"", OLD
    return made


def delete(world: World) -> Write:
    return _new(world, "DELETE")


def delete_several(world: World) -> Write:
    made = _new(world, "POST")
    made.target = f"/{NAME}?delete"
    made.body = f"<Delete><Object><Key>{made.key}</Key></Object></Delete>".encode()
    made.headers = [("x-amz-checksum-crc32", checksum("crc32", made.body))]
    return made


def tag(world: World) -> Write:
    body = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    made = _new(world, "PUT", "?tagging", body=body)
    made.data = OLD
    return made


UPLOADS = {"PUT": put, "PUT in chunks": put_chunked, "form": put_by_form, "part": put_part}
WRITES: dict[str, Callable[[World], Write]] = {
    **UPLOADS, "copy": copy, "CreateMultipartUpload": create_upload, "CompleteMultipartUpload": complete_upload,
    "AbortMultipartUpload": abort_upload, "DELETE": delete, "DeleteObjects": delete_several, "tags": tag,
}  # fmt: skip
FAULTS: dict[str, dict[str, Any]] = {
    "answer lost after it was done": {"kind": FaultKind.LOSE},
    "no answer": {"kind": FaultKind.DROP},
    "500": {"kind": FaultKind.STATUS, "status": 500},
    "503 SlowDown": {"kind": FaultKind.STATUS, "status": 503},
    "answer cut in mid-body": {"kind": FaultKind.TRUNCATE, "after_bytes": 20},
}


def stored(world: World, key: str) -> bytes | None:
    try:
        return bytes(world.direct.get_object(Bucket=NAME, Key=key)["Body"].read())
    except world.direct.exceptions.NoSuchKey:
        return None


def sent(world: World) -> int:
    """The number of writes that reached the bucket."""
    return sum(request.method not in ("GET", "HEAD") for request in world.simulator.log())


def outcome(proxy: Proxy, write: Write) -> str:
    """The status that the client got, or BROKEN."""
    with RawConnection(proxy.address) as connection:
        connection.send(write.raw)
        try:
            return str(connection.read_answer(write.method).status)
        except (http.client.HTTPException, ConnectionError):
            return BROKEN


def as_the_bucket_has_it(world: World, proxy: Proxy, key: str) -> None:
    """The next read goes to the bucket, although the proxy knew a version, and returns the bucket's current object."""
    for _ in range(LATE_READS_MAX):
        world.simulator.reset()
        answer = ask(proxy.address, "GET", f"/{NAME}/{key}")
        assert any(key in asked.path for asked in world.simulator.log()), (
            "the proxy believed a version that a write made doubtful"
        )
        now = stored(world, key)
        if (answer.status, answer.body if now is not None else None) == (200 if now is not None else 404, now):
            return
        # A write whose connection broke may be carried out between the two reads, but not for ever.
    raise AssertionError("the bucket has something else")


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", WRITES)
def test_a_write_that_fails_is_sent_once_and_makes_its_name_doubtful(
    world: World, lasting: Proxy, kind: str, fault: str
) -> None:
    for _ in range(rounds(1)):
        write = WRITES[kind](world)
        assert ask(lasting.address, "GET", f"/{NAME}/{write.key}").body == OLD
        lasting.settle()
        world.simulator.reset()
        with world.conditions(Fault(times=None, method=write.method, **FAULTS[fault])):
            saw = outcome(lasting, write)
        assert sent(world) == 1, "the write was sent twice"
        has_body = kind in ("CreateMultipartUpload", "CompleteMultipartUpload", "copy", "DeleteObjects")
        if fault == "answer cut in mid-body":
            # A reply without a body cannot be cut.
            assert saw == BROKEN if has_body else saw.startswith("2")
        else:
            assert saw in ("503", "500")
        if kind != "tags":
            as_the_bucket_has_it(world, lasting, write.key)
        world.trials.record("writes", f"{kind}: {fault}", saw)


def test_a_delete_whose_answer_is_lost_leaves_one_marker(world: World, bucket: Bucket, lasting: Proxy) -> None:
    name = bucket.make_bucket("faults-versioned")
    world.direct.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    for number in range(rounds(2)):
        key = f"versioned-{number}"
        world.direct.put_object(Bucket=name, Key=key, Body=OLD)
        with world.conditions(Fault(FaultKind.LOSE, None, "DELETE")):
            assert ask(lasting.address, "DELETE", f"/{name}/{key}").status == 503
        listed = world.direct.list_object_versions(Bucket=name, Prefix=key)
        assert len(listed["DeleteMarkers"]) == 1


@pytest.mark.parametrize("kind", UPLOADS)
def test_an_upload_that_breaks_at_any_byte_on_its_way_to_the_bucket_is_an_error_and_leaves_nothing(
    world: World, lasting: Proxy, kind: str
) -> None:
    for _ in range(rounds(4)):
        write = UPLOADS[kind](world)
        assert ask(lasting.address, "GET", f"/{NAME}/{write.key}").body == OLD
        lasting.settle()
        world.simulator.reset()
        # No fault strikes after the last byte: the upload is whole there, and only its answer would be lost.
        at = world.rng.choice((0, 1, len(write.data) - 1, world.rng.randrange(len(write.data))))
        at = min(at, len(write.data) - 1)
        with world.conditions(Fault(FaultKind.CUT_UPLOAD, method=write.method, after_bytes=at)):
            saw = outcome(lasting, write)
        world.trials.record("writes", f"{kind}: broken on its way to the bucket", saw)
        assert saw == "503"
        assert sent(world) == 1
        assert stored(world, write.key) == OLD
        as_the_bucket_has_it(world, lasting, write.key)


@pytest.mark.parametrize("kind", UPLOADS)
def test_an_upload_whose_client_leaves_at_any_byte_leaves_nothing(world: World, lasting: Proxy, kind: str) -> None:
    for _ in range(rounds(6)):
        write = UPLOADS[kind](world)
        raw = write.raw
        head = len(raw) - len(write.body)
        at = world.rng.choice((head, head + 1, len(raw) - 1, len(raw) - 2, world.rng.randrange(len(raw))))
        at = min(at, len(raw) - 1)  # the body may have a single byte
        with RawConnection(lasting.address) as connection:
            connection.send(raw[:at])
        lasting.settle()
        assert stored(world, write.key) == OLD
        if kind == "part":
            upload = write.target.rpartition("=")[2]
            listed = world.direct.list_parts(Bucket=NAME, Key=write.key, UploadId=upload)
            assert "Parts" not in listed
        world.trials.record("writes", f"{kind}: the client left in mid-body", "nothing stored")


@pytest.mark.parametrize("kind", WRITES)
def test_without_a_fault_each_write_is_done_and_acknowledged(world: World, lasting: Proxy, kind: str) -> None:
    """The control for the other tests: these writes are valid, and without a fault they succeed."""
    write = WRITES[kind](world)
    world.simulator.reset()
    assert outcome(lasting, write).startswith("2")
    assert sent(world) == 1
    now = stored(world, write.key)
    if kind in ("DELETE", "DeleteObjects"):
        assert now is None
    elif kind in ("part", "CreateMultipartUpload"):
        assert now == OLD
    else:
        assert now == write.data
