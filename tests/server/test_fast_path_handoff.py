"""The handoff from the fast path to the slow path: facts found about a request are used once, for that request only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from aiohttp.http import HttpVersion10, HttpVersion11
from aiohttp.test_utils import make_mocked_request

from outrider.core.auth import verification
from outrider.core.s3 import operation as operations
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.http import access as access_module
from outrider.http.access import Principal
from outrider.http.s3.connection import Connection
from outrider.http.s3.exchange import Recognised
from tests.server.test_fast_path import CLIENTS, READER, signed
from tests.support.proxy import Proxy, s3_client
from tests.support.rawhttp import RawConnection, ask, request
from tests.support.watched import BLOCK, NAME, OBJECTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.bucket import Bucket

UNUSUAL = ("accept-language", "de")


@pytest.fixture(scope="module")
def strict(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    bucket.store(NAME, {key: OBJECTS[key] for key in ("a", "b", "two")})
    clients = tmp_path_factory.mktemp("handoff") / "clients.toml"
    clients.write_text(CLIENTS)
    with Proxy(bucket, block_size=str(BLOCK), auth="sigv4", clients=clients) as proxy:
        yield proxy


class Counted:
    """Counts how often the proxy has verified a signature, and classified a request."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.verified = self.classified = 0
        patch.setattr(access_module, "verify", self._counting("verified", verification.verify))
        patch.setattr(operations, "classify", self._counting("classified", operations.classify))

    def _counting(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **more: Any) -> Any:
            setattr(self, name, getattr(self, name) + 1)
            return real(*arguments, **more)

        return counting


def test_a_signed_cold_read_is_verified_and_classified_once(strict: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    strict.restart(crashed=False)
    presigning = s3_client("http://127.0.0.1", READER)
    url = urlsplit(presigning.generate_presigned_url("get_object", {"Bucket": NAME, "Key": "b"}))
    presigning.close()
    counted = Counted(monkeypatch)
    for number, (method, target, headers, status) in enumerate((
        ("GET", f"/{NAME}/a", (), 200), ("HEAD", f"/{NAME}/b", (), 200),
        ("GET", f"/{NAME}/two", (("range", "bytes=5-9"),), 206), ("GET", f"/{NAME}/two?x-id=GetObject", (), 200),
        ("GET", f"/{NAME}/a?acl", (), 200), ("GET", f"/{NAME}?list-type=2", (), 200), ("GET", f"/{NAME}/none", (), 404),
        ("GET", f"{url.path}?{url.query}", None, 200),
    )):  # fmt: skip
        sent = () if headers is None else signed(READER, method, target, headers)
        assert ask(strict.address, method, target, sent).status == status
        assert (counted.verified, counted.classified) == (number + 1, number + 1), target


def test_a_request_behind_a_signed_one_needs_a_signature_of_its_own(strict: Proxy) -> None:
    target = f"/{NAME}/missing"
    good = request("GET", target, signed(READER, "GET", target))
    for behind in (request("GET", target), request("GET", f"/{NAME}/a"), request("GET", target, [UNUSUAL])):
        with RawConnection(strict.address) as connection:
            connection.send(good + behind)
            assert [connection.read_answer().status for _ in range(2)] == [404, 403]
        with RawConnection(strict.address) as connection:
            connection.send(good)
            connection.send(behind)
            assert [connection.read_answer().status for _ in range(2)] == [404, 403]
        with RawConnection(strict.address) as connection:
            connection.send(good[:-2])
            connection.send(good[-2:] + behind)
            assert [connection.read_answer().status for _ in range(2)] == [404, 403]


def reader_of(proxy: Proxy) -> Principal:
    found = proxy.outrider.senders.access.owner(READER[0])
    assert found is not None
    return found


def _everything_of(reader: Principal, head: bytes) -> Recognised:
    return Recognised(head, reader, operations.classify("GET", f"/{NAME}/a", ()))


def test_facts_left_over_from_one_request_are_not_handed_over_with_the_next(strict: Proxy) -> None:
    reader = reader_of(strict)
    bad = request("GET", f"/{NAME}/a", [UNUSUAL])

    async def leave() -> None:
        (own,) = strict.outrider.server.connections
        assert isinstance(own, Connection)
        # With identical bytes: only facts found about these bytes at this moment count.
        own.recognised = _everything_of(reader, bytes(bytearray(bad)))

    for cut in (0, 20):
        with RawConnection(strict.address) as connection:
            assert connection.ask("GET", "/", [UNUSUAL]).status == 403
            strict.on_loop(leave)
            connection.send(bad[:cut])
            connection.send(bad[cut:])
            assert connection.read_answer().status == 403
        strict.settle()


def test_the_handler_ignores_facts_about_other_bytes(strict: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = reader_of(strict)
    received = Connection.data_received

    def leaves_another(self: Connection, data: bytes) -> None:
        received(self, data)
        self.recognised = _everything_of(reader, request("GET", f"/{NAME}/b"))

    monkeypatch.setattr(Connection, "data_received", leaves_another)
    assert ask(strict.address, "GET", f"/{NAME}/a", [UNUSUAL]).status == 403


def test_facts_count_for_the_identical_bytes_alone() -> None:
    who = Principal(None, None, UNSIGNED)
    raw = [(b"Host", b"h"), (b"X-Amz-Date", b"1")]

    def parsed(method: str = "GET", path: str = "/b/k?x=1", headers: Any = raw, version: Any = HttpVersion11) -> Any:
        made = make_mocked_request(method, path, version=version)
        made._message = made._message._replace(raw_headers=tuple(headers), path=path)
        return made

    known = _everything_of(who, b"GET /b/k?x=1 HTTP/1.1\r\nHost: h\r\nX-Amz-Date: 1\r\n\r\n")
    assert known.is_about(parsed())
    for other in (
        parsed(method="HEAD"), parsed(path="/b/k?x=2"), parsed(path="/b/k"), parsed(version=HttpVersion10),
        parsed(headers=raw[:1]), parsed(headers=[*raw, (b"a", b"b")]), parsed(headers=[raw[0], (b"X-Amz-Date", b"2")]),
        parsed(headers=[(b"host", b"h"), raw[1]]), parsed(headers=raw[::-1]),
    ):  # fmt: skip
        assert not known.is_about(other)
