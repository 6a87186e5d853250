"""The fast path of the S3 port: it answers byte for byte as the slow path does, or hands the request over.

One connection may change from one path to the other at any request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from outrider.adapters.disk import block_reads
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.http.access import Principal
from outrider.http.s3 import connection as connection_module
from outrider.http.s3 import fast_path, hit_reply
from outrider.http.s3.connection import Connection
from outrider.http.s3.slow_path_handoff import Begun, ColdHit, Recognised
from outrider.http.wire.sender import SocketSender
from tests.support.proxy import ANY_KEYS, Keys, Proxy, ServedProxy, s3_client
from tests.support.rawhttp import Answer, RawConnection, ask, request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from outrider.core.model import BlockKey, Headers
    from tests.support.bucket import Bucket

    Cold = Callable[..., AbstractContextManager[tuple["Watched", "GatedReaders"]]]

NAME, OTHER = "fastpath", "fastpath-other"
BLOCK = 1024 * 1024
RAMP = (bytes(range(251)) * (5 * BLOCK // 251 + 1))[: 5 * BLOCK]
# Far more than the sockets of both sides take at once.
LARGE = RAMP * 8
OBJECTS = {
    "a": RAMP[:100_000], "b": RAMP[7 : 7 + 1000], "empty": b"", "two": RAMP[: BLOCK + BLOCK // 2], "large": LARGE,
    "many": RAMP[:BLOCK] * 70, "folder/": b"a folder's own", "a b+%?é\"\\\n": b"odd",
}  # fmt: skip
# A header that changes nothing, and that the fast path does not know.
UNUSUAL = ("accept-language", "de")
READER: Keys = ("PATHREADER", "reader/secret")
NARROW: Keys = ("PATHNARROW", "narrow/secret")
CLIENTS = f"""
[[client]]
name = "reader"
access_key = "{READER[0]}"
secret_key = "{READER[1]}"
grants = [{{bucket = "{NAME}*", access = "read"}}]

