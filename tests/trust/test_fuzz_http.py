"""Fuzz tests of the S3 port: any bytes get correct replies of HTTP and S3, or a closed connection.

No input is met with silence, with a 500, or with an error in the log. The fast path gives the same replies as the slow
path.
"""

from __future__ import annotations

import json
import logging
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from outrider.core.s3.plain_request import recognise
from tests.support.proxy import Proxy
from tests.support.rawhttp import Answer, RawConnection, answers_to, ask, assert_correct
from tests.support.signed_requests import Chunked, signed_head
from tests.support.trials import fuzzing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.bucket import Bucket
    from tests.support.trials import Trials

NAME = "fuzz"
KEYS = ("FUZZCLIENT", "fuzz-client-secret")
BODY = bytes(i % 251 for i in range(100_000))
# This ends any message that was left open (the rest of a body, half a head, or none), by a reply or by a refusal.
CLOSER = f"\r\n\r\nGET /{NAME}/key HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode() * 3


@pytest.fixture(scope="module", autouse=True)
def home(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    client.put_object(Bucket=NAME, Key="key", Body=BODY)
    client.put_object(Bucket=NAME, Key="empty", Body=b"")
    client.close()


@pytest.fixture(scope="module")
def loopback(bucket: Bucket) -> Iterator[Proxy]:
    with Proxy(bucket, freshness="immutable", client_timeout_s=0.3, block_size="64KiB") as running:
        for key in ("key", "empty"):
            ask(running.address, "GET", f"/{NAME}/{key}")
        running.settle()
        yield running


@pytest.fixture(scope="module")
def strict(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    clients = tmp_path_factory.mktemp("fuzz") / "clients.toml"
    clients.write_text(
        f'[[client]]\naccess_key = "{KEYS[0]}"\nsecret_key = "{KEYS[1]}"\n'
        f'grants = [{{bucket = "{NAME}", access = "write"}}]\n'
    )
    with Proxy(bucket, auth="sigv4", clients=clients, freshness="immutable", client_timeout_s=0.3) as running:
        # Without these reads the first two requests of one key would get MISS and HIT, depending on time.
        for key in ("key", "empty"):
            running.client(KEYS).get_object(Bucket=NAME, Key=key)["Body"].read()
        running.settle()
        yield running


@pytest.fixture(autouse=True)
def quiet(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    caplog.set_level(logging.WARNING)
    yield
    for record in caplog.get_records("call"):
        assert record.exc_info is None, record.getMessage()
        assert record.levelno < logging.ERROR, record.getMessage()


METHODS = ["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "PATCH", "get", "G", "CONNECT", "PRI", "\x00"]
TARGETS = [
    f"/{NAME}/key",
    f"/{NAME}/key",
    f"/{NAME}/empty",
    f"/{NAME}",
    f"/{NAME}/",
    "/",
    "//",
    f"/{NAME}/x/../key",
    f"/{NAME}?delete",
    f"/{NAME}?list-type=2",
    f"/{NAME}/new?uploads",
    f"/{NAME}/key?acl",
    "/_outrider",
    "/_outrider/status.json",
    "/_outrider/plan/a",
    "/_outrider/stall/%00",
    f"/{NAME}/%ff",
    f"/{NAME}/%",
    "*",
    f"http://x/{NAME}/key",
    "",
    f"/{NAME}/key?X-Amz-Signature=a",
    f"/{NAME}/key#f",
    "/\x7f",
    "/.%00",
]
NAMES = [
    "host",
    "Host",
    "content-length",
    "Content-Length",
    "transfer-encoding",
    "range",
    "if-match",
    "if-none-match",
    "connection",
    "expect",
    "authorization",
    "x-amz-content-sha256",
    "x-amz-decoded-content-length",
    "x-amz-trailer",
    "x-amz-copy-source",
    "content-type",
    "content-encoding",
    "upgrade",
    "x-amz-date",
    "origin",
    "x-amz-checksum-mode",
    "x-forwarded-host",
    "x_amz_acl",
    "te",
    "trailer",
    "",
    " ",
    "a b",
    "\x00",
    "\xff",
]
VALUES = [
    "x",
    "127.0.0.1",
    "0",
    "3",
    "5",
    "17",
    "-1",
    "+3",
    "0x3",
    "chunked",
    "Chunked",
    "gzip, chunked",
    "identity",
    "bytes=0-0",
    "bytes=-5",
    "bytes=5-",
    "bytes=9999999-",
    "bytes=a",
    "*",
    '"x"',
    "close",
    "keep-alive",
    "upgrade",
    "h2c",
    "websocket",
    "100-continue",
    "UNSIGNED-PAYLOAD",
    "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
    "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
    "a" * 64,
    "x-amz-checksum-crc32",
    f"/{NAME}/key",
    "aws-chunked",
    "multipart/form-data; boundary=b",
    "AWS4-HMAC-SHA256 Credential=a/20260101/r/s3/aws4_request, SignedHeaders=host, Signature=b",
    "20260101T000000Z",
    "null",
    "ENABLED",
    "",
    " ",
    "\t",
    "\x00",
    "\x0b",
    "\xff\xfe",
    "a\rb",
    "a\nb",
    "a" * 9000,
]
BODIES = [
    "",
    "abc",
    "3\r\nabc\r\n0\r\n\r\n",
    "3;ext\r\nabc\r\n0\r\na: b\r\n\r\n",
    "0\r\n\r\n",
    "zz\r\n",
    "--b\r\ncontent-disposition: form-data; name=key\r\n\r\nk\r\n--b--\r\n",
    "<Delete>",
    '{"reads": []}',
    "{",
    "<Delete><Object><Key>nothing</Key></Object></Delete>",
]
ENDS = ["\r\n", "\r\n", "\r\n", "\r\n", "\n", "\r", "\r\n ", ""]


@st.composite
def messages(draw: st.DrawFn) -> str:
    end = st.sampled_from(ENDS) if draw(st.integers(0, 3)) == 0 else st.just("\r\n")
    version = draw(st.sampled_from(["HTTP/1.1"] * 6 + ["HTTP/1.0", "HTTP/2.0", "HTTP/1.10", "", "http/1.1"]))
    text = f"{draw(st.sampled_from(METHODS))} {draw(st.sampled_from(TARGETS))} {version}{draw(end)}"
    if draw(st.integers(0, 4)):
        text += f"host: x{draw(end)}"
    for name, value in draw(st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=5)):
        text += f"{name}{draw(st.sampled_from([': ', ': ', ': ', ':', ' : ', '']))}{value}{draw(end)}"
    body = draw(st.sampled_from(BODIES))
    if body and draw(st.booleans()):
        length = "transfer-encoding: chunked" if body[0] in "30" else f"content-length: {len(body)}"
        text += f"{length}\r\n"
    return text + draw(end) + body


@st.composite
def wires(draw: st.DrawFn) -> bytes:
    """One to three messages, of which a few bytes are changed."""
    wire = "".join(draw(st.lists(messages(), min_size=1, max_size=3))).encode("latin-1")
    for _ in range(draw(st.sampled_from([0, 0, 1, 3]))):
        at = draw(st.integers(0, len(wire)))
        wire = wire[:at] + draw(st.binary(max_size=3)) + wire[at + draw(st.integers(0, 3)) :]
    return wire


@pytest.mark.parametrize("mode", ["loopback", "sigv4"])
@given(wire=st.one_of(wires(), wires(), st.binary(max_size=60)), cut=st.integers(0, 400))
@fuzzing(250)
def test_any_bytes_are_answered_or_cut(
    mode: str, loopback: Proxy, strict: Proxy, wire: bytes, cut: int, trials: Trials
) -> None:
    answers = answers_to((loopback if mode == "loopback" else strict).address, wire[:cut], wire[cut:], CLOSER)
    for answer in answers:
        assert_correct(answer)
    what = "a correct answer" if answers else "a closed connection"
    trials.record("fuzz", f"bytes that are nearly HTTP, {mode}", what)


HARMLESS = [
    ("Range", "bytes=0-9"),
    ("range", "bytes=70000-"),
    ("Range", "bytes=-1"),
    ("Range", "bytes=5-1"),
    ("range", "x"),
    ("Range", "bytes=0-1,3-4"),
    ("range", "bytes=200000-"),
    ("If-Match", "nothing"),
    ("If-Match", '"x"'),
    ("x-amz-checksum-mode", "ENABLED"),
    ("x-amz-checksum-mode", "no"),
    ("Accept", "*/*"),
    ("x-amz-content-sha256", "UNSIGNED-PAYLOAD"),
    ("connection", "keep-alive"),
    ("Connection", "close"),
    ("x-amz-date", "20260101T000000Z"),
    ("User-Agent", "fuzz (x; y)"),
    ("authorization", "AWS4 nonsense"),
    ("x-amz-request-payer", "requester"),
    ("if-none-match", "*"),
    ("Origin", "http://x"),
    ("Host", "y"),
]


@st.composite
def plain_reads(draw: st.DrawFn) -> bytes:
    method = draw(st.sampled_from(["GET", "GET", "GET", "HEAD"]))
    key = draw(st.sampled_from(["key", "key", "key", "empty", "nothing", "k%65y", "key/", "./key", "key%00"]))
    query = draw(
        st.sampled_from(
            [
                "",
                "",
                "",
                "?x-id=GetObject",
                "?acl",
                "?X-Amz-Signature=a&X-Amz-Date=b",
                "?partNumber=1",
                "?response-content-type=a",
                "?",
                "?&&",
            ]
        )
    )
    host = draw(st.sampled_from(["x", "x", "127.0.0.1:9480", "evil.example", "localhost", "a..b", "[::1]:1"]))
    lines = [f"{method} /{NAME}/{key}{query} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in draw(st.lists(st.sampled_from(HARMLESS), max_size=3))]
    return "\r\n".join([*lines, "\r\n"]).encode()


# Bodies that are deep, wide and huge. The strategies draw their numbers, so that a failure does not print them.
_HEAVY = [b"[" * 100_000, b'{"reads": ["' + b"s3://b/" * 9000 + b'"]}', b'{"start": ' + b"9" * 5000 + b"}"]


def comparable(answer: Answer) -> tuple[object, ...]:
    """All of a reply that depends neither on the request's id nor on the clock."""
    fixed = {
        name: value
        for name, value in answer.headers.items()
        if name not in ("date", "x-amz-request-id", "x-amz-id-2", "last-modified")
    }
    body = b"" if answer.status >= 400 else answer.body
    code = answer.code if answer.status >= 400 and answer.body else ""
    fixed.pop("content-length", None) if answer.status >= 400 else None
    return answer.status, fixed, body, code


def both_ways(proxy: Proxy, wire: bytes) -> tuple[Answer, Answer]:
    method = wire[:4].decode().strip()
    with RawConnection(proxy.address) as fast, RawConnection(proxy.address) as slow:
        fast.send(wire)
        # The parser skips an empty line before a request (RFC 9112 section 2.2); the fast path does not take such a
        # request.
        slow.send(b"\r\n" + wire)
        return fast.read_answer(method), slow.read_answer(method)


@given(wire=plain_reads())
@fuzzing(100, of=300)
def test_the_fast_path_replies_as_the_slow_path(loopback: Proxy, wire: bytes, trials: Trials) -> None:
    fast, slow = both_ways(loopback, wire)
    assert comparable(fast) == comparable(slow), wire
    trials.record("fuzz", "the same read by the fast path and by the parser", "the same answer")


@given(
    wire=plain_reads(), damage=st.sampled_from(["none", "none", "signature", "key", "date", "path", "host", "header"])
)
@fuzzing(40, of=120)
def test_the_fast_path_replies_to_signed_reads_as_the_slow_path(
    strict: Proxy, wire: bytes, damage: str, trials: Trials
) -> None:
    head, *lines = wire.decode().strip().split("\r\n")
    method, target, _ = head.split(" ")
    pairs = [
        tuple(line.split(": ", 1)) for line in lines if not line.lower().startswith(("host:", "x-amz-date", "auth"))
    ]
    assume(len({name.lower() for name, _ in pairs}) == len(pairs) and "Signature" not in target)
    signed = signed_head(method, strict.endpoint, target, KEYS, pairs)  # type: ignore[arg-type]
    changes = {
        "signature": ("Signature=", "Signature=0"),
        "key": (KEYS[0], "NOBODY"),
        "date": ("/20", "/19"),
        "path": (f"/{NAME}/", f"/{NAME}/x"),
        "host": ("127.0.0.1", "127.0.0.2"),
        "header": ("x-amz-date: 20", "x-amz-date: 19"),
    }
    text = "\r\n".join([head, *(f"{name}: {value}" for name, value in signed), "\r\n"])
    if damage != "none":
        text = text.replace(*changes[damage])
    for _ in range(2):
        fast, slow = both_ways(strict, text.encode())
        assert comparable(fast) == comparable(slow), text
        if damage != "none":
            assert fast.status in (400, 403), text
        strict.settle()
    trials.record("fuzz", "a signed read, whole or damaged, by both ways", "the same answer")


def test_the_strategies_draw_requests_of_both_paths() -> None:
    counts = {True: 0, False: 0}

    @given(plain_reads())
    @fuzzing(70, of=200)
    def count(wire: bytes) -> None:
        counts[recognise(wire) is not None] += 1

    count()
    assert min(counts.values()) > 20, counts


@given(
    # Half of them are plans and stalls, whose bodies are read.
    method=st.one_of(st.just("PUT"), st.sampled_from(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS"])),
    key=st.one_of(
        st.sampled_from(["plan/a", "stall/a"]),
        st.sampled_from(["", "status.json", "plan/", "plan/%00", "stall/%F0%9F", "warm/x", "plan/a/b", "?x"]),
    ),
    query=st.sampled_from(
        ["", "", "", "?list-type=2&delimiter=/", "?prefix=%FF&encoding-type=url", "?delete", "?max-keys=x"]
    ),
    headers=st.lists(
        st.sampled_from(
            [
                *HARMLESS,
                ("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"),
                ("x-amz-decoded-content-length", "9" * 19),
                ("x-amz-trailer", "x"),
            ]
        ),
        max_size=2,
    ),
    body=st.one_of(
        st.binary(max_size=30),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats()
            | st.text(max_size=5)
            | st.sampled_from(["s3://b/k", "s3://fuzz/key", "s3://"]),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["reads", "start", "total", "steps", "wait_s", "compute_s", "epoch", "x"]), inner
                )
            ),
            max_leaves=8,
        ).map(lambda value: json.dumps(value).encode()),
        st.integers(0, len(_HEAVY) - 1),
    ),
)
@fuzzing(50, of=150)
def test_any_command_to_the_reserved_bucket_is_understood_or_refused(
    loopback: Proxy,
    method: str,
    key: str,
    query: str,
    headers: list[tuple[str, str]],
    body: bytes | int,
    trials: Trials,
) -> None:
    body = _HEAVY[body] if isinstance(body, int) else body
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    head = f"{method} /_outrider/{key}{query} HTTP/1.1\r\nhost: x\r\n{lines}content-length: {len(body)}\r\n\r\n"
    answers = answers_to(loopback.address, head.encode("latin-1") + body, CLOSER)
    assert answers
    for answer in answers:
        assert_correct(answer)
    trials.record("fuzz", "plans, stalls and lists of _outrider", "an answer or a 4xx")


@given(
    cuts=st.lists(st.integers(0, 400), max_size=6).map(sorted),
    body=st.binary(max_size=200),
    chunk=st.integers(1, 80),
    edits=st.lists(st.tuples(st.integers(0, 500), st.binary(max_size=2), st.integers(0, 2)), max_size=2),
)
@fuzzing(60)
def test_an_upload_in_chunks_is_stored_whole_or_not_at_all(
    loopback: Proxy, cuts: list[int], body: bytes, chunk: int, edits: list[tuple[int, bytes, int]], trials: Trials
) -> None:
    """The body is aws-chunked inside of transfer chunks, cut into any pieces, whole or damaged."""
    upload = Chunked(body, trailer=("x-amz-checksum-sha256", _sha256(body)), chunk_bytes=chunk)
    inner = upload.encode()
    for at, data, gone in edits:
        inner = inner[:at] + data + inner[at + gone :]
    pieces = [inner[a:b] for a, b in zip([0, *cuts], [*cuts, len(inner)], strict=True) if inner[a:b]]
    lines = "".join(f"{name}: {value}\r\n" for name, value in upload.headers())
    head = (
        f"PUT /{NAME}/upload HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n{lines}"
        "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\n\r\n"
    ).encode()
    ask(loopback.address, "DELETE", f"/{NAME}/upload")
    wire = [head, *(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces), b"0\r\n\r\n"]
    answers = answers_to(loopback.address, *wire, CLOSER)
    for answer in answers:
        assert_correct(answer)
    stored = ask(loopback.address, "GET", f"/{NAME}/upload")
    # There is no answer if the upload was refused before all of it was sent: the connection's end overtook the answer.
    done = bool(answers) and answers[0].status == 200
    if done:
        assert stored.body == body
    else:
        assert stored.status == 404
    trials.record(
        "fuzz",
        "aws-chunked uploads, cut anywhere, some damaged",
        "stored whole" if done else "refused, nothing stored",
        lost=int(done and stored.body != body),
    )


def _sha256(body: bytes) -> str:
    return b64encode(sha256(body).digest()).decode()
