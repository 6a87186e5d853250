"""Unsigned requests in `sigv4` mode: forwarded unsigned, never answered from the cache, never kept in it."""

from __future__ import annotations

import json
import socket
from typing import TYPE_CHECKING, Any

import pytest

from tests.server.areas import parts
from tests.support.control_bucket import TARGET, body_of
from tests.support.forms import encoded, post
from tests.support.proxy import Keys, Proxy
from tests.support.rawhttp import TIMEOUT_S, Answer, RawConnection, ask
from tests.support.recorder import Received, Recorder
from tests.support.signed_requests import checksum

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket

OPEN, SHUT = "open-to-all", "shut-to-most"
TENANT: Keys = ("ANONTENANT", "tenant/secret+one")
CLIENTS = f"""
[[client]]
name = "tenant"
access_key = "{TENANT[0]}"
secret_key = "{TENANT[1]}"
grants = [{{bucket = "*", access = "write"}}]

[[client]]
anonymous = true
grants = [{{bucket = "{OPEN}", prefix = "in/", access = "write"}}, {{bucket = "{OPEN}"}}, {{bucket = "{SHUT}"}}]
"""
PAGE = (("origin", "https://elsewhere.example.com"), ("sec-fetch-site", "cross-site"))


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("anonymous") / "clients.toml"
    file.write_text(CLIENTS)
    return file


