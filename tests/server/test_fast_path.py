"""The fast path of the S3 port: it answers byte for byte as the slow path does, or hands the request over.

One connection may change from one path to the other at any request.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from outrider.http.s3.connection import Connection
from outrider.http.wire.sender import SocketSender
from tests.support.odd_origin import OddOrigin
from tests.support.proxy import Keys, Proxy, ServedProxy
from tests.support.rawhttp import Answer, ask, request
from tests.support.watched import BLOCK, LARGE, NAME, OBJECTS, Watched, watched_proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from outrider.core.model import Headers
    from tests.support.bucket import Bucket

OTHER = "fastpath-other"
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
    bucket.store(NAME, OBJECTS, ContentType="application/x-tar", Metadata={"note": "kept"})
    bucket.store(OTHER, {"a": b"another's"})


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
    with Proxy(bucket, block_size=str(BLOCK), freshness="immutable", **quiet) as proxy:
        _warm(proxy, ("anybody", "anything"))
        yield Watched(proxy)


@pytest.fixture(scope="module")
def strict(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    clients = tmp_path_factory.mktemp("watched") / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, block_size=str(BLOCK), freshness="immutable", auth="sigv4", clients=clients) as proxy:
        _warm(proxy, READER)
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
    "a signature in the query": ("GET", "a?X-Amz-Algorithm=x&X-Amz-Credential=y&X-Amz-Signature=z", (), True),
    "and another call": ("GET", "a?X-Amz-Algorithm=x&X-Amz-Credential=y&X-Amz-Signature=z&acl", (), False),
}  # fmt: skip


def _with_etag(watched: Watched, key: str, headers: Headers, keys: Keys | None) -> Headers:
    etag = watched.proxy.client(keys or ("a", "b")).head_object(Bucket=NAME, Key=key)["ETag"]
    meant = {ETAG: etag, ETAG.lower(): etag.strip('"')}
    return tuple((name, meant.get(value, value)) for name, value in headers)


# With signatures checked, these forms are refused.
IN_LOOPBACK_MODE_ALONE = {"a nonsensical payload", "an empty query", "a signature in the query", "and another call"}


@pytest.mark.parametrize("keys", [None, READER], ids=["loopback", "sigv4"])
def test_both_paths_answer_the_same(request: pytest.FixtureRequest, keys: Keys | None) -> None:
    watched: Watched = request.getfixturevalue("strict" if keys else "watched")
    for form, (method, name, given, by) in FORMS.items():
        if keys and form in IN_LOOPBACK_MODE_ALONE:
            continue
        target = f"/{NAME}/{name}"
        headers = _with_etag(watched, "folder/" if "folder" in name else "a", given, keys)
        if keys:
            headers = signed(keys, method, target, headers)
        fast, seen = watched.ask(method, target, headers)
        slow, way = watched.ask(method, target, (*headers, UNUSUAL))
        assert (seen, way, fast.status == 403) == (by, False, False), form
        assert same(fast) == same(slow), form
        # By now the fast path knows the form, and may take its shortest way.
        again, seen = watched.ask(method, target, headers)
        assert (seen, same(again)) == (by, same(fast)), form


def test_a_range_of_a_folder_that_has_bytes_is_left_to_the_origin(bucket: Bucket) -> None:
    """Stores differ in its meaning. The bucket of the tests keeps no such object."""
    with OddOrigin().on_thread() as origin, Proxy(bucket, origin.endpoint, freshness="immutable") as proxy:
        origin.put("odd", "folder/", b"0123456789")
        for _ in range(3):
            ask(proxy.address, "GET", "/odd/folder/")
            proxy.settle()
        for _ in range(2):
            before = origin.count("GET")
            answer = ask(proxy.address, "GET", "/odd/folder/", [("range", "bytes=0-3")])
            assert (answer.body, origin.count("GET")) == (b"0123", before + 1)


def test_the_shortest_way_knows_whose_page_a_browser_shows(watched: Watched) -> None:
    for _ in range(2):
        head = f"GET /{NAME}/b HTTP/1.1\r\nhost: elsewhere.example\r\n\r\n"
        with watched.connect() as connection:
            connection.send(head.encode())
            assert connection.read_answer().status == 403
        assert watched.ask("GET", f"/{NAME}/b")[0].body == OBJECTS["b"]


def signed(keys: Keys, method: str, target: str, headers: Headers = ()) -> Headers:
    """The headers of a request that botocore signs for `Host: 127.0.0.1`, which `rawhttp` sends."""
    wanted = AWSRequest(method, f"http://127.0.0.1{target}", dict(headers))
    S3SigV4Auth(Credentials(*keys), "s3", "us-east-1").add_auth(wanted)
    return tuple((name, value) for name, value in wanted.headers.items() if name.lower() != "host")


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


@pytest.mark.parametrize("cuts", [(), (9, 30)])
def test_a_request_that_comes_before_the_last_ones_task_has_ended_is_answered_in_order(
    watched: Watched, cuts: tuple[int, ...]
) -> None:
    with watched.connect() as client:
        connection = watched.connection_of(client)
        watched.proxy.settle()

        async def at_once() -> None:
            answered = watched.proxy.metric("outrider_requests_total")
            # Only the bucket can answer this: a request answered without a wait would leave no gap (Python 3.12 starts
            # tasks eagerly).
            connection.data_received(request("GET", f"/{NAME}/a?acl"))
            while watched.proxy.metric("outrider_requests_total") == answered:
                await asyncio.sleep(0)
            assert connection.has_work, "the task of the last request has not ended yet"
            data = request("GET", f"/{NAME}/b")
            for first, last in pairwise((0, *cuts, len(data))):
                connection.data_received(data[first:last])

        watched.proxy.on_loop(at_once)
        acl, body = (client.read_answer().body for _ in range(2))
        assert b"AccessControlPolicy" in acl
        assert body == OBJECTS["b"]
    if not cuts:
        assert watched.seen == [False, True]


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


def test_the_beginning_of_a_request_waits_for_its_own_rest(watched: Watched) -> None:
    first = request("GET", f"/{NAME}/a")
    for left in (b"G", b"GE", b"GET", b"GET /b"):
        with watched.connect() as connection:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


def test_a_request_in_two_packets_is_answered_once(watched: Watched) -> None:
    data = request("GET", f"/{NAME}/b")
    for cut in (1, 5, 30, -4, -2, -1):
        with watched.connect() as connection:
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.send(data[:cut])
            watched.proxy.settle()
            connection.send(data[cut:])
            assert connection.read_answer().body == OBJECTS["b"], cut
            assert watched.next(connection, "GET", f"/{NAME}/a").body == OBJECTS["a"], cut


def test_requests_in_one_packet_and_while_a_reply_is_on_its_way_are_answered_in_order(watched: Watched) -> None:
    def get(key: str) -> bytes:
        return request("GET", f"/{NAME}/{key}")

    with watched.connect() as connection:
        connection.send(get("a") + get("b") + get("a"))
        assert [connection.read_answer().body for _ in range(3)] == [OBJECTS[key] for key in "aba"]
        watched.wait(connection)
        watched.results.clear()
        connection.send(get("large"))
        body = connection.read_head()
        assert watched.seen == ["begun"]
        connection.send(get("b"))
        connection.send(get("a"))
        assert body.read() == LARGE
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


def test_a_connection_with_hits_alone_does_not_count_as_idle(watched: Watched) -> None:
    with watched.connect() as client:
        connection = watched.connection_of(client)
        connection._next_keepalive_close_time = 0.0  # aiohttp's: due long ago
        watched.next(client, "GET", f"/{NAME}/a")
        assert watched.seen == [True]

        async def look() -> None:
            connection._process_keepalive()

        watched.proxy.on_loop(look)
        assert watched.next(client, "GET", f"/{NAME}/a").status == 200
        assert connection._next_keepalive_close_time > 0.0


# -- counters and logs -----------------------------------------------------------------------------------------------


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
        with watched.connect() as client:
            connection = watched.connection_of(client)

            async def asked_by_a_ghost(connection: Connection = connection, method: str = method) -> None:
                connection.wire.lost()
                connection.data_received(request(method, f"/{NAME}/a"))

            watched.proxy.on_loop(asked_by_a_ghost)
            assert client.is_closed_by_peer()
        watched.proxy.settle()
        line = vars(caplog.records[-1])
        assert (line["op"], line["method"], line["bytes"], line["cut"]) == (method.lower(), method, 0, "client left")


def test_a_begun_reply_is_a_request_under_way_from_its_first_byte(watched: Watched) -> None:
    with watched.connect() as client:
        connection = watched.connection_of(client)

        async def asked_and_closed() -> None:
            connection.data_received(request("GET", f"/{NAME}/large"))
            connection.close()

        watched.proxy.on_loop(asked_and_closed)
        assert client.read_answer().body == LARGE
    assert watched.seen == ["begun"]


# -- cost ------------------------------------------------------------------------------------------------------------


# A 64 KiB range, counted by this test, and a few to spare. `test_code_per_request` has the ceiling of an unsigned hit.
CALLS_PER_SIGNED_HIT = 98


def calls_per_request(watched: Watched, target: str, headers: Headers) -> int:
    """The number of Python functions entered for a hit, from its packet on.

    Other callbacks of the loop meanwhile do not count: the busier the machine, the more there are. The hit with the
    fewest calls counts: on a slow machine a clock ticks amid most of them.
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
    print(f"{min(of_each)} calls a hit:", calls.most_common(40))
    assert len(of_each) >= number
    return min(of_each)


