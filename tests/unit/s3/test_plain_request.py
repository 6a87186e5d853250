"""The recognition of plain GETs and HEADs reads a request as the HTTP parser and the classification do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.core.s3 import ranges
from outrider.core.s3.plain_request import HEAD_BYTES_MAX, known_fields, recognise
from tests.fuzz.request_bytes import MEANINGS, plain_request_recognised

if TYPE_CHECKING:
    from collections.abc import Iterator

MEANINGS_MAX = 256
PLAIN = b"GET /b/k HTTP/1.1\r\nHost: h\r\n\r\n"

visible = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=12)
anything = st.text(st.characters(max_codepoint=0xFF), max_size=8)
names = st.one_of(
    st.sampled_from(
        ["Host", "host", "HOST", "Range", "range", "If-Match", "x-amz-checksum-mode", "Connection", "Authorization",
         "x-amz-date", "X-Amz-Content-SHA256", "x-amz-security-token", "User-Agent", "Accept", "accept-encoding",
         "amz-sdk-invocation-id", "amz-sdk-request", "x-amz-user-agent", "x-amz-api-version", "traceparent",
         "Content-Length", "Transfer-Encoding", "Expect", "Upgrade", "If-None-Match", "Origin",
         "x-amz-expected-bucket-owner"]
    ),
    visible,
)  # fmt: skip
values = st.one_of(
    st.sampled_from(
        ["h", "127.0.0.1:9480", "b.example.com", "bytes=0-9", "bytes=5-", "bytes=-5", "bytes=5-2", "bytes=0-1,3-4",
         '"abc"', "abc", "*", 'W/"abc"', "ENABLED", "enabled", "keep-alive", "Keep-Alive", "close", "upgrade", "0", "5",
         "chunked", "100-continue", "UNSIGNED-PAYLOAD", "0" * 64, "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "nonsense",
         "[::1]:80", "a b", "a  b", "a\tb"]
    ),
    visible,
    anything,
)  # fmt: skip
targets = st.one_of(
    st.sampled_from(
        ["/b/k", "/b/k?", "/b/k?x-id=GetObject", "/b/k?acl", "/b/k/", "/b/k%2F", "/b/k%2f", "//b/k", "/b//k", "/b/../k",
         "/b/%00", "/b/%zz", "/b/a#b", "/b/k?a?b", "*", "http://h/b/k", "/", "/b", "/b/", "/b/k?versionId=1"]
    ),
    visible.map(lambda text: f"/b/{text}"),
    visible.map(lambda text: f"/{text}"),
    anything,
)  # fmt: skip
ends = st.sampled_from(["\r\n"] * 20 + ["\n", "\r", "\r\n ", "\r\n\r\n"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """Requests close to the plain form. Most of them miss it by little."""
    method = draw(st.sampled_from(["GET", "GET", "GET", "HEAD", "PUT", "get", "GET "]))
    version = draw(st.sampled_from(["HTTP/1.1"] * 10 + ["HTTP/1.0", "HTTP/1.2"]))
    lines = [f"{method} {draw(targets)} {version}", *draw(st.sampled_from([["Host: h"], ["host: a.b:1"], []]))]
    separator = draw(st.sampled_from([": "] * 10 + [":", " : ", ":  "]))
    lines += [f"{name}{separator}{value}" for name, value in draw(st.lists(st.tuples(names, values), max_size=4))]
    text = "".join(line + draw(ends) for line in lines) + draw(ends)
    return (text + draw(st.sampled_from([""] * 10 + ["\r\n", "x", "GET ", "Range: bytes=0-9\r\n"]))).encode(
        "latin-1", "replace"
    )


@st.composite
def plain(draw: st.DrawFn) -> bytes:
    """Requests of the plain form, with all variations that it allows. Most of them are recognised."""
    fields = {
        "Range": ["bytes=0-9", "bytes=5-", "bytes=-5", "bytes=5-2", "bytes=0-1,3-4"], "If-Match": ['"abc"', "abc", "*"],
        "x-amz-checksum-mode": ["ENABLED", "enabled"], "X-Amz-Content-SHA256": ["UNSIGNED-PAYLOAD", "0" * 64],
        "connection": ["keep-alive", "Keep-Alive"],
    }  # fmt: skip
    lines = [f"Host: {draw(visible)}"]
    lines += [f"{name}: {draw(st.sampled_from(fields[name]))}" for name in draw(st.sets(st.sampled_from([*fields])))]
    lines += [
        f"{name}: {draw(visible)}" for name in draw(st.sets(st.sampled_from(["accept", "Authorization", "x-amz-date"])))
    ]
    target = draw(st.one_of(visible.map(lambda text: f"/b/{text}"), targets.filter(lambda text: text.startswith("/"))))
    method = draw(st.sampled_from(["GET", "GET", "HEAD"]))
    more = draw(st.sampled_from(["", "", "", "Range: bytes=0-9\r\n", "range: bytes=0-9\r\n\r\n"]))
    lines = [f"{method} {target} HTTP/1.1", *draw(st.permutations(lines)), "", more]
    return "\r\n".join(lines).encode("latin-1")


@given(st.one_of(requests(), plain()))
@example(PLAIN)
@example(b"GET /b/k HTTP/1.1\r\nHost: h\r\n" + b"accept: x\r\n" * 200 + b"\r\n")
@example(b"GET /b/k HTTP/1.1\r\nHost: h\r\nx-amz-content-sha256: nonsense\r\n\r\n")
@example(b"GET /b/k HTTP/1.1\r\nHost: h\r\nx-amz-content-sha256: UNSIGNED-PAYLOAD\r\n"
         b"X-Amz-Content-Sha256: UNSIGNED-PAYLOAD\r\n\r\n")  # fmt: skip
def test_a_recognised_request_is_parsed_and_classified_the_same(data: bytes) -> None:
    plain_request_recognised(data)


def of(*lines: str, method: str = "GET", target: str = "/b/k") -> bytes:
    return "\r\n".join([f"{method} {target} HTTP/1.1", *lines, "", ""]).encode("latin-1")


BOTO = (
    "Host: 127.0.0.1:9480", "Accept-Encoding: identity", "x-amz-checksum-mode: ENABLED",
    "User-Agent: Boto3/1.40 md/Botocore#1.40 ua/2.1 os/linux#6.1", "X-Amz-Date: 20260101T000000Z",
    f"X-Amz-Content-SHA256: {'e3b0c44298fc1c149afbf4c8996fb924' * 2}",
    "Authorization: AWS4-HMAC-SHA256 Credential=A/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=00",
    "amz-sdk-invocation-id: 1", "amz-sdk-request: attempt=1",
    "traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate: a=b",
)  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        of("Host: h"),
        of("host: h", "connection: keep-alive", "range: bytes=0-9"),
        of("Host: h", 'If-Match: "abc"'),
        of("Host: h", method="HEAD"),
        of("Host: h", target="/b/k?x-id=GetObject"),
        of(*BOTO),
        of(*BOTO, "Range: bytes=0-65535"),
    ],
)
def test_the_usual_requests_of_clients_are_recognised(data: bytes) -> None:
    assert recognise(data) is not None


@given(plain(), plain())
def test_earlier_requests_make_no_difference(first: bytes, then: bytes) -> None:
    MEANINGS.clear()
    alone = recognise(then)
    MEANINGS.clear()
    recognise(first)
    assert recognise(then) == alone == recognise(then)


@given(plain(), st.one_of(requests(), plain()))
@example(of("Host: h"), of("Host: h", "Range: bytes=0-1"))
@example(of("Host: h"), of("Host: h", "range: bytes=5-4"))
@example(of("Host: h"), of("Host: h", "Range: bytes=000000000000000000007-8"))
def test_known_fields_mean_what_the_recognition_reads_in_them(first: bytes, then: bytes) -> None:
    MEANINGS.clear()
    for data in (first, then):
        recognise(data)
    fields = then.partition(b"\r\n")[2]
    known, read = known_fields(fields), recognise(PLAIN.partition(b"\r\n")[0] + b"\r\n" + fields)
    if known is not None:
        assert read is not None
        meaning, value, start, stop = known
        assert meaning == (read.host, read.if_match, read.checksums, read.app)
        assert read.range == (None if value is None else f"bytes={value.decode()}")
        assert read.span == (None if value is None else ranges.RangeSpec(start, stop - 1))


def test_fields_are_known_once_they_were_recognised() -> None:
    MEANINGS.clear()
    lines = PLAIN.partition(b"\r\n")[2]
    assert known_fields(lines) is None
    assert recognise(of("Host: h")) is not None
    assert known_fields(lines) == (("h", None, False, ""), None, 0, 0)
    for line in (b"Range: bytes=3-9\r\n", b"range: bytes=3-9\r\n"):
        assert known_fields(line + lines) == known_fields(lines[:-2] + line + b"\r\n")
        assert known_fields(line + lines) == (("h", None, False, ""), b"3-9", 3, 10)
    for odd in (b"-9", b"3-", b"9-3", b"3-9,", b"+3-9", b"3-9 ", b"1_0-20"):
        assert known_fields(b"Range: bytes=" + odd + b"\r\n" + lines) is None


def test_header_fields_that_differ_each_time_are_not_memoised() -> None:
    MEANINGS.clear()
    for number in range(2 * MEANINGS_MAX):
        assert recognise(of("Host: h", f"amz-sdk-invocation-id: {number}")) is not None
        assert recognise(of("Host: h", f"Authorization: {number}")) is not None
    assert not MEANINGS
    for number in range(2 * MEANINGS_MAX):
        assert recognise(of("Host: h", f"User-Agent: {number}")) is not None
    assert 0 < len(MEANINGS) <= MEANINGS_MAX


def test_bytes_after_the_head_are_no_range_of_it() -> None:
    for known in (PLAIN, of("Host: h", "Range: bytes=0-1")):
        assert recognise(known) is not None
        for more in (b"Range: bytes=0-1\r\n", b"Range: bytes=0-1\r\n\r\n", b"range: bytes=0-1", b"Range: bytes=0-1"):
            assert recognise(known + more) is None
            assert known_fields((known + more).partition(b"\r\n")[2]) is None
    assert recognise(b"GET /b/k HTTP/1.1\r\n\r\nRange: bytes=0-1\r\n") is None


def test_the_end_of_another_name_is_no_range() -> None:
    assert recognise(of("Host: h", "x-amz-user-agent: a")) is not None
    odd = of("Host: h", "x-amz-Range: bytes=0-1", "user-agent: a")
    assert recognise(odd) is None
    assert known_fields(odd.partition(b"\r\n")[2]) is None


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: h", "range: bytes=0-1", "Range: bytes=5-6"),
        ("Host: h", "Range: bytes=0-1", "Range: bytes=5-6"),
        ("Host: h", "Range: bytes=0-1", "range: bytes=5-6"),
        ("Host: h", "If-Range: bytes=0-1"),
        ("Host: h", "Range:  bytes=0-1"),
        ("Host: h", "Range: bytes=0-1 "),
        ("Host: h", "RANGE: bytes=0-1"),
    ],
)
def test_a_second_or_odd_range_is_for_the_parser(lines: tuple[str, ...]) -> None:
    for known in (of("Host: h"), of("Host: h", "Range: bytes=0-1"), of("Host: h", "range: bytes=0-1")):
        assert recognise(known) is not None
    assert recognise(of(*lines)) is None
    assert known_fields(of(*lines).partition(b"\r\n")[2]) is None


def _refused() -> Iterator[tuple[str, bytes]]:
    yield "half a head", PLAIN[:-1]
    yield "two requests", PLAIN * 2
    yield "a body", PLAIN + b"x"
    yield "no host", of("Accept: x")
    yield "an old version", PLAIN.replace(b"1.1", b"1.0")
    yield "bare line feeds", PLAIN.replace(b"\r\n", b"\n")
    yield "a folded line", of("Host: h", " folded")
    yield "a space before the colon", of("Host : h")
    yield "bytes beyond ASCII", of("Host: h", target="/b/é")
    yield "a write", of("Host: h", method="PUT")
    yield "a length", of("Host: h", "Content-Length: 0")
    yield "an upgrade", of("Host: h", "Connection: Upgrade")
    yield "the last request", of("Host: h", "Connection: close")
    yield "a header that may say more", of("Host: h", "x-amz-expected-bucket-owner: 1")
    yield "an unknown header", of("Host: h", "Accept-Language: de")
    yield "a range of a HEAD", of("Host: h", "Range: bytes=0-0", method="HEAD")
    yield "checksums in a mode of their own", of("Host: h", "x-amz-checksum-mode: DISABLED")
    yield "a payload that is announced in nonsense", of("Host: h", "x-amz-content-sha256: nonsense")
    yield "a signed body", of("Host: h", "x-amz-content-sha256: STREAMING-AWS4-HMAC-SHA256-PAYLOAD")
    yield "a long head", of("Host: h", "Accept: " + "x" * HEAD_BYTES_MAX)
    for name, value in (("Host", "h"), ("Range", "bytes=0-1"), ("If-Match", "a"), ("Accept", "x"),
                        ("Connection", "keep-alive"), ("x-amz-checksum-mode", "ENABLED")):  # fmt: skip
        twice = [f"{name}: {value}", f"{name.lower()}: {value}"]
        yield f"two of {name}", of(*twice, *(() if name == "Host" else ("Host: h",)))


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in _refused()])
def test_anything_else_is_the_parsers(data: bytes) -> None:
    assert recognise(data) is None