[[client]]
name = "nar\\"row"
access_key = "{NARROW[0]}"
secret_key = "{NARROW[1]}"
grants = [{{bucket = "{NAME}", prefix = "b", access = "read"}}]
"""


@pytest.fixture(scope="module", autouse=True)
def objects(bucket: Bucket) -> None:
    client = bucket.client()
    for name in (NAME, OTHER):
        bucket.make_bucket(name)
    for key, body in OBJECTS.items():
        client.put_object(Bucket=NAME, Key=key, Body=body, ContentType="application/x-tar", Metadata={"note": "kept"})
    client.put_object(Bucket=OTHER, Key="a", Body=b"another's")
    client.close()


class Watched:
    """A proxy that has all objects, with a record of the fast path's result for each request since `seen.clear()`.

    True: it answered. False: it left the request to the slow path. Else "begun" or "cold".
    """

    def __init__(self, proxy: Proxy) -> None:
        self.proxy = proxy
        self._seen: list[object] = []
        path = proxy.outrider.server.fast_path
        answer = path.answer

        def spied(data: bytes, wire: SocketSender, cold: ColdHit | None = None) -> Any:
            answered = answer(data, wire, cold)
            kinds: dict[type, object] = {Begun: "begun", ColdHit: "cold", Recognised: False}
            self._seen.append(answered if isinstance(answered, bool) else kinds[type(answered)])
            return answered

        path.answer = spied  # type: ignore[method-assign]

    @property
    def seen(self) -> list[object]:
        async def copy_of_seen() -> list[object]:
            return list(self._seen)

        return list(self.proxy.on_loop(copy_of_seen))  # a reply is sent before the loop has recorded it

    def connect(self) -> RawConnection:
        """A connection whose server side waits for its first request."""
        connection = RawConnection(self.proxy.address)
        self.wait(connection)
        self._seen.clear()
        return connection

    def wait(self, connection: RawConnection) -> None:
        """Wait until the server expects the connection's next request or the rest of one: the server does some steps
        after a reply."""
        own = connection.sock.getsockname()

        async def waiting() -> None:
            async with asyncio.timeout(60):
                while True:
                    for protocol in self.proxy.outrider.server.connections:
                        if protocol.peername == own and protocol._waiter and not protocol._waiter.done():
                            return
                    await asyncio.sleep(0.001)

        self.proxy.on_loop(waiting)

    def ask(self, method: str, target: str, headers: Headers = ()) -> tuple[Answer, object]:
        with self.connect() as connection:
            answer = connection.ask(method, target, headers)
        return answer, self.seen[0] if self.seen else None

    def next(
        self, connection: RawConnection, method: str, target: str, headers: Iterable[tuple[str, str]] = ()
    ) -> Answer:
        """Like `RawConnection.ask`, with an idle server before it."""
        self.wait(connection)
        self._seen.clear()
        return connection.ask(method, target, headers)


def _warm(proxy: Proxy, keys: Keys) -> None:
    client = proxy.client(keys)
    for key in OBJECTS:
        client.get_object(Bucket=NAME, Key=key)["Body"].read()
    client.get_object(Bucket=OTHER, Key="a")["Body"].read()
    proxy.settle()
    for key in OBJECTS:  # a block's checksum is verified at its first use
        client.get_object(Bucket=NAME, Key=key)["Body"].read()


@pytest.fixture(scope="module")
def watched(bucket: Bucket) -> Iterator[Watched]:
    # Nothing reads the blocks in the background: a test counts descriptors.
    quiet: dict[str, Any] = {"scrub_bandwidth": "0", "verify_origin": "off"}
    with Proxy(bucket, block_size="1MiB", freshness="immutable", **quiet) as proxy:
        _warm(proxy, ("anybody", "anything"))
        yield Watched(proxy)


@pytest.fixture(scope="module")
def strict(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    clients = tmp_path_factory.mktemp("watched") / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, block_size="1MiB", freshness="immutable", auth="sigv4", clients=clients) as proxy:
        _warm(proxy, READER)
        yield Watched(proxy)


@contextmanager
def watched_proxy(bucket: Bucket, origin: str | None = None, **settings: Any) -> Iterator[Watched]:
    with Proxy(bucket, origin, **{"block_size": "1MiB", "freshness": "immutable", **settings}) as proxy:
        ask(proxy.address, "GET", f"/{NAME}/a")
        proxy.settle()
        ask(proxy.address, "GET", f"/{NAME}/a")
        yield Watched(proxy)


def same(answer: Answer) -> tuple[int, dict[str, str], bytes]:
    """The answer without the parts that differ from one request to the next."""
    own = ("date", "x-amz-request-id")
    assert set(own) <= set(answer.headers)
    headers = {name: value for name, value in answer.headers.items() if name not in own}
    if answer.status >= 400 and answer.body:
        return answer.status, headers, answer.code.encode()  # the message holds the request id
    return answer.status, headers, answer.body


# -- equivalence ---------------------------------------------------------------------------------------------------

ETAG = "ETAG"  # a placeholder for the object's ETag
FORMS: dict[str, tuple[str, str, Headers, object]] = {
    "whole": ("GET", "a", (), True),
    "head": ("HEAD", "a", (), True),
    "head of a large one": ("HEAD", "large", (), True),
    "range": ("GET", "a", (("range", "bytes=5-77"),), True),
    "open range": ("GET", "a", (("range", "bytes=99990-"),), True),
    "last bytes": ("GET", "a", (("range", "bytes=-5"),), True),
    "range past the end": ("GET", "a", (("range", "bytes=99990-200000"),), True),
    "unsatisfiable range": ("GET", "a", (("range", "bytes=100000-"),), False),
    "odd range": ("GET", "a", (("range", "bytes=0-1,3-4"),), False),
    "range over two blocks": ("GET", "two", (("range", f"bytes={BLOCK - 5}-{BLOCK + 5}"),), True),
    "large": ("GET", "large", (), "begun"),
    "more than 64 blocks": ("GET", "many", (), False),
    "a range in the last of many": ("GET", "many", (("range", "bytes=-10"),), True),
    "empty": ("GET", "empty", (), True),
    "head of empty": ("HEAD", "empty", (), True),
    "range of empty": ("GET", "empty", (("range", "bytes=0-9"),), False),
    "its etag": ("GET", "a", (("if-match", ETAG),), True),
    "its etag without quotes": ("GET", "a", (("if-match", ETAG.lower()),), True),
    "its etag and a range": ("GET", "a", (("if-match", ETAG), ("range", "bytes=0-9")), True),
    "another etag": ("GET", "a", (("if-match", '"0"'),), False),
    "any etag": ("GET", "a", (("if-match", "*"),), False),
    "another's etag, no match": ("GET", "a", (("if-none-match", '"0"'),), False),
    "checksums": ("GET", "a", (("x-amz-checksum-mode", "ENABLED"),), True),
    "checksums of a head": ("HEAD", "a", (("x-amz-checksum-mode", "enabled"),), True),
    "checksums of a range": ("GET", "a", (("x-amz-checksum-mode", "ENABLED"), ("range", "bytes=0-9")), True),
    "a name for the operation": ("GET", "a?x-id=GetObject", (), True),
    "an empty query": ("GET", "a?", (), True),
    "another call": ("GET", "a?acl", (), False),
    "a version": ("GET", "a?versionId=null", (), False),
    "another content type": ("GET", "a?response-content-type=x", (), False),
    "escapes": ("GET", "%61", (), True),
    "a doubtful path": ("GET", "./a", (), False),
    "odd characters": ("GET", "a%20b%2B%25%3F%C3%A9%22%5C%0A", (), True),
    "a folder": ("GET", "folder/", (), True),
    "a range of a folder": ("GET", "folder/", (("range", "bytes=0-3"),), False),
    "a range of a folder in escapes": ("GET", "folder%2F", (("range", "bytes=0-3"),), False),
    "a condition on a folder in escapes": ("GET", "folder%2f", (("if-match", '"0"'),), False),
    "the etag of a folder in escapes": ("GET", "folder%2F", (("if-match", ETAG),), False),
    "missing": ("GET", "missing", (), False),
    "a nonsensical payload": ("GET", "a", (("x-amz-content-sha256", "nonsense"),), False),
    "keep-alive": ("GET", "a", (("connection", "keep-alive"),), True),
}  # fmt: skip


def _with_etag(watched: Watched, key: str, headers: Headers, keys: Keys | None) -> Headers:
    etag = watched.proxy.client(keys or ("a", "b")).head_object(Bucket=NAME, Key=key)["ETag"]
    meant = {ETAG: etag, ETAG.lower(): etag.strip('"')}
    return tuple((name, meant.get(value, value)) for name, value in headers)


@pytest.mark.parametrize("form", FORMS)
def test_both_paths_answer_the_same_without_signatures(watched: Watched, form: str) -> None:
    method, target, headers, by = FORMS[form]
    if any(name == "if-match" for name, _ in headers):
        headers = _with_etag(watched, "folder/" if "folder" in target else "a", headers, None)
    fast, seen = watched.ask(method, f"/{NAME}/{target}", headers)
    slow, _ = watched.ask(method, f"/{NAME}/{target}", (*headers, UNUSUAL))
    assert watched.seen == [False]
    assert same(fast) == same(slow)
    assert seen == by
    # By now the fast path knows the form, and may take its shortest way.
    again, seen = watched.ask(method, f"/{NAME}/{target}", headers)
    assert same(again) == same(fast)
    assert seen == by


SHORT: dict[str, bool] = {
    "whole": True, "range": True, "range past the end": True, "large": False, "its etag": True, "another etag": False,
    "its etag and a range": True, "checksums": False, "checksums of a range": True, "a folder": False,
    "a range of a folder": False, "unsatisfiable range": False, "last bytes": False, "range over two blocks": False,
    "head": False, "empty": False, "another call": False, "more than 64 blocks": False, "missing": False,
}  # fmt: skip


@pytest.mark.parametrize("form", SHORT)
def test_the_shortest_way_answers_what_it_knows_whole_and_nothing_else(
    watched: Watched, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, target, headers, _ = FORMS[form]
    if any(name == "if-match" for name, _ in headers):
        headers = _with_etag(watched, "a", headers, None)
    first, _ = watched.ask(method, f"/{NAME}/{target}", headers)
    path = watched.proxy.outrider.server.fast_path
    answer_known, answered = path._answer_known, list[object]()

    def noted(*args: Any) -> Any:
        answered.append(answer_known(*args))
        return answered[-1]

    monkeypatch.setattr(path, "_answer_known", noted)
    again, _ = watched.ask(method, f"/{NAME}/{target}", headers)
    assert same(again) == same(first)
    assert (answered == [True]) == SHORT[form]
    if not SHORT[form]:
        assert not any(answered)


def test_the_shortest_way_knows_whose_page_a_browser_shows(watched: Watched) -> None:
    for _ in range(2):
        head = f"GET /{NAME}/b HTTP/1.1\r\nhost: elsewhere.example\r\n\r\n"
        with watched.connect() as connection:
            connection.send(head.encode())
            assert connection.read_answer().status == 403
        assert watched.ask("GET", f"/{NAME}/b")[0].body == OBJECTS["b"]


def test_the_shortest_way_sends_no_bytes_that_are_not_in_memory(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = (("range", "bytes=7000-7999"),)
    for _ in range(2):
        assert watched.ask("GET", f"/{NAME}/a", span)[0].body == RAMP[7000:8000]
        assert watched.ask("GET", f"/{NAME}/b")[0].body == OBJECTS["b"]
    monkeypatch.setattr(hit_reply, "read_in_memory", lambda *_, **__: False)
    assert watched.ask("GET", f"/{NAME}/a", span)[0].body == RAMP[7000:8000]


def test_the_shortest_way_leaves_folders_alone(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    # The bucket of the tests keeps no folder with bytes of its own, so another object is taken for one.
    for _ in range(2):
        watched.ask("GET", f"/{NAME}/b")
    path = watched.proxy.outrider.server.fast_path
    subject = path._subjects[f"GET /{NAME}/b HTTP/1.1".encode()]
    answer_known, answered = path._answer_known, list[object]()

    def noted(*args: Any) -> Any:
        answered.append(answer_known(*args))
        return answered[-1]

    monkeypatch.setattr(path, "_answer_known", noted)
    for subject.is_folder in (True, False):
        assert watched.ask("GET", f"/{NAME}/b")[0].body == OBJECTS["b"]
    assert answered == [None, True]


def signed(keys: Keys, method: str, target: str, headers: Headers = ()) -> Headers:
    """The headers of a request that botocore signs for `Host: 127.0.0.1`, which `rawhttp` sends."""
    wanted = AWSRequest(method, f"http://127.0.0.1{target}", dict(headers))
    S3SigV4Auth(Credentials(*keys), "s3", "us-east-1").add_auth(wanted)
    return tuple((name, value) for name, value in wanted.headers.items() if name.lower() != "host")


@pytest.mark.parametrize("form", [name for name in FORMS if name not in ("a nonsensical payload", "an empty query")])
def test_both_paths_answer_a_client_key_the_same(strict: Watched, form: str) -> None:
    method, target, headers, by = FORMS[form]
    if any(name == "if-match" for name, _ in headers):
        headers = _with_etag(strict, "folder/" if "folder" in target else "a", headers, READER)
    sent = signed(READER, method, f"/{NAME}/{target}", headers)
    fast, seen = strict.ask(method, f"/{NAME}/{target}", sent)
    slow, _ = strict.ask(method, f"/{NAME}/{target}", (*sent, UNUSUAL))
    assert same(fast) == same(slow)
    assert fast.status != 403
    assert seen == by


def test_a_client_without_the_grant_is_refused_by_the_slow_path(strict: Watched) -> None:
    target = f"/{NAME}/a"
    good = dict(signed(READER, "GET", target))
    assert strict.ask("GET", target, tuple(good.items()))[1] is True
    wrong = {**good, "Authorization": good["Authorization"][:-1] + ("0" if good["Authorization"][-1] != "0" else "1")}
    cases: dict[str, tuple[str, Headers, str]] = {
        "no signature": (target, (), "AccessDenied"),
        "a wrong signature": (target, tuple(wrong.items()), "SignatureDoesNotMatch"),
        "a signature for another object": (f"/{NAME}/b", tuple(good.items()), "SignatureDoesNotMatch"),
        "a header that is not signed": (target, (*good.items(), ("x-amz-checksum-mode", "ENABLED")), "AccessDenied"),
        "a key without the grant": (target, signed(NARROW, "GET", target), "AccessDenied"),
        "an unknown key": (target, signed(("X", "y"), "GET", target), "InvalidAccessKeyId"),
    }
    for name, (asked, headers, code) in cases.items():
        answer, seen = strict.ask("GET", asked, headers)
        assert (answer.status, answer.code, seen) == (403, code, False), name
    assert strict.ask("GET", f"/{NAME}/b", signed(NARROW, "GET", f"/{NAME}/b"))[1] is True
    # A client that was authorised on a cached head opens the door to no other client.
    assert strict.ask("GET", target, signed(NARROW, "GET", target))[0].status == 403


def test_a_presigned_url_is_a_hit_until_it_expires(strict: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in ("s3v4", "s3"):
        client = s3_client("http://127.0.0.1", READER, signature_version=version)
        url = urlsplit(client.generate_presigned_url("get_object", {"Bucket": NAME, "Key": "a"}, ExpiresIn=60))
        client.close()
        target = f"{url.path}?{url.query}"
        answer, seen = strict.ask("GET", target)
        assert (answer.status, answer.body, seen) == (200, OBJECTS["a"], True)
        access = strict.proxy.outrider.server.handler._access
        with monkeypatch.context() as moved:
            clock = access._clock  # type: ignore[attr-defined]
            moved.setattr(access, "_clock", lambda clock=clock: clock() + 61)
            answer, seen = strict.ask("GET", target)
        assert (answer.status, answer.code, seen) == (403, "AccessDenied", False)


def test_a_loopback_proxy_ignores_a_signature_in_the_query(watched: Watched) -> None:
    query = "X-Amz-Algorithm=x&X-Amz-Credential=y&X-Amz-Signature=z"
    answer, seen = watched.ask("GET", f"/{NAME}/a?{query}")
    assert (answer.body, seen) == (OBJECTS["a"], True)
    answer, seen = watched.ask("GET", f"/{NAME}/a?{query}&acl")
    assert b"AccessControlPolicy" in answer.body
    assert seen is False


def test_a_bucket_in_the_host_is_part_of_the_name(bucket: Bucket) -> None:
    with watched_proxy(bucket, domain=["s3.test"]) as watched:
        ask(watched.proxy.address, "GET", f"/{OTHER}/a")

        def body(host: str, target: str) -> bytes:
            with watched.connect() as connection:
                connection.send(f"GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n".encode())
                return connection.read_answer().body

        for host, wanted in (
            (f"{NAME}.s3.test", OBJECTS["a"]), (f"{OTHER}.s3.test", b"another's"),
            (f"{NAME}.S3.Test:9480", OBJECTS["a"]),
        ):  # fmt: skip
            for _ in range(3):  # the second or third request is a hit
                assert body(host, "/a") == wanted
                watched.proxy.settle()
            assert watched.seen == [True]
        assert body("127.0.0.1", f"/{NAME}/a") == OBJECTS["a"]
        assert watched.seen == [True]


# -- one connection, both paths --------------------------------------------------------------------------------------


def test_a_request_that_comes_before_the_last_ones_task_has_ended_takes_the_fast_path_too(watched: Watched) -> None:
    with watched.connect() as connection:
        own = connection.sock.getsockname()
        watched.proxy.settle()

        async def at_once() -> None:
            (protocol,) = (each for each in watched.proxy.outrider.server.connections if each.peername == own)
            answered = watched.proxy.metric("outrider_requests_total")
            # Only the bucket can answer this: a request answered without a wait would leave no gap (Python 3.12 starts
            # tasks eagerly).
            protocol.data_received(request("GET", f"/{NAME}/a?acl"))
            while watched.proxy.metric("outrider_requests_total") == answered:
                await asyncio.sleep(0)
            assert protocol._waiter is None, "the task of the last request has not ended yet"
            protocol.data_received(request("GET", f"/{NAME}/b"))

        watched.proxy.on_loop(at_once)
        acl, body = (connection.read_answer().body for _ in range(2))
        assert b"AccessControlPolicy" in acl
        assert body == OBJECTS["b"]
    assert watched.seen == [False, True]


def test_pieces_of_a_request_that_come_before_the_last_ones_task_has_ended_keep_their_order(watched: Watched) -> None:
    with watched.connect() as connection:
        own = connection.sock.getsockname()
        watched.proxy.settle()

        async def at_once() -> None:
            (protocol,) = (each for each in watched.proxy.outrider.server.connections if each.peername == own)
            answered = watched.proxy.metric("outrider_requests_total")
            # Only the bucket can answer this: a request answered without a wait would leave no gap (Python 3.12 starts
            # tasks eagerly).
            protocol.data_received(request("GET", f"/{NAME}/a?acl"))
            while watched.proxy.metric("outrider_requests_total") == answered:
                await asyncio.sleep(0)
            assert protocol._waiter is None, "the task of the last request has not ended yet"
            data = request("GET", f"/{NAME}/b")
            for piece in (data[:9], data[9:30], data[30:]):
                protocol.data_received(piece)

        watched.proxy.on_loop(at_once)
        acl, body = (connection.read_answer().body for _ in range(2))
        assert b"AccessControlPolicy" in acl
        assert body == OBJECTS["b"]


def test_a_request_that_the_parser_has_begun_is_ended_by_the_parser(watched: Watched) -> None:
    """Otherwise a client that splits a request over packets could have a header's value taken for a request."""
    inner = request("GET", f"/{NAME}/b")
    with watched.connect() as connection:
        first = request("GET", f"/{NAME}/a", [UNUSUAL])
        connection.send(first + b"GET /" + NAME.encode() + b"/a HTTP/1.1\r\nx-note: ")
        assert connection.read_answer().body == OBJECTS["a"]
        connection.send(inner)
        assert connection.read_answer().body == OBJECTS["a"], "the value of a header is no request"
        assert watched.next(connection, "GET", f"/{NAME}/b").body == OBJECTS["b"]


