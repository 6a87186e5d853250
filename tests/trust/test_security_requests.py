"""Requests that the proxy signs for the origin: a client slips no header, line or second request into them."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

import pytest

from tests.support.proxy import Proxy, ServedProxy
from tests.support.rawhttp import Answer, answers_to, ask, assert_correct
from tests.support.recorder import OK, Recorder
from tests.support.tenants import CLIENTS, NAME, TEAM, answer_to, wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.support.bucket import Bucket
    from tests.support.trials import Trials


@pytest.fixture(scope="module")
def recorder() -> Iterator[Recorder]:
    with Recorder() as running:
        yield running


@pytest.fixture(scope="module")
def started(bucket: Bucket, recorder: Recorder) -> Iterator[Proxy]:
    with Proxy(bucket, origin=recorder.endpoint, client_timeout_s=0.5, cross_site=True) as running:
        yield running


@pytest.fixture(scope="module")
def started_strict(bucket: Bucket, recorder: Recorder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    clients = tmp_path_factory.mktemp("requests") / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, origin=recorder.endpoint, auth="sigv4", clients=clients, client_timeout_s=0.5) as running:
        yield running


@pytest.fixture
def proxy(started: Proxy, recorder: Recorder) -> Proxy:
    return fresh(started, recorder)


@pytest.fixture
def strict(started_strict: Proxy, recorder: Recorder) -> Proxy:
    return fresh(started_strict, recorder)


def fresh(proxy: Proxy, recorder: Recorder) -> Proxy:
    proxy.settle()
    recorder.received.clear()
    recorder.answer = lambda _: OK
    return proxy


# -- smuggling --------------------------------------------------------------------------------------------------------

PUT = f"PUT /{NAME}/smuggled HTTP/1.1\r\nhost: x\r\n"
INNER = f"DELETE /{NAME}/inner HTTP/1.1\r\nhost: x\r\n\r\n"
CHUNKED = (
    "x-amz-decoded-content-length: 3\r\nx-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n"
    "transfer-encoding: chunked\r\n"
)
BODY = "8\r\n3\r\nabc\r\n\r\n5\r\n0\r\n\r\n\r\n0\r\n"
SMUGGLED = {
    "Content-Length, then Transfer-Encoding": PUT + "content-length: 5\r\n" + CHUNKED + "\r\n0\r\n\r\n" + INNER,
    "Transfer-Encoding, then Content-Length": PUT + CHUNKED + f"content-length: {len(INNER)}\r\n\r\n0\r\n\r\n" + INNER,
    "two Content-Lengths": PUT + f"content-length: 3\r\ncontent-length: {3 + len(INNER)}\r\n\r\nabc" + INNER,
    "a list of Content-Lengths": PUT + "content-length: 3, 3\r\n\r\nabc" + INNER,
    "a negative Content-Length": PUT + "content-length: -1\r\n\r\n" + INNER,
    "a Content-Length with a sign": PUT + "content-length: +3\r\n\r\nabc" + INNER,
    "a Content-Length in hexadecimal": PUT + "content-length: 0x3\r\n\r\nabc" + INNER,
    "a Content-Length that overflows": PUT + f"content-length: {2**64 + 3}\r\n\r\nabc" + INNER,
    "Transfer-Encoding in HTTP/1.0": PUT.replace("1.1", "1.0") + CHUNKED + "\r\n" + BODY + "\r\n" + INNER,
    "identity": PUT + "transfer-encoding: identity\r\n\r\n" + INNER,
    "chunked twice": PUT + "transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n" + INNER,
    "chunked that is not last": PUT + "transfer-encoding: chunked, x\r\n\r\n0\r\n\r\n" + INNER,
    "xchunked": PUT + "transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + INNER,
    "white space before a colon": PUT + "content-length : 3\r\n\r\nabc" + INNER,
    "a folded Transfer-Encoding": PUT + "x: y\r\n transfer-encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "a bare CR for a line's end": PUT + "x: y\rtransfer-encoding: chunked\r\n\r\n" + INNER,
    "a bare LF for a line's end": PUT + "x: y\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + INNER,
    "a chunk size in a bare LF": PUT + CHUNKED + "\r\n3\nabc\r\n0\r\n\r\n" + INNER,
    "a bare LF in a chunk extension": PUT + CHUNKED + "\r\n3;a\nb\r\nabc\r\n0\r\n\r\n" + INNER,
    "a chunk size that overflows": PUT + CHUNKED + "\r\nffffffffffffffff3\r\nabc\r\n0\r\n\r\n" + INNER,
    "a negative chunk size": PUT + CHUNKED + "\r\n-3\r\nabc\r\n0\r\n\r\n" + INNER,
    "a chunk size with 0x": PUT + CHUNKED + "\r\n0x3\r\nabc\r\n0\r\n\r\n" + INNER,
    "a chunk longer than its size": PUT + CHUNKED + "\r\n1\r\nabc\r\n0\r\n\r\n" + INNER,
    "many trailers": PUT + CHUNKED + "\r\n0\r\n" + "a: b\r\n" * 100_000 + "\r\n" + INNER,
    "a refused body": f"PUT /.../k HTTP/1.1\r\nhost: x\r\ncontent-length: {len(INNER)}\r\n\r\n" + INNER,
    "a body with a GET": f"GET /{NAME}/k HTTP/1.1\r\nhost: x\r\ncontent-length: {len(INNER)}\r\n\r\n" + INNER,
    "a body with an Upgrade": PUT
    + f"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: {len(INNER)}\r\n\r\n"
    + INNER,
    "two Hosts": PUT + f"host: y\r\ncontent-length: {len(INNER)}\r\n\r\n" + INNER,
    "no Host": PUT.replace("host: x\r\n", "") + f"content-length: {len(INNER)}\r\n\r\n" + INNER,
    "a preface": "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + INNER,
}


# These cases are read in one way alone, as a body that the request did not need.
UNDERSTOOD = {"a body with a GET", "a body with an Upgrade"}


def assert_refused(case: str, answers: list[Answer]) -> None:
    for answer in answers:
        assert_correct(answer)
    if case not in UNDERSTOOD:
        # There is no answer if the end of the connection overtook it. There are two if the refused body had come whole:
        # the connection goes on, and the bytes that follow on it are no request.
        allowed = ([400], [], [400, 400]) if case == "a refused body" else ([400], [])
        assert [answer.status for answer in answers] in allowed, (case, answers)


@pytest.mark.parametrize("case", SMUGGLED)
def test_no_second_request_hides_in_a_first(proxy: Proxy, recorder: Recorder, case: str, trials: Trials) -> None:
    raw = SMUGGLED[case].encode("latin-1")
    for cut in (len(raw), raw.find(INNER.encode()), 20):
        assert_refused(case, answers_to(proxy.address, raw[:cut], raw[cut:], b"\r\n\r\n\x00\r\n\r\n"))
        proxy.settle()
        assert not [received.line for received in recorder.received if "inner" in received.line], case
        trials.record("security", "a request hidden in another", "refused, or read as a body")


def test_no_second_request_hides_in_a_first_with_the_parser_of_pure_python(
    bucket: Bucket, recorder: Recorder, tmp_path: Path
) -> None:
    """aiohttp has two parsers. The one in pure Python is used where no wheel fits, and each must refuse these
    requests."""
    recorder.received.clear()
    served = ServedProxy(bucket, tmp_path, origin=recorder.endpoint)
    served.environment |= {"AIOHTTP_NO_EXTENSIONS": "1", "OUTRIDER_CLIENT_TIMEOUT_S": "0.5"}
    with served:
        for case, text in SMUGGLED.items():
            raw = text.encode("latin-1")
            for answer in answers_to(served.address, raw, b"\r\n\r\n\x00\r\n\r\n"):
                assert_correct(answer)
            served.settle()
            assert not [received.line for received in recorder.received if "inner" in received.line], case


def test_chunk_extensions_mean_nothing(proxy: Proxy, recorder: Recorder) -> None:
    body = "8;a=b;c\r\n3\r\nabc\r\n\r\n5;x\r\n0\r\n\r\n\r\n0;last\r\n\r\n"
    answers = answers_to(proxy.address, (PUT + CHUNKED + "connection: close\r\n\r\n" + body).encode())
    assert [answer.status for answer in answers] == [200]
    assert recorder.received[-1].body == b"abc"


def test_an_upgrade_ends_the_connection_and_nothing_of_the_rest_is_read(proxy: Proxy, recorder: Recorder) -> None:
    """The parser has lost half of the bytes that came behind the upgrade. The other half would pass for a request."""
    first = f"GET /{NAME}/k?acl HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n"
    lost = f"PUT /{NAME}/k HTTP/1.1\r\nhost: x\r\ncontent-length: {len(INNER)}\r\n\r\n"
    answers = answers_to(proxy.address, (first + lost).encode(), INNER.encode())
    assert len(answers) == 1
    assert answers[0].headers["connection"] == "close"
    proxy.settle()
    assert [received.line.split(" ")[0] for received in recorder.received] == ["GET"]


# -- what goes up -----------------------------------------------------------------------------------------------------

SLIPPED_IN = [
    ("x-forwarded-for", "10.0.0.1"),
    ("x-forwarded-host", "other"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-prefix", "/a"),
    ("x-outrider-peer", "v=1;from=other;ring=r;cluster=c;hops=1"),
    ("x-outrider-known", "e30="),
    ("forwarded", "for=10.0.0.1"),
    ("x-real-ip", "10.0.0.1"),
    ("x-original-url", "/secret"),
    ("x-rewrite-url", "/secret"),
    ("x-http-method-override", "DELETE"),
    ("x-http-method", "DELETE"),
    ("x-method-override", "DELETE"),
    ("x_amz_copy_source", "/secret/key"),
    ("x_amz-copy_source", "/secret/key"),
    ("x-amz-copy_source", "/secret/key"),
    ("x_forwarded_for", "10.0.0.1"),
    ("proxy-authorization", "Basic YTpi"),
    ("te", "trailers"),
    ("keep-alive", "timeout=9"),
    ("proxy-connection", "close"),
    ("trailer", "x"),
    ("x-amz-security-token", "mine"),
    ("http2-settings", "AAMAAABk"),
]


def test_headers_that_an_origin_believes_of_a_proxy_do_not_go_up(
    proxy: Proxy, recorder: Recorder, trials: Trials
) -> None:
    """The origin trusts the proxy's signature, and with it every header of the signed request."""
    named = ("connection", "close, http2-settings, x-hop")
    for method, target in (
        ("PUT", f"/{NAME}/k"),
        ("GET", f"/{NAME}/k?acl"),
        ("DELETE", f"/{NAME}/k"),
        ("GET", f"/{NAME}/k"),
    ):
        recorder.received.clear()
        headers = [*SLIPPED_IN, ("x-hop", "1"), ("x-amz-meta-under_score", "kept"), named, ("content-length", "0")]
        ask(proxy.address, method, target, headers)
        assert recorder.received
        for up in recorder.received:
            names = {name for name, _ in up.headers}
            assert not names & {name for name, _ in SLIPPED_IN}, up
            assert "x-hop" not in names
            assert up.values("host") == [recorder.endpoint.partition("//")[2]]
            assert len(up.values("authorization")) == 1
            if method == "PUT":
                assert up.values("x-amz-meta-under_score") == ["kept"]
    trials.record("security", "headers that an origin would believe of a proxy", "dropped", times=4 * len(SLIPPED_IN))