@pytest.fixture(scope="module")
def proxy(bucket: Bucket, clients: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    bucket.make_bucket(OPEN)
    bucket.make_bucket(SHUT)
    cached = [{"prefixes": "*", "ttl_s": 3600}]
    with Proxy(bucket, auth="sigv4", clients=clients, freshness="immutable", list_cache=cached) as running:
        yield running


@pytest.fixture
def tenant(proxy: Proxy) -> Any:
    return proxy.client(TENANT)


@pytest.fixture(scope="module")
def shared_recorder() -> Iterator[Recorder]:
    with Recorder() as running:
        yield running


@pytest.fixture
def recorder(shared_recorder: Recorder) -> Recorder:
    shared_recorder.received.clear()
    return shared_recorder


@pytest.fixture(scope="module")
def recorded(bucket: Bucket, clients: Path, shared_recorder: Recorder) -> Iterator[Proxy]:
    """A proxy whose origin is the recorder."""
    with Proxy(bucket, shared_recorder.endpoint, auth="sigv4", clients=clients) as running:
        yield running


def cached(proxy: Proxy, tenant: Any, name: str, key: str, body: bytes) -> None:
    """Put an object, and read it as the tenant until it is a hit."""
    tenant.put_object(Bucket=name, Key=key, Body=body)
    tenant.get_object(Bucket=name, Key=key)["Body"].read()
    proxy.settle()
    answer = tenant.get_object(Bucket=name, Key=key)
    assert answer["Body"].read() == body
    assert answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == "HIT"


def test_the_origin_answers_each_unsigned_read_though_a_tenant_has_the_object_cached(proxy: Proxy, tenant: Any) -> None:
    cached(proxy, tenant, OPEN, "read", b"public")
    cached(proxy, tenant, SHUT, "read", b"secret")
    span = ("range", "bytes=1-3")
    for method, headers, status, body in (
        ("GET", [], 200, b"public"), ("HEAD", [], 200, b""), ("GET", [span], 206, b"ubl"),
        ("GET", [span, ("x-custom", "past the fast path")], 206, b"ubl"),
    ):  # fmt: skip
        asked = proxy.metric("outrider_origin_requests_total", method=method)
        for time in (1, 2):
            given = ask(proxy.address, method, f"/{OPEN}/read", headers)
            assert (given.status, given.headers["x-cache"], given.body) == (status, "BYPASS", body)
            # The clients file lets anybody ask for this one. The origin does not give it.
            refused = ask(proxy.address, method, f"/{SHUT}/read", headers)
            assert (refused.status, refused.headers["x-cache"]) == (403, "BYPASS")
            assert b"secret" not in refused.body
            assert proxy.metric("outrider_origin_requests_total", method=method) == asked + 2 * time


def test_an_unsigned_read_leaves_nothing_in_the_cache(proxy: Proxy, bucket: Bucket, tenant: Any) -> None:
    bucket.store(OPEN, {"uncached": b"1"})
    for _ in range(2):
        assert ask(proxy.address, "GET", f"/{OPEN}/uncached").body == b"1"
    proxy.settle()
    first = tenant.get_object(Bucket=OPEN, Key="uncached")
    assert first["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == "MISS"


def test_the_grants_hold_for_unsigned_requests_too(proxy: Proxy, bucket: Bucket, tenant: Any) -> None:
    tenant.put_object(Bucket=SHUT, Key="in/a", Body=b"1")
    bucket.make_bucket("open-not-granted")
    asked = proxy.metric("outrider_origin_requests_total")
    for method, target, headers in [
        ("GET", "/open-not-granted/k", ()), ("GET", "/open-not-granted", ()), ("GET", "/", ()),
        ("PUT", f"/{OPEN}/out", ()), ("DELETE", f"/{OPEN}/read", ()), ("PUT", f"/{SHUT}/in/a", ()),
        ("POST", f"/{OPEN}/out?uploads", ()), ("PUT", f"/{OPEN}?acl", ()), ("PUT", f"/{OPEN}/in/../out", ()),
        ("PUT", f"/{OPEN}/in/x", (("x-amz-copy-source", "open-not-granted/k"),)),
    ]:  # fmt: skip
        answer = ask(proxy.address, method, target, [*headers, ("content-length", "0")] if method != "GET" else headers)
        assert (answer.status, answer.code) == (403, "AccessDenied"), (method, target)
    two = b"<Delete><Object><Key>in/a</Key></Object><Object><Key>out</Key></Object></Delete>"
    assert ask(proxy.address, "POST", f"/{OPEN}?delete", [("content-length", str(len(two)))], two).status == 403
    assert proxy.metric("outrider_origin_requests_total") == asked


def chunked(body: bytes, name: str = "x-amz-checksum-crc32") -> bytes:
    return b"%x\r\n%b\r\n0\r\n%b:%b\r\n\r\n" % (
        len(body), body, name.encode(), checksum("crc32", body).encode(),
    )  # fmt: skip


def put_plain(proxy: Proxy, body: bytes) -> Answer:
    return ask(proxy.address, "PUT", f"/{OPEN}/in/w", [("content-length", str(len(body)))], body)


def put_chunked(proxy: Proxy, body: bytes, *stated: tuple[str, str]) -> Answer:
    framed = chunked(body)
    return ask(proxy.address, "PUT", f"/{OPEN}/in/w", [
        ("content-encoding", "aws-chunked"), ("x-amz-trailer", "x-amz-checksum-crc32"),
        ("x-amz-decoded-content-length", str(len(body))), ("content-length", str(len(framed))), *stated,
    ], framed)  # fmt: skip


def put_chunked_as_stated(proxy: Proxy, body: bytes) -> Answer:
    return put_chunked(proxy, body, ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"))


def put_parts(proxy: Proxy, body: bytes) -> Answer:
    target = f"/{OPEN}/in/w"
    begun = ask(proxy.address, "POST", f"{target}?uploads", [("content-length", "0")])
    upload = begun.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()
    length = [("content-length", str(len(body)))]
    part = ask(proxy.address, "PUT", f"{target}?partNumber=1&uploadId={upload}", length, body)
    document = parts(1).replace("{etag1}", part.headers["etag"]).encode()
    length = [("content-length", str(len(document)))]
    return ask(proxy.address, "POST", f"{target}?uploadId={upload}", length, document)


def put_copy(proxy: Proxy, body: bytes) -> Answer:
    headers = [("content-length", str(len(body)))]
    assert ask(proxy.address, "PUT", f"/{OPEN}/in/source", headers, body).status == 200
    return ask(proxy.address, "PUT", f"/{OPEN}/in/w", [
        ("x-amz-copy-source", f"/{OPEN}/in/source"), ("content-length", "0"),
    ])  # fmt: skip


@pytest.mark.parametrize("put", [put_plain, put_chunked, put_chunked_as_stated, put_parts, put_copy])
def test_after_an_unsigned_write_the_next_read_gets_the_new_object(proxy: Proxy, tenant: Any, put: Any) -> None:
    body = f"written by {put.__name__}".encode()
    # The same bytes each time would look like an origin that changes its dates.
    cached(proxy, tenant, OPEN, "in/w", b"before " + body)
    answer = put(proxy, body)
    assert answer.status in (200, 204), answer
    assert answer.headers["x-cache"] == "BYPASS"
    read = tenant.get_object(Bucket=OPEN, Key="in/w")
    assert read["Body"].read() == body
    assert "aws-chunked" not in read.get("ContentEncoding", "")


def test_after_an_unsigned_deletion_the_next_read_finds_nothing(proxy: Proxy, tenant: Any) -> None:
    body = b"<Delete><Object><Key>in/d</Key></Object></Delete>"
    for method, target, given, status in (
        ("POST", f"/{OPEN}?delete", body, 200),
        ("DELETE", f"/{OPEN}/in/d", b"", 204),
    ):
        cached(proxy, tenant, OPEN, "in/d", f"before a {method}".encode())
        assert ask(proxy.address, method, target, [("content-length", str(len(given)))], given).status == status
        with pytest.raises(tenant.exceptions.NoSuchKey):
            tenant.get_object(Bucket=OPEN, Key="in/d")


def test_a_write_that_the_origin_refuses_is_not_done(proxy: Proxy, tenant: Any, clients: Path, bucket: Bucket) -> None:
    tenant.put_object(Bucket=SHUT, Key="in/kept", Body=b"kept")
    open_to_writers = clients.with_name("writers.toml")
    open_to_writers.write_text(CLIENTS.replace(f'{{bucket = "{SHUT}"}}', f'{{bucket = "{SHUT}", access = "write"}}'))
    with Proxy(bucket, auth="sigv4", clients=open_to_writers) as writable:
        headers = [("content-length", "3")]
        assert ask(writable.address, "PUT", f"/{SHUT}/in/kept", headers, b"bad").status == 403
        # SeaweedFS takes no form without a policy, from anybody.
        assert post(writable.address, SHUT, encoded([("key", "in/kept")], b"bad")).status in (400, 403)
        assert ask(writable.address, "DELETE", f"/{SHUT}/in/kept").status == 403
    assert tenant.get_object(Bucket=SHUT, Key="in/kept")["Body"].read() == b"kept"


def expecting(name: str, length: int) -> bytes:
    """The head of an unsigned PUT of `in/kept` whose client waits for 100 Continue."""
    head = f"PUT /{name}/in/kept HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\nexpect: 100-continue\r\n\r\n"
    return head.encode()


@pytest.mark.parametrize("length", [3, 4 * 1024 * 1024])
def test_an_unsigned_body_that_the_origin_refuses_is_not_asked_for(bucket: Bucket, clients: Path, length: int) -> None:
    """The origin alone knows whether everybody may write. Ceph answers before it asks for the body."""
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        Proxy(bucket, f"http://127.0.0.1:{listener.getsockname()[1]}", auth="sigv4", clients=clients) as proxy,
        RawConnection(proxy.address) as connection,
    ):
        listener.settimeout(TIMEOUT_S)
        connection.send(expecting(OPEN, length))
        origin, _ = listener.accept()
        origin.settimeout(TIMEOUT_S)
        with origin:
            head = b""
            while b"\r\n\r\n" not in head:
                head += origin.recv(65536)
            assert b"expect: 100-continue" in head.lower()
            origin.sendall(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")
            assert connection.read_line().startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize("length", [3, 4 * 1024 * 1024])
def test_an_unsigned_body_is_asked_for_once_the_origin_asks_for_it(proxy: Proxy, tenant: Any, length: int) -> None:
    with RawConnection(proxy.address) as connection:
        for body in (b"a" * length, b"b" * length):
            connection.send(expecting(OPEN, length))
            assert connection.read_line() == b"HTTP/1.1 100 Continue\r\n"
            assert connection.read_line() == b"\r\n"
            connection.send(body)
            assert connection.read_answer("PUT").status == 200
            assert tenant.get_object(Bucket=OPEN, Key="in/kept")["Body"].read() == body


def test_an_unsigned_list_is_neither_taken_from_the_list_cache_nor_kept(proxy: Proxy, tenant: Any) -> None:
    def list_as_tenant(name: str) -> str:
        answer = tenant.list_objects(Bucket=name, Prefix="in/")
        return str(answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"])

    tenant.put_object(Bucket=OPEN, Key="in/listed", Body=b"")
    target = f"/{OPEN}?prefix=in%2F&encoding-type=url"
    assert ask(proxy.address, "GET", target).headers["x-cache"] == "BYPASS"
    assert [list_as_tenant(OPEN) for _ in range(2)] == ["BYPASS", "HIT"]
    given = ask(proxy.address, "GET", target)
    assert (given.status, given.headers["x-cache"]) == (200, "BYPASS")
    assert b"in/listed" in given.body
    assert [list_as_tenant(SHUT) for _ in range(2)] == ["BYPASS", "HIT"]
    assert ask(proxy.address, "GET", f"/{SHUT}?prefix=in%2F&encoding-type=url").code == "AccessDenied"


def test_the_proxy_lends_an_unsigned_request_no_signature(recorded: Proxy, recorder: Recorder) -> None:
    dated = (("x-amz-date", "20261127T000000Z"), ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"), ("content-length", "4"))
    cases: list[tuple[str, str, tuple[tuple[str, str], ...], bytes]] = [
        ("GET", f"/{OPEN}/k", (), b""), ("GET", f"/{OPEN}/k?x-id=GetObject", (), b""),
        ("HEAD", f"/{OPEN}/k", (("range", "bytes=0-0"),), b""), ("GET", f"/{OPEN}?list-type=2", (), b""),
        ("PUT", f"/{OPEN}/in/k", dated, b"body"),
    ]  # fmt: skip
    for method, target, headers, body in cases:
        recorder.received.clear()
        assert ask(recorded.address, method, target, headers, body).status == 200
        (request,) = recorder.received
        assert request.line.replace("/?", "?") == f"{method} {target} HTTP/1.1"
        assert request.body == body
        assert_unsigned(request)


def test_a_form_without_a_policy_gets_none(recorded: Proxy, recorder: Recorder) -> None:
    assert post(recorded.address, OPEN, encoded([("key", "in/f"), ("x-amz-meta-a", "b")], b"file")).status == 200
    (request,) = recorder.received
    assert_unsigned(request)
    lower = request.body.lower()
    for word in (b"policy", b"signature", b"credential", b"awsaccesskeyid", b"security-token"):
        assert word not in lower


def assert_unsigned(request: Received) -> None:
    sent = json.dumps([request.line, request.headers]).lower()
    for word in ("authorization", "signature", "credential", "security-token", "awsaccesskeyid"):
        assert word not in sent, sent


HALF_SIGNED: dict[str, tuple[str, tuple[tuple[str, str], ...]]] = {
    "a date in the query": ("?X-Amz-Date=20261127T000000Z", ()),
    "an expiry in the query": ("?X-Amz-Expires=60", ()),
    "signed headers alone": ("?X-Amz-SignedHeaders=host", ()),
    "a token in the query": ("?X-Amz-Security-Token=t", ()),
    "an escaped name": ("?%58-Amz-Signed%48eaders=host", ()),
    "a signature alone": ("?X-Amz-Signature=0", ()),
    "a credential alone": ("?X-Amz-Credential=a", ()),
    "a key of version 2 alone": ("?AWSAccessKeyId=a", ()),
    "version 2 in lower case": ("?awsaccesskeyid=a&signature=b&expires=9999999999", ()),
    "a token in a header": ("", (("x-amz-security-token", "t"),)),
    "an empty authorization": ("", (("authorization", ""),)),
    "another authorization": ("", (("authorization", "Bearer t"),)),
    "a broken authorization": ("", (("authorization", "AWS4-HMAC-SHA256 Credential=a"),)),
    "an unknown key": ("", (("authorization", "AWS a:b"),)),
    "signed chunks": ("", (("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),)),
}


def test_a_request_with_a_part_of_a_signature_is_not_anonymous(recorded: Proxy, recorder: Recorder) -> None:
    for case, (query, headers) in HALF_SIGNED.items():
        for method, length in (("GET", ()), ("PUT", (("content-length", "0"),))):
            answer = ask(recorded.address, method, f"/{OPEN}/in/k{query}", (*headers, *length))
            assert answer.status in (400, 403), case
    for field in ("policy", "x-amz-signature", "x-amz-credential", "AWSAccessKeyId", "signature",
                  "x-amz-security-token", "x-amz-date"):  # fmt: skip
        answer = post(recorded.address, OPEN, encoded([("key", "in/f"), (field, "x")], b"file"))
        assert answer.status in (400, 403), field
    assert recorder.received == []


def test_the_control_bucket_and_warm_ups_are_closed_to_unsigned_requests(proxy: Proxy, tenant: Any) -> None:
    tenant.put_object(Bucket=OPEN, Key="cold", Body=b"1")
    for method, target in (("GET", "/_outrider/status.json"), ("PUT", "/_outrider/warm/w"), ("GET", "/_outrider")):
        headers = [("content-length", "0")] if method == "PUT" else []
        assert ask(proxy.address, method, target, headers).code == "AccessDenied"
    # The proxy would sign for the objects of a batch, and answer from the cache.
    body = body_of([f"s3://{SHUT}/k"])
    assert ask(proxy.address, "POST", TARGET, [("content-length", str(len(body)))], body).code == "AccessDenied"
    assert ask(proxy.address, "HEAD", f"/{OPEN}/cold", [("range", "bytes=0-0")]).status in (200, 206)
    proxy.settle()
    first = tenant.get_object(Bucket=OPEN, Key="cold")
    assert first["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == "MISS"


def test_pages_of_other_sites_send_no_unsigned_requests(recorded: Proxy, recorder: Recorder) -> None:
    assert ask(recorded.address, "GET", f"/{OPEN}/k", PAGE).code == "AccessDenied"
    assert post(recorded.address, OPEN, encoded([("key", "in/f")], b"file"), PAGE).code == "AccessDenied"
    assert recorder.received == []


def test_the_setting_cross_site_lets_pages_send_unsigned_requests(
    bucket: Bucket, clients: Path, recorder: Recorder
) -> None:
    with Proxy(bucket, recorder.endpoint, auth="sigv4", clients=clients, cross_site=True) as open_to_pages:
        assert ask(open_to_pages.address, "GET", f"/{OPEN}/k", PAGE).status == 200
        assert post(open_to_pages.address, OPEN, encoded([("key", "in/f")], b"file"), PAGE).status == 200
    for request in recorder.received:
        assert_unsigned(request)


def test_without_an_anonymous_client_an_unsigned_request_is_refused(
    bucket: Bucket, clients: Path, recorder: Recorder
) -> None:
    signed_only = clients.with_name("signed.toml")
    signed_only.write_text(CLIENTS.replace("anonymous = true", 'access_key = "A"\nsecret_key = "B"'))
    with Proxy(bucket, recorder.endpoint, auth="sigv4", clients=signed_only) as strict:
        assert ask(strict.address, "GET", f"/{OPEN}/k").code == "AccessDenied"
        assert post(strict.address, OPEN, encoded([("key", "in/f")], b"file")).code == "AccessDenied"
    assert recorder.received == []