@pytest.mark.parametrize("left", [b"G", b"GE", b"GET", b"GET /b"])
def test_the_beginning_of_a_request_waits_for_its_own_rest(watched: Watched, left: bytes) -> None:
    with watched.connect() as connection:
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        first = request("GET", f"/{NAME}/a")
        connection.send(first[:-1])
        watched.proxy.settle()
        connection.send(first[-1:] + left)
        assert connection.read_answer().body == OBJECTS["a"]
        watched.wait(connection)
        connection.send(request("GET", f"/{NAME}/b"))
        assert connection.read_answer().status == 400
        assert connection.is_closed_by_peer()


def test_a_body_is_never_a_request(watched: Watched, bucket: Bucket) -> None:
    hidden = request("GET", f"/{NAME}/a")
    with watched.connect() as connection:
        head = request("PUT", f"/{OTHER}/put", [("content-length", str(len(hidden)))])
        connection.send(head)
        connection.send(hidden)
        assert connection.read_answer("PUT").status == 200
        for _ in range(2):
            assert watched.next(connection, "GET", f"/{NAME}/b").body == OBJECTS["b"]
        assert watched.seen[-1] is True, "a connection that wrote once is not slow for ever"
        chunk = b"%x\r\n%s\r\n" % (len(hidden), hidden)
        connection.send(request("PUT", f"/{OTHER}/put", [("transfer-encoding", "chunked")]))
        connection.send(chunk)
        connection.send(hidden)  # not a chunk's size
        assert connection.read_answer("PUT").status in (400, 411)
        assert connection.is_closed_by_peer()


