"""A body that breaks off never looks whole, even where its length is marked by the end of the connection alone."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from typing import TYPE_CHECKING, NoReturn

import pytest

from outrider.engine.read.body import BodyRead
from outrider.engine.read.body_pieces import EarlyPiece, FilePiece
from outrider.engine.read.object_read import ObjectReads
from tests.support.fakes import ramp
from tests.support.proxy import Proxy
from tests.support.rawhttp import RawConnection, ask, request
from tests.support.trials import Trials, rounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from outrider.core.model import Extent, ObjectVersion
    from outrider.engine.read.body_pieces import Piece
    from tests.support.bucket import Bucket

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/xml\r\n"
PIECE = b"<Contents>" * 1000
ENDINGS = {
    "in chunks": b"transfer-encoding: chunked\r\n\r\n%x\r\n%s\r\n" % (len(PIECE), PIECE),
    "with a length": b"content-length: %d\r\n\r\n%s" % (2 * len(PIECE), PIECE),
}


class BrokenOrigin:
    """An origin that answers each request with `answer`, and breaks off."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                received = b""
                while b"\r\n\r\n" not in received:
                    received += client.recv(65536)
                client.sendall(self._answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)


@pytest.fixture(params=ENDINGS, ids=list(ENDINGS))
def proxy(bucket: Bucket, request: pytest.FixtureRequest) -> Iterator[Proxy]:
    origin = BrokenOrigin(HEAD + ENDINGS[request.param])
    with Proxy(bucket, origin.endpoint) as running:
        yield running
    origin.close()


@pytest.mark.parametrize("version", ["HTTP/1.0", "HTTP/1.1"])
def test_an_origin_that_breaks_off_is_a_broken_connection(proxy: Proxy, version: str, trials: Trials) -> None:
    for _ in range(rounds(3)):
        with RawConnection(proxy.address) as connection:
            connection.send(request("GET", "/any?list-type=2", version=version))
            answer = connection.read_head()
            assert answer.status == 200
            with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                answer.read()
            trials.record("load", f"a listing that breaks off, {version}", "a broken connection")


@pytest.mark.parametrize("still_there", [True, False], ids=["in the bucket too", "nowhere else"])
def test_a_block_file_that_is_cut_while_it_is_sent_gives_no_wrong_byte(
    bucket: Bucket, still_there: bool, trials: Trials
) -> None:
    """Only the proxy may write to that file. A body that loses its bytes gets them from the bucket, or breaks
    visibly."""
    data = ramp(24 * 1024 * 1024)
    bucket.make_bucket("cut")
    client = bucket.client()
    client.put_object(Bucket="cut", Key="large", Body=data)
    with Proxy(bucket, freshness="immutable", block_size="32MiB") as proxy:
        assert ask(proxy.address, "GET", "/cut/large").body == data
        proxy.settle()
        with contextlib.ExitStack() as stack:
            heads = []
            for reader in [stack.enter_context(RawConnection(proxy.address)) for _ in range(2)]:
                reader.send(request("GET", "/cut/large"))
                heads.append(stack.enter_context(reader.read_head()))
                assert heads[-1].read(1000) == data[:1000]
            if not still_there:
                client.delete_object(Bucket="cut", Key="large")
            (block,) = proxy.cache_dir.glob("v2/*/*")
            with block.open("r+b") as file:
                file.truncate(1024 * 1024)
            for head in heads:
                if still_there:
                    read_on(head, data[1000:])
                else:
                    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                        read_on(head, data[1000:])
                saw = "the rest from the bucket" if still_there else "a broken connection"
                trials.record("load", "a block file that is cut under its readers", saw)
        proxy.settle()

        async def leases() -> int:
            return proxy.outrider.store.leases()

        assert proxy.on_loop(leases) == 0
    client.close()


def read_on(head: http.client.HTTPResponse, expected: bytes) -> None:
    """Check all bytes. A body that ends early raises an error, as `read()` without a number does."""
    position = 0
    while piece := head.read(65536):
        assert expected[position : position + len(piece)] == piece
        position += len(piece)
    if head.length:
        raise http.client.IncompleteRead(b"", head.length)


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "hits"])
def test_a_body_that_ends_early_without_a_word_is_a_broken_connection(
    bucket: Bucket, cold: bool, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a bug of ours leads there. Without the guard the client would take the next reply for the rest of this
    body."""
    data = ramp(24 * 1024 * 1024)
    bucket.make_bucket("cut")
    client = bucket.client()
    client.put_object(Bucket="cut", Key="mistaken", Body=data)
    client.close()
    whole = BodyRead.__anext__
    left: dict[BodyRead, int] = {}

    async def early(self: BodyRead) -> Piece:
        its = left.setdefault(self, self._extent.length - 100)
        if not its:
            raise StopAsyncIteration
        piece = await whole(self)
        if isinstance(piece, FilePiece):
            piece.count = min(piece.count, its)
            left[self] = its - piece.count
            return piece
        raw = piece.data if isinstance(piece, EarlyPiece) else piece
        left[self] = its - min(its, len(raw))
        return bytes(raw[:its])

    with Proxy(bucket, freshness="immutable") as proxy:
        if not cold:
            assert ask(proxy.address, "GET", "/cut/mistaken").body == data
            proxy.settle()
        monkeypatch.setattr(BodyRead, "__anext__", early)
        with contextlib.ExitStack() as stack:
            readers = [stack.enter_context(RawConnection(proxy.address)) for _ in range(2)]
            for reader in readers:
                reader.send(request("GET", "/cut/mistaken"))
            for reader in readers:
                with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                    read_on(stack.enter_context(reader.read_head()), data)
        trials.record("load", "a body that ends early by our mistake", "a broken connection", times=2)


def test_a_reply_whose_rest_we_fail_to_begin_is_a_broken_connection(
    bucket: Bucket, trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As above. The client must not take an error reply for the rest of the body."""
    data = ramp(24 * 1024 * 1024)
    bucket.make_bucket("cut")
    client = bucket.client()
    client.put_object(Bucket="cut", Key="unresumed", Body=data)
    client.close()

    def mistaken(self: ObjectReads, version: ObjectVersion, extent: Extent, since: int) -> NoReturn:
        raise LookupError("our mistake")

    with Proxy(bucket, freshness="immutable") as proxy:
        assert ask(proxy.address, "GET", "/cut/unresumed").body == data
        proxy.settle()
        counted = proxy.metric("outrider_requests_total", op="get")
        with monkeypatch.context() as changed, contextlib.ExitStack() as stack:
            changed.setattr(ObjectReads, "resume", mistaken)
            readers = [stack.enter_context(RawConnection(proxy.address)) for _ in range(2)]
            for reader in readers:
                reader.send(request("GET", "/cut/unresumed"))
            for reader in readers:
                with pytest.raises((http.client.IncompleteRead, ConnectionError)):
                    read_on(stack.enter_context(reader.read_head()), data)
            # Each of them counts as a request that has ended, or this would not return.
            proxy.settle()
        assert proxy.metric("outrider_requests_total", op="bad") == 0
        assert proxy.metric("outrider_requests_total", op="get") == counted + len(readers)
        trials.record("load", "a reply that fails halfway by our mistake", "a broken connection", times=2)