@pytest.mark.parametrize(
    "name", ["x-amz-acl", "Host", "content-length", "RANGE", "if-match", "authorization", "content-md5"]
)
def test_a_header_of_s3_cannot_be_made_one_of_the_connection(proxy: Proxy, recorder: Recorder, name: str) -> None:
    answer = ask(proxy.address, "PUT", f"/{NAME}/k", [("connection", f"close, {name}"), ("content-length", "0")])
    assert (answer.status, answer.code) == (400, "BadRequest")
    assert recorder.received == []


@pytest.mark.parametrize("name", ["x_amz_copy_source", "x-amz-copy_source", "x_amz_acl"])
def test_a_header_with_an_underscore_gets_past_no_grant(
    strict: Proxy, recorder: Recorder, name: str, trials: Trials
) -> None:
    """Ceph's gateway, and any server built like CGI, reads `_` as `-`. Such a header must not get there, signed or
    not."""
    target = f"/{NAME}/team/mine"
    for data in (
        wire(strict, TEAM, "PUT", target, [(name, "/secret/key")], b"x"),
        wire(strict, TEAM, "PUT", target, body=b"x", unsigned=[(name, "/secret/key")]),
    ):
        answer = answer_to(strict, data)
        assert answer.status in (200, 403)
        assert not [up for up in recorder.received if any("_" in header for header, _ in up.headers)]
        trials.record("security", "x_amz_copy_source for x-amz-copy-source", "dropped or refused")