@pytest.mark.parametrize("cut", [1, 5, 30, -4, -2, -1])
def test_a_request_in_two_packets_is_answered_once(watched: Watched, cut: int) -> None:
    data = request("GET", f"/{NAME}/b")
    with watched.connect() as connection:
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.send(data[:cut])
        watched.proxy.settle()
        connection.send(data[cut:])
        assert connection.read_answer().body == OBJECTS["b"]
        assert watched.next(connection, "GET", f"/{NAME}/a").body == OBJECTS["a"]


def test_requests_in_one_packet_and_while_a_reply_is_on_its_way_are_answered_in_order(watched: Watched) -> None:
    def get(key: str) -> bytes:
        return request("GET", f"/{NAME}/{key}")

    with watched.connect() as connection:
        connection.send(get("a") + get("b") + get("a"))
        assert [connection.read_answer().body for _ in range(3)] == [OBJECTS[key] for key in "aba"]
        watched.wait(connection)
        watched._seen.clear()
        connection.send(get("large"))
        connection.read_head().close()
        assert watched.seen == ["begun"]
        connection.send(get("b"))
        connection.send(get("a"))
        assert connection._file.read(len(LARGE)) == LARGE
        assert [connection.read_answer().body for _ in range(2)] == [OBJECTS[key] for key in "ba"]
        assert watched.seen == ["begun"]
        assert watched.next(connection, "GET", f"/{NAME}/b").body == OBJECTS["b"]


def test_a_full_proxy_answers_503_until_a_request_ends(bucket: Bucket) -> None:
    with watched_proxy(bucket, requests="1") as watched:
        client = watched.proxy.client()
        client.get_object(Bucket=NAME, Key="large")["Body"].read()
        watched.proxy.settle()
        with watched.connect() as slow, watched.connect() as other:
            slow.send(request("GET", f"/{NAME}/large"))
            slow.read_head().close()
            assert watched.next(other, "GET", f"/{NAME}/a").status == 503
            slow.close()
        watched.proxy.settle()
        assert watched.ask("GET", f"/{NAME}/a")[0].status == 200


# -- freshness -------------------------------------------------------------------------------------------------------


def test_a_write_between_two_hits_is_seen_by_the_second(bucket: Bucket) -> None:
    with watched_proxy(bucket) as watched, watched.connect() as connection, watched.connect() as writer:
        writer.ask("PUT", f"/{OTHER}/w", [("content-length", "3")], b"old")
        for _ in range(3):
            assert watched.next(connection, "GET", f"/{OTHER}/w").body == b"old"
            watched.proxy.settle()
        assert watched.seen[-1] is True
        writer.ask("PUT", f"/{OTHER}/w", [("content-length", "3")], b"new")
        for _ in range(3):
            assert watched.next(connection, "GET", f"/{OTHER}/w").body == b"new"
            watched.proxy.settle()
        assert watched.seen[-1] is True
        watched.next(writer, "DELETE", f"/{OTHER}/w")
        assert watched.next(connection, "GET", f"/{OTHER}/w").status == 404