def test_a_signed_hit_takes_few_function_calls(
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


def test_no_byte_of_a_hit_is_copied_and_a_head_goes_with_a_body_that_fits(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_sendfile: list[int] = []
    by_python: list[int] = []
    waits: list[bool] = []
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
        waits.append(more)
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
    assert watched.ask("GET", f"/{NAME}/large")[0].body == LARGE
    assert sum(by_sendfile) == 65537 + len(LARGE)
    by_sendfile.clear()
    # The kernel copies a small range that begins within a page, in and out of one buffer that is reused.
    for _ in range(2):
        answer, seen = watched.ask("GET", f"/{NAME}/a", (("range", "bytes=1-32768"),))
        assert (answer.body, seen) == (OBJECTS["a"][1:32769], True)
    assert by_sendfile == []
    assert [len(view) for view in in_one_call] == [32768, 32768]
    assert len({id(view.obj) for view in (*read_into, *in_one_call)}) == 1
    assert len(by_python) == 4
    assert sum(by_python) < 4 * 1024, "the heads"
    for first, last, with_body in ((4096, 4096 + 131071, True), (4096, 4096 + 131072, False), (1, 65536, False)):
        waits.clear()
        answer, seen = watched.ask("GET", f"/{NAME}/large", (("range", f"bytes={first}-{last}"),))
        assert (answer.body, seen, waits) == (LARGE[first : last + 1], True, [with_body])