def test_a_header_whose_meaning_is_unknown_does_not_go_up_for_a_tenant(strict: Proxy, recorder: Recorder) -> None:
    """Swift copies from `X-Copy-From`, and COS writes beside the key by `Pic-Operations`."""
    odd = [("x-copy-from", "/secret/key"), ("pic-operations", "{}"), ("destination", "/secret/key"), ("cookie", "a=b")]
    plain = [("cache-control", "no-store"), ("content-type", "text/x"), ("x-amz-meta-a", "b"), ("if-none-match", "*")]
    target = f"/{NAME}/team/mine"
    for data in (
        wire(strict, TEAM, "PUT", target, [*odd, *plain], b"x"),
        wire(strict, TEAM, "PUT", target, plain, b"x", unsigned=odd),
    ):
        recorder.received.clear()
        assert answer_to(strict, data).status == 200
        names = {name for name, _ in recorder.received[-1].headers}
        assert names >= {name for name, _ in plain}
        assert names.isdisjoint(name for name, _ in odd)


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("PUT", "team/a.tar", [("x-amz-meta-snowball-auto-extract", "true")]),
        ("DELETE", "team/a", [("x-minio-force-delete", "true")]),
        ("GET", "team/a.zip/x", [("x-minio-extract", "true")]),
        ("POST", "team/a?delete", []),
        ("PUT", "team/a", [("x-minio-source-etag", "1")]),
        ("PUT", "team/a?x-amz-copy-source=secret%2Fkey", []),
    ],
)
def test_a_request_that_reaches_beyond_its_names_is_refused_with_the_missing_grant(
    strict: Proxy, recorder: Recorder, method: str, target: str, headers: list[tuple[str, str]]
) -> None:
    answer = answer_to(strict, wire(strict, TEAM, method, f"/{NAME}/{target}", headers))
    assert (answer.status, answer.code) == (403, "AccessDenied")
    assert "it takes a grant to" in answer.error["Message"]
    assert recorder.received == []