def test_a_version_that_another_request_learnt_is_served_from_then_on(bucket: Bucket) -> None:
    direct = bucket.client()
    with watched_proxy(bucket) as watched, watched.connect() as connection:
        direct.put_object(Bucket=OTHER, Key="v", Body=b"old")
        for _ in range(3):
            assert watched.next(connection, "GET", f"/{OTHER}/v").body == b"old"
        etag = direct.put_object(Bucket=OTHER, Key="v", Body=b"new")["ETag"]
        assert watched.next(connection, "GET", f"/{OTHER}/v").body == b"old", "immutable: nobody asks"
        assert watched.next(connection, "GET", f"/{OTHER}/v", [("if-match", etag)]).body == b"new"
        assert watched.next(connection, "GET", f"/{OTHER}/v").body == b"new"
    direct.close()


def test_a_version_that_the_version_cache_had_no_room_for_is_not_trusted_for_ever(bucket: Bucket) -> None:
    direct = bucket.client()
    with watched_proxy(bucket, catalog_entries="2") as watched, watched.connect() as connection:
        direct.put_object(Bucket=OTHER, Key="v", Body=b"old")
        for _ in range(3):
            assert watched.next(connection, "GET", f"/{OTHER}/v").body == b"old"
        etag = direct.put_object(Bucket=OTHER, Key="v", Body=b"new")["ETag"]
        for key in ("a", "b"):
            watched.next(connection, "GET", f"/{NAME}/{key}", [UNUSUAL])
        assert watched.next(connection, "GET", f"/{OTHER}/v", [("if-match", etag)]).body == b"new"
        assert watched.next(connection, "GET", f"/{OTHER}/v").body == b"new"
    direct.close()


def test_with_always_the_fast_path_answers_nothing(bucket: Bucket) -> None:
    for settings in ({"freshness": "always"}, {"verify": "always"}):
        with watched_proxy(bucket, **settings) as watched:
            for _ in range(2):
                answer, seen = watched.ask("GET", f"/{NAME}/a")
                assert (answer.body, seen) == (OBJECTS["a"], False)


def test_unknown_checksums_are_requested_from_the_origin(bucket: Bucket) -> None:
    asked = (("x-amz-checksum-mode", "ENABLED"),)
    with watched_proxy(bucket) as watched:
        assert watched.ask("GET", f"/{NAME}/a")[1] is True
        first, seen = watched.ask("GET", f"/{NAME}/a", asked)
        assert ("x-amz-checksum-crc32" in first.headers, seen) == (True, False)
        second, seen = watched.ask("GET", f"/{NAME}/a", asked)
        assert (same(second), seen) == (same(first), True)


def test_a_connection_with_hits_alone_does_not_count_as_idle(watched: Watched) -> None:
    with watched.connect() as connection:
        own = connection.sock.getsockname()
        (protocol,) = (each for each in watched.proxy.outrider.server.connections if each.peername == own)
        protocol._next_keepalive_close_time = 0.0  # due long ago
        watched.next(connection, "GET", f"/{NAME}/a")
        assert watched.seen == [True]

        async def look() -> None:
            protocol._process_keepalive()

        watched.proxy.on_loop(look)
        assert watched.next(connection, "GET", f"/{NAME}/a").status == 200
        assert protocol._next_keepalive_close_time > 0.0


# -- counters and logs -----------------------------------------------------------------------------------------------


def test_each_byte_is_counted_once_whichever_path_sent_it(watched: Watched) -> None:
    proxy = watched.proxy

    def counts() -> tuple[float, float, float]:
        proxy.settle()
        return (
            proxy.metric("outrider_served_bytes_total", source="disk"),
            proxy.metric("outrider_served_bytes_total"),
            proxy.metric("outrider_requests_total", cache="HIT"),
        )

    before = counts()
    asked: list[tuple[str, str, Headers, int]] = [
        ("GET", "a", (), 100_000), ("HEAD", "a", (), 0), ("GET", "large", (), len(LARGE)), ("GET", "empty", (), 0),
        ("GET", "a", (("range", "bytes=0-9"),), 10), ("GET", "a", (UNUSUAL,), 100_000), ("GET", "many", (), 70 * BLOCK),
    ]  # fmt: skip
    for method, key, headers, _ in asked:
        watched.ask(method, f"/{NAME}/{key}", headers)
    total = sum(count for *_, count in asked)
    after = counts()
    assert [new - old for old, new in zip(before, after, strict=True)] == [total, total, len(asked)]


def test_a_client_that_leaves_in_mid_body_leaves_nothing_behind(watched: Watched) -> None:
    proxy = watched.proxy
    open_before = len(proxy.outrider.server.connections)

    def descriptors() -> int:
        proxy.settle()

        async def gone() -> int:
            async with asyncio.timeout(60):
                while len(proxy.outrider.server.connections) > open_before:
                    await asyncio.sleep(0.001)
            return len(os.listdir("/proc/self/fd"))

        return int(proxy.on_loop(gone))

    watched.ask("GET", f"/{NAME}/large")
    before, requests = descriptors(), proxy.metric("outrider_requests_total")
    for _ in range(5):
        with watched.connect() as connection:
            connection.send(request("GET", f"/{NAME}/large"))
            connection.read_head().close()
        assert watched.seen == ["begun"]
    assert descriptors() <= before
    assert proxy.outrider.server.handler.in_flight == 0
    assert proxy.metric("outrider_requests_total") - requests == 5


def test_bytes_that_a_block_file_lacks_come_from_the_origin_and_are_counted(
    bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "outrider.access")
    with watched_proxy(bucket) as watched:
        whole = watched.ask("GET", f"/{NAME}/a")[0].body
        (file,) = (path for path in (watched.proxy.cache_dir / "v2").rglob("*") if path.is_file())
        os.truncate(file, 4096 + 100)
        disk_bytes = watched.proxy.metric("outrider_served_bytes_total", source="disk")
        assert watched.ask("GET", f"/{NAME}/a")[0].body == whole
        watched.proxy.settle()
        assert watched.proxy.metric("outrider_served_bytes_total", source="disk") == disk_bytes + 100
        assert not [record for record in caplog.records if "cut" in vars(record)]
        assert watched.proxy.metric("outrider_store_errors_total", act="send") == 1
        # The block is verified before it is used again.
        assert watched.ask("GET", f"/{NAME}/a")[0].body == whole
        watched.proxy.settle()
        assert watched.proxy.metric("outrider_bad_blocks_total") == 1
        assert file.stat().st_size == 4096 + len(whole), "the block was filled again"


def test_a_hit_is_logged_as_any_read_is(bucket: Bucket, tmp_path: Path) -> None:
    clients = tmp_path / "clients.toml"
    clients.write_text(CLIENTS)
    asked = [
        (READER, "GET", "a%20b%2B%25%3F%C3%A9%22%5C%0A", ()), (NARROW, "GET", "b", ()), (NARROW, "HEAD", "b", ()),
        (READER, "GET", "a", (("range", "bytes=5-9"),)), (READER, "GET", "large", ()),
    ]  # fmt: skip
    with ServedProxy(bucket, tmp_path, auth="sigv4", clients=str(clients), freshness="immutable") as proxy:
        for keys, method, key, headers in asked:
            target = f"/{NAME}/{key}"
            for more in ((UNUSUAL,), (UNUSUAL,), ()):
                ask(proxy.address, method, target, (*signed(keys, method, target, headers), *more))
                proxy.settle()
        proxy.stop()
        lines = proxy.lines("request")
    assert len(lines) == 3 * len(asked)
    for slow, fast in zip(lines[1::3], lines[2::3], strict=True):
        own = ("time", "seconds", "request")
        assert [*fast] == [*slow], "the fields in the same order"
        assert {n: v for n, v in fast.items() if n not in own} == {n: v for n, v in slow.items() if n not in own}
        assert abs(len(fast["request"])) == len(slow["request"])
    assert [line["key"] for line in lines[::3]] == ['a b+%?é"\\\n', "b", "b", "a", "large"]
    assert lines[5]["client"] == 'nar"row'


def test_a_client_that_is_gone_before_the_first_byte_is_logged(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "outrider.access")
    for method in ("GET", "HEAD"):
        with watched.connect() as connection:
            own = connection.sock.getsockname()
            (protocol,) = (each for each in watched.proxy.outrider.server.connections if each.peername == own)

            async def asked_by_a_ghost(protocol: Any = protocol, method: str = method) -> None:
                protocol.wire.lost()
                protocol.data_received(request(method, f"/{NAME}/a"))

            watched.proxy.on_loop(asked_by_a_ghost)
            assert connection.is_closed_by_peer()
        watched.proxy.settle()
        line = vars(caplog.records[-1])
        assert (line["op"], line["method"], line["bytes"], line["cut"]) == (method.lower(), method, 0, "client left")


# -- a stop ----------------------------------------------------------------------------------------------------------


def test_a_begun_reply_ends_whole_when_the_proxy_is_told_to_stop(bucket: Bucket, tmp_path: Path) -> None:
    with ServedProxy(bucket, tmp_path) as proxy:
        for _ in range(2):
            ask(proxy.address, "GET", f"/{NAME}/large")
            proxy.settle()
        with RawConnection(proxy.address) as connection:
            connection.send(request("GET", f"/{NAME}/large"))
            head = connection.read_head()
            proxy.send(signal.SIGTERM)
            assert head.read() == LARGE
        assert proxy.wait() == 0


def test_a_begun_reply_is_a_request_under_way_from_its_first_byte(watched: Watched) -> None:
    with watched.connect() as connection:
        own = connection.sock.getsockname()
        (protocol,) = (each for each in watched.proxy.outrider.server.connections if each.peername == own)

        async def asked_and_closed() -> None:
            protocol.data_received(request("GET", f"/{NAME}/large"))
            protocol.close()

        watched.proxy.on_loop(asked_and_closed)
        assert connection.read_answer().body == LARGE
    assert watched.seen == ["begun"]


# -- cost ------------------------------------------------------------------------------------------------------------


class GatedReaders(ThreadPoolExecutor):
    """Reader threads that wait for the test before they wait for the disk."""

    def __init__(self) -> None:
        super().__init__(1)
        self.open, self.asked = threading.Event(), threading.Event()
        self.begun = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        def gated() -> Any:
            self.begun += 1
            self.open.wait(60)
            return fn(*args, **kwargs)

        self.asked.set()
        return super().submit(gated)


@contextmanager
def page_cold(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, **settings: Any
) -> Iterator[tuple[Watched, GatedReaders]]:
    """The pages of object `a`, and only its pages, are not in memory before the gate opens."""
    with watched_proxy(bucket, **settings) as watched:
        file = file_of_a(watched)
        there, preadv, readers = os.stat(file).st_ino, os.preadv, GatedReaders()

        def cold(fd: int, *rest: Any) -> int:
            # The kernel begins to read the pages that it is asked about, so real pages would be in memory at the second
            # look.
            if os.fstat(fd).st_ino == there and not readers.open.is_set():
                raise BlockingIOError
            return preadv(fd, *rest)

        monkeypatch.setattr(os, "preadv", cold)
        watched.proxy.outrider.server.readers = readers
        watched._seen.clear()
        try:
            yield watched, readers
        finally:
            readers.open.set()


@contextmanager
def unverified(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, at_once_bytes_max: int = 0, **settings: Any
) -> Iterator[tuple[Watched, GatedReaders]]:
    """The block of object `a` was not verified since the start. The disk's threads wait for the gate."""
    with watched_proxy(bucket, **settings) as watched:
        file, store, readers = file_of_a(watched), watched.proxy.outrider.store, GatedReaders()
        (key,) = (key for key in store.present() if store.disks[0].directory.path_of(key).samefile(file))
        as_at_the_start(watched, key)
        # Its pages are in memory.
        monkeypatch.setattr(block_reads, "_AT_ONCE_BYTES_MAX", at_once_bytes_max)
        threads = store.disks[0].work.threads
        store.disks[0].work.threads = readers
        watched._seen.clear()
        try:
            yield watched, readers
        finally:
            readers.open.set()
            store.disks[0].work.threads = threads


def as_at_the_start(watched: Watched, key: BlockKey) -> None:
    """The block's file is not open, and its bytes are not verified."""

    async def close() -> None:
        store = watched.proxy.outrider.store
        store._close(key, store._slots[key])
        store._slots[key].verified = False

    watched.proxy.on_loop(close)


def file_of_a(watched: Watched) -> Path:
    """The block file of object `a`, which is there alone; afterwards that of `b` is there, too."""
    (file,) = (path for path in (watched.proxy.cache_dir / "v2").rglob("*") if path.is_file())
    for _ in range(2):
        ask(watched.proxy.address, "GET", f"/{NAME}/b")
        watched.proxy.settle()
    return file