def test_two_copy_sources_are_refused(proxy: Proxy, recorder: Recorder) -> None:
    """A grant would be checked for each of them, and the origin would get both in one line."""
    for name in ("x-amz-copy-source", "x-amz-rename-source"):
        headers = [(name, f"{NAME}/team/a"), (name, f"{NAME}/other/a"), ("content-length", "0")]
        assert ask(proxy.address, "PUT", f"/{NAME}/team/copy", headers).code == "BadRequest"
    assert recorder.received == []


INJECTED = [
    "%0d%0ax-evil:%201",
    "%0aX-Evil: 1".replace(" ", "%20"),
    "%0D%0A%0D%0AGET%20/%20HTTP/1.1",
    "%00",
    "%E5%98%8A%E5%98%8D",
    "%c0%8d",
    "%u000a",
    "%250d%250a",
]


@pytest.mark.parametrize("evil", INJECTED)
def test_no_escape_becomes_a_line_of_its_own(proxy: Proxy, recorder: Recorder, evil: str, trials: Trials) -> None:
    targets = [
        ("GET", f"/{NAME}/a{evil}b"),
        ("GET", f"/{NAME}/k?response-content-type=a{evil}"),
        ("GET", f"/{NAME}?prefix={evil}"),
        ("PUT", f"/{NAME}/{evil}"),
        ("DELETE", f"/{NAME}/k?versionId={evil}"),
    ]
    for method, target in targets:
        recorder.received.clear()
        answer = ask(proxy.address, method, target, [("content-length", "0")])
        assert "x-evil" not in answer.headers
        assert recorder.received
        for up in recorder.received:
            assert up.line.count(" ") == 2
            assert up.line.startswith(f"{method} /{NAME}")
            assert not any("evil" in name for name, _ in up.headers)
        trials.record("security", "line breaks in paths and queries", "escaped")