@pytest.fixture(params=[page_cold, unverified], ids=lambda made: made.__name__)
def cold(request: pytest.FixtureRequest, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> Cold:
    return partial(request.param, bucket, monkeypatch)


def test_a_hit_that_waits_for_the_disk_delays_no_other_client(cold: Cold) -> None:
    with cold() as (watched, readers), watched.connect() as waiting, watched.connect() as other:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        assert watched.seen == ["cold"]
        assert watched.next(other, "GET", f"/{NAME}/b").body == OBJECTS["b"]
        assert watched.seen == [True]
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        assert watched.seen == [True, True], "answered by the fast path, once the pages were in memory"
        assert watched.next(waiting, "GET", f"/{NAME}/a").body == OBJECTS["a"]
        assert watched.seen == [True], "now the page is in memory"


def test_the_wait_for_the_disk_is_counted_as_the_requests_own(cold: Cold, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead, clock = [0.0], time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: clock() + ahead[0])
    with cold() as (watched, readers), watched.connect() as waiting:
        before = watched.proxy.metric("outrider_first_byte_seconds_sum", op="get")
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        ahead[0] = 1000.0
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        assert watched.seen == ["cold", True]
        assert watched.proxy.metric("outrider_first_byte_seconds_sum", op="get") - before > 1000.0


def test_a_request_behind_one_that_waits_for_the_disk_is_answered_in_order(cold: Cold) -> None:
    with cold() as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        waiting.send(request("GET", f"/{NAME}/b"))
        watched.proxy.on_loop(some_loop_iterations)
        readers.open.set()
        assert [waiting.read_answer().body for _ in range(2)] == [OBJECTS["a"], OBJECTS["b"]]
        watched.proxy.settle()
        assert watched.seen == ["cold"], "the slow path keeps the order of requests"
        assert watched.next(waiting, "GET", f"/{NAME}/a").body == OBJECTS["a"]


async def some_loop_iterations() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_disk_that_brings_nothing_in_time_is_left_to_the_slow_path(
    cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "DISK_WAIT_S", 0.0)
    with cold() as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        while len(watched.seen) < 2:
            watched.proxy.on_loop(some_loop_iterations)
        assert watched.seen == ["cold", False]
        assert watched.proxy.outrider.server.handler.in_flight == 1
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        watched.proxy.settle()
        assert watched.seen == ["cold", False]
        if watched.proxy.outrider.store.disks[0].work.threads is readers:
            assert readers.begun == 1, "a verification that is late is not begun once more"


def test_a_request_that_waits_for_the_disk_counts_as_under_way_to_a_stop(cold: Cold) -> None:
    with cold() as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)

        async def stop() -> None:
            watched.proxy.outrider.server.pre_shutdown()

        watched.proxy.on_loop(stop)
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        assert waiting.is_closed_by_peer()


def test_a_stop_waits_for_requests_that_wait_for_the_disk(cold: Cold) -> None:
    with cold() as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        server = watched.proxy.outrider.server

        async def drain() -> None:
            server.pre_shutdown()
            idle = asyncio.ensure_future(server.idle())
            await some_loop_iterations()
            assert not idle.done()
            readers.open.set()
            await idle

        watched.proxy.on_loop(drain)
        assert waiting.read_answer().body == OBJECTS["a"]


def test_a_connection_that_waits_for_the_disk_does_not_count_as_idle(cold: Cold) -> None:
    with cold(client_idle_s=0.4) as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)

        async def closes_in_s() -> float:
            (connection,) = watched.proxy.outrider.server.connections
            return connection._next_keepalive_close_time - asyncio.get_running_loop().time()

        assert watched.proxy.on_loop(closes_in_s) > 0.5, "the disk has one second"
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]


def test_the_disk_is_not_read_for_a_client_that_has_left(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with page_cold(bucket, monkeypatch) as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        readers.asked.clear()
        with watched.connect() as leaving:
            leaving.send(request("GET", f"/{NAME}/a"))
            assert readers.asked.wait(60)
        while len(watched.proxy.outrider.server.connections) > 1:
            watched.proxy.on_loop(some_loop_iterations)
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        readers.shutdown()
        assert readers.begun == 1


def test_a_client_that_leaves_while_the_disk_is_waited_for_leaves_nothing_behind(
    cold: Cold, caplog: pytest.LogCaptureFixture
) -> None:
    with cold() as (watched, readers):
        with watched.connect() as waiting:
            waiting.send(request("GET", f"/{NAME}/a"))
            assert readers.asked.wait(60)
        while watched.proxy.outrider.server.connections:
            watched.proxy.on_loop(some_loop_iterations)
        readers.open.set()
        watched.proxy.settle()
        assert watched.seen == ["cold"]
        assert watched.ask("GET", f"/{NAME}/a")[0].body == OBJECTS["a"]
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


def test_pages_that_come_late_do_not_affect_the_next_request(cold: Cold) -> None:
    with cold() as (watched, readers), watched.connect() as waiting:
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)

        async def late() -> None:
            for connection in watched.proxy.outrider.server.connections:
                assert isinstance(connection, Connection)
                connection._is_ready(ColdHit(None, None, 0.0, Recognised(b"", Principal(None, None, UNSIGNED), None)))

        watched.proxy.on_loop(late)
        assert watched.seen == ["cold"]
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        assert watched.seen == ["cold", True]


def test_a_small_block_in_memory_is_verified_without_a_thread(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"at_once_bytes_max": 2 * len(OBJECTS["a"])}
    with unverified(bucket, monkeypatch, **settings) as (watched, readers), watched.connect() as client:
        client.send(request("GET", f"/{NAME}/a"))
        assert client.read_answer().body == OBJECTS["a"]
        assert watched.seen == ["cold", True]
        assert not readers.asked.is_set()


@pytest.mark.parametrize("why", ["each read is verified", "the disk hangs", "the body is large"])
def test_a_request_that_a_verification_cannot_speed_up_takes_the_slow_path_at_once(
    why: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with unverified(bucket, monkeypatch) as (watched, readers), watched.connect() as waiting:
        store = watched.proxy.outrider.store
        if why == "each read is verified":
            store._verify_always = True
        elif why == "the disk hangs":
            monkeypatch.setattr(store.disks[0].work, "_hung_until", float("inf"))
        elif why == "the body is large":
            monkeypatch.setattr(fast_path, "_PAGED_IN_BYTES", len(OBJECTS["a"]) - 1)
        waiting.send(request("GET", f"/{NAME}/a"))
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        assert watched.seen == [False]


def test_a_damaged_block_that_a_hit_waits_for_is_fetched_anew(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    with unverified(bucket, monkeypatch) as (watched, readers), watched.connect() as waiting:
        store = watched.proxy.outrider.store
        for key in store.present():
            with store.disks[0].directory.path_of(key).open("r+b") as file:
                file.seek(-1, os.SEEK_END)
                last = file.read(1)
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last[0] ^ 1]))
        waiting.send(request("GET", f"/{NAME}/a"))
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]
        assert watched.seen == ["cold", False]
        assert watched.proxy.metric("outrider_bad_blocks_total") == 1


@pytest.mark.parametrize("why", ["the kernel cannot probe memory", "the body is large"])
def test_a_request_that_a_page_wait_cannot_speed_up_takes_the_slow_path_at_once(
    why: str, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    with page_cold(bucket, monkeypatch) as (watched, readers), watched.connect() as waiting:
        if why == "the kernel cannot probe memory":
            watched.proxy.outrider.store.disks[0].directory.can_probe_memory = False
        else:
            monkeypatch.setattr(fast_path, "_PAGED_IN_BYTES", len(OBJECTS["a"]) - 1)
        waiting.send(request("GET", f"/{NAME}/a"))
        assert readers.asked.wait(60)
        assert watched.seen == [False]
        readers.open.set()
        assert waiting.read_answer().body == OBJECTS["a"]


# A 64 KiB range, counted by this test, and a few to spare.
CALLS_PER_HIT, CALLS_PER_SIGNED_HIT = 20, 101


def test_more_objects_than_files_stay_open_are_hits_all_the_same(bucket: Bucket) -> None:
    with watched_proxy(bucket) as watched:
        watched.proxy.outrider.store._open_files = 1
        _warm(watched.proxy, ANY_KEYS)
        for key in ("a", "b", "two") * 2:
            answer, way = watched.ask("GET", f"/{NAME}/{key}")
            assert answer.body == OBJECTS[key]
            assert way is not False, key


def calls_per_request(watched: Watched, target: str, headers: Headers) -> float:
    """The number of Python functions entered for a hit, from its packet on.

    Other callbacks of the loop meanwhile do not count: the busier the machine, the more there are.
    """
    calls: Counter[str] = Counter()
    entry, of_each = Connection.data_received.__code__, []
    begun: list[int] = []

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call" and (begun or frame.f_code is entry):
            if frame.f_code is entry:
                begun.append(calls.total())
            calls[frame.f_code.co_qualname] += 1
        elif event == "return" and frame.f_code is entry and begun:
            of_each.append(calls.total() - begun.pop())

    async def watch(how: Any) -> None:
        sys.setprofile(how)

    number = 100
    watched.proxy.outrider.server.fast_path.__dict__.pop("answer", None)  # the spy's own calls
    with watched.connect() as connection:
        watched.proxy.on_loop(lambda: watch(note))
        for _ in range(number):
            assert len(connection.ask("GET", target, headers).body) == 65536
        watched.proxy.on_loop(lambda: watch(None))
    print(f"{median(of_each):.0f} calls a hit:", calls.most_common(40))
    assert len(of_each) >= number
    return median(of_each)


def test_a_hit_takes_few_function_calls(bucket: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)  # a log line for each request costs extra, for those who enable it
    with watched_proxy(bucket) as watched:
        assert calls_per_request(watched, f"/{NAME}/a", (("range", "bytes=0-65535"),)) < CALLS_PER_HIT


def test_a_signed_hit_takes_few_function_calls_more(
    bucket: Bucket, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    clients = tmp_path / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, freshness="immutable", auth="sigv4", clients=clients) as proxy:
        watched, target = Watched(proxy), f"/{NAME}/a"
        headers = signed(READER, "GET", target, (("range", "bytes=0-65535"),))
        for _ in range(2):
            watched.ask("GET", target, headers)
            proxy.settle()
        assert calls_per_request(watched, target, headers) < CALLS_PER_SIGNED_HIT


def test_no_byte_of_a_hit_is_copied_by_python(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    by_sendfile: list[int] = []
    by_python: list[int] = []
    read_into: list[memoryview] = []
    in_one_call: list[memoryview] = []
    sendfile, preadv, send_now, send_parts = os.sendfile, os.preadv, SocketSender.send_now, SocketSender.send_parts_now

    def counted_sendfile(*args: Any) -> int:
        by_sendfile.append(sendfile(*args))
        return by_sendfile[-1]

    def counted_preadv(fd: int, memory: Any, *rest: Any) -> int:
        read_into.extend(one for one in memory if len(one) > 1)  # one byte: the check whether the page is in memory
        return preadv(fd, memory, *rest)

    def counted_send(self: SocketSender, data: Any, *, more: bool = False) -> int:
        by_python.append(len(data))
        return send_now(self, data, more=more)

    def counted_parts(self: SocketSender, head: Any, body: Any) -> int:
        by_python.append(len(head))
        in_one_call.append(body)
        return send_parts(self, head, body)

    monkeypatch.setattr(os, "sendfile", counted_sendfile)
    monkeypatch.setattr(os, "preadv", counted_preadv)
    monkeypatch.setattr(SocketSender, "send_now", counted_send)
    monkeypatch.setattr(SocketSender, "send_parts_now", counted_parts)
    answer, seen = watched.ask("GET", f"/{NAME}/a", (("range", "bytes=0-65536"),))
    assert (answer.body, seen) == (OBJECTS["a"][:65537], True)
    assert (by_sendfile, read_into, in_one_call) == ([65537], [], [])
    # The kernel copies a small range that begins within a page, in and out of one buffer that is reused.
    for _ in range(2):
        answer, seen = watched.ask("GET", f"/{NAME}/a", (("range", "bytes=1-32768"),))
        assert (answer.body, seen) == (OBJECTS["a"][1:32769], True)
    assert by_sendfile == [65537]
    assert [len(view) for view in in_one_call] == [32768, 32768]
    assert len({id(view.obj) for view in (*read_into, *in_one_call)}) == 1
    assert len(by_python) == 3
    assert sum(by_python) < 3 * 1024, "the heads"


@pytest.mark.parametrize(
    ("first", "last", "waits"), [(4096, 4096 + 131071, True), (4096, 4096 + 131072, False), (1, 65536, False)]
)
def test_a_head_is_sent_together_with_a_body_that_fits_beside_it(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, first: int, last: int, waits: bool
) -> None:
    more_flags: list[bool] = []
    send_now = SocketSender.send_now

    def noted(self: SocketSender, data: Any, *, more: bool = False) -> int:
        more_flags.append(more)
        return send_now(self, data, more=more)

    monkeypatch.setattr(SocketSender, "send_now", noted)
    answer, seen = watched.ask("GET", f"/{NAME}/large", (("range", f"bytes={first}-{last}"),))
    assert (answer.body, seen) == (LARGE[first : last + 1], True)
    assert more_flags == [waits]