@pytest.mark.parametrize("header", ["x-amz-copy-source", "x-amz-meta-a", "content-type", "content-disposition"])
def test_no_header_value_becomes_two(proxy: Proxy, recorder: Recorder, header: str) -> None:
    for evil in ("a\rx-evil: 1", "a\nx-evil: 1", "a\x00b", "a\r\n x-evil: 1"):
        raw = f"PUT /{NAME}/k HTTP/1.1\r\nhost: x\r\n{header}: {evil}\r\ncontent-length: 0\r\n\r\n".encode()
        answers = answers_to(proxy.address, raw)
        assert [answer.status for answer in answers] == [400]
    assert recorder.received == []


# -- where it goes ----------------------------------------------------------------------------------------------------

ELSEWHERE = [
    "http://{other}/bucket/key",
    "//{other}/bucket/key",
    "/{other}/key",
    "/http://{other}/key",
    "http:/{other}/x",
    "{other}:80",
    "/..//{other}/x",
    "/\\{other}/x",
    "/%2f%2f{other}/x",
    "/@{other}/x",
    "/.{other}/x",
]


@pytest.mark.parametrize("form", ELSEWHERE)
def test_no_target_and_no_host_leads_anywhere_else(proxy: Proxy, recorder: Recorder, form: str, trials: Trials) -> None:
    with Recorder() as other:
        name = other.endpoint.partition("//")[2]
        target = form.format(other=name)
        for method in ("GET", "PUT", "CONNECT"):
            for host in ("x", name, f"bucket.{name}", f"x@{name}", f"{name}#"):
                lines = f"host: {host}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                answers_to(proxy.address, f"{method} {target} HTTP/1.1\r\n{lines}".encode())
                trials.record("security", "another host in the target or in Host", "never asked")
        proxy.settle()
        assert other.received == []
    assert all(up.values("host") == [recorder.endpoint.partition("//")[2]] for up in recorder.received)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_of_the_origin_is_passed_on_and_not_followed(
    proxy: Proxy, recorder: Recorder, status: int, trials: Trials
) -> None:
    """A followed redirect would carry the proxy's signature, and the answer would be cached as the object."""
    with Recorder() as other:
        said = f"HTTP/1.1 {status} Elsewhere\r\nlocation: {other.endpoint}/x\r\n"
        said += "x-amz-bucket-region: 127.0.0.1/x\r\ncontent-length: 0\r\n\r\n"
        recorder.answer = lambda _: said.encode()
        for method, target in (
            ("GET", f"/{NAME}/r{status}"),
            ("HEAD", f"/{NAME}/r{status}"),
            ("PUT", f"/{NAME}/r{status}"),
            ("GET", f"/{NAME}?list-type=2"),
            ("GET", f"/{NAME}/r{status}?acl"),
        ):
            answer = ask(proxy.address, method, target, [("content-length", "0")])
            assert answer.status == status, (method, target)
            trials.record("security", "an origin that redirects elsewhere", "the redirect itself")
        proxy.settle()
        assert other.received == []


@pytest.mark.parametrize(
    "region", ["evil.example", "a/../..", "x@evil", "127.0.0.1", "us-east-1.evil.example", "a" * 40, "%2e", "u s", "EU"]
)
def test_a_region_hint_that_is_no_name_is_ignored(proxy: Proxy, recorder: Recorder, region: str) -> None:
    said = f"HTTP/1.1 301 Moved\r\nx-amz-bucket-region: {region}\r\ncontent-length: 0\r\n\r\n"
    recorder.answer = lambda _: said.encode()
    recorder.received.clear()
    assert ask(proxy.address, "GET", f"/{NAME}/region?acl").status == 301
    assert len(recorder.received) == 1


PREFLIGHT = [
    ("origin", "https://a.example"),
    ("access-control-request-method", "PUT"),
    ("access-control-request-headers", "x-amz-date"),
]


def test_a_preflight_carries_nothing_but_its_question(strict: Proxy, recorder: Recorder) -> None:
    """A preflight needs no client key and is signed with the proxy's key, and so it must carry nothing else."""
    extra = [
        ("x-amz-copy-source", "/secret/key"),
        ("x-http-method-override", "GET"),
        ("range", "bytes=0-"),
        ("cookie", "a"),
        ("x-amz-meta-a", "b"),
        ("authorization", "x"),
        ("content-length", "3"),
    ]
    ask(strict.address, "OPTIONS", f"/{NAME}/k?acl&policy", [*PREFLIGHT, *extra], b"abc")
    assert len(recorder.received) == 1
    up = recorder.received[0]
    assert up.line == f"OPTIONS /{NAME}/k HTTP/1.1"
    assert up.body == b""
    ours = {
        "authorization",
        "x-amz-date",
        "x-amz-content-sha256",
        "host",
        "accept-encoding",
        "content-length",
        "accept",
        "user-agent",
    }
    assert {name for name, _ in up.headers} - ours == {name for name, _ in PREFLIGHT}


PATHS = [
    "/../../etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/./x/k",
    "//x/k",
    "//",
    "/%00/k",
    "/%c0%ae%c0%ae/k",
    "/..%2f/k",
    "/\\..\\k",
]


@pytest.mark.parametrize("path", PATHS)
def test_a_path_that_leads_out_of_all_buckets_is_refused(
    proxy: Proxy, recorder: Recorder, path: str, trials: Trials
) -> None:
    for method in ("GET", "PUT", "DELETE", "POST"):
        answer = ask(proxy.address, method, path, [("content-length", "0")])
        assert (answer.status, answer.code) == (400, "InvalidBucketName")
        trials.record("security", "paths out of all buckets", "InvalidBucketName")
    assert recorder.received == []


@pytest.mark.parametrize(
    "key",
    ["../../x", "%2e%2e/%2e%2e/x", "..%2f..%2fx", "a/../b", "./a", "a//b", "%00", "%c0%ae%c0%ae/x", "a%5c..%5cb", "/"],
)
def test_a_key_is_sent_to_the_origin_as_it_was_meant_and_not_resolved(
    proxy: Proxy, recorder: Recorder, key: str
) -> None:
    ask(proxy.address, "PUT", f"/{NAME}/{key}", [("content-length", "0")])
    path = recorder.received[-1].line.split(" ")[1]
    assert unquote_to_bytes(path) == b"/" + NAME.encode() + b"/" + unquote_to_bytes(key)
    assert path.startswith(f"/{NAME}/")


def test_an_answer_keeps_nothing_of_the_origins_connection(proxy: Proxy, recorder: Recorder) -> None:
    said = (
        b"HTTP/1.1 200 OK\r\nconnection: keep-alive\r\nkeep-alive: timeout=5\r\n"
        b"proxy-authenticate: Basic\r\nupgrade: h2c\r\n"
        b"server: theirs\r\ncontent-length: 2\r\n\r\nok"
    )
    recorder.answer = lambda _: said
    answer = ask(proxy.address, "GET", f"/{NAME}/k?acl")
    assert answer.body == b"ok"
    assert not answer.headers.keys() & {"keep-alive", "proxy-authenticate", "upgrade"}
    assert answer.headers["server"] == "outrider"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nx: a\rb\r\n",
        b"HTTP/1.1 200 O\x00K\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n",
        b"ICY 200 OK\r\n",
    ],
)
def test_an_origin_cannot_split_an_answer(proxy: Proxy, recorder: Recorder, head: bytes, trials: Trials) -> None:
    recorder.answer = lambda _: head + b"content-length: 2\r\nconnection: close\r\n\r\nok"
    for target in (f"/{NAME}/split?acl", f"/{NAME}/split"):
        raw = f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode()
        for answer in answers_to(proxy.address, raw):
            assert "set-cookie" not in answer.headers
            assert answer.status in (200, 503)
            assert not any("\r" in value or "\n" in value for value in answer.headers.values())
        trials.record("security", "an origin that splits its answers", "503, or one whole answer")
