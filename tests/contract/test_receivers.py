"""Receivers, real processes: what becomes of a body, and of its readers, when one dies, stops, or is refused."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import subprocess
import threading
import time
from contextlib import AsyncExitStack, asynccontextmanager, closing, suppress
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import trustme

from outrider.adapters.cluster.peer_tls import PeerTls
from outrider.adapters.origin import receivers as module
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.adapters.origin.receivers import ReceiverConnection, Receivers, most_receivers
from outrider.core.cluster.peer_messages import Confirmed, PeerRead, ReadClass
from outrider.core.errors import Broke, OriginBroke, StoreUnavailable
from outrider.core.model import Extent, ObjectRef
from outrider.metrics import Metrics
from outrider.ports import OriginReply, OriginRequest
from tests.contract.http_origins import Scripted, listening, opened
from tests.contract.test_origin import Keys, Placed
from tests.support.fake_peers import FakeMember, Side, hello_of, peer_wire
from tests.support.fakes import RAMP, reply_to
from tests.support.faulty_disk import HangingDisk, can_hang
from tests.support.member_sources import following
from tests.support.proxy import Proxy, ServedProxy
from tests.support.rawhttp import RawConnection, request
from tests.support.tls import TlsFront, certify
from tests.support.trials import rounds
from tests.unit.adapters.cluster.test_peer_tls import write as write_identity

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from tests.support.bucket import Bucket
    from tests.support.simulator import Simulator
    from tests.support.tls import Certificate

NAME = "receivers"
REF = ObjectRef(NAME, "k")
MIB = 1024 * 1024
DATA = RAMP[:1000] * 6000
SMALL = RAMP[:200_000]
REPLY = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: %d\r\n\r\n' % len(SMALL) + SMALL


@pytest.fixture(autouse=True)
def trusted(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate.authority))


@pytest.fixture
def front(simulator: Simulator, certificate: Certificate) -> Iterator[TlsFront]:
    with TlsFront(("127.0.0.1", simulator.port), certificate) as running:
        yield running


@pytest.fixture
def proxy(bucket: Bucket, front: TlsFront) -> Iterator[Proxy]:
    put(bucket)
    with Proxy(bucket, origin=front.endpoint, receivers=2, block_size="1MiB", drain_s=0) as running:
        yield running


def put(bucket: Bucket) -> None:
    bucket.make_bucket(NAME)
    client = bucket.client()
    for key in ("before", "k"):
        client.put_object(Bucket=NAME, Key=key, Body=DATA)
    client.close()


def receivers_of(pid: int) -> list[int]:
    """The receivers among the children of a process, by what they run. Threads and children end meanwhile."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            for child in (task / "children").read_text().split():
                with suppress(OSError):
                    if b"receiver.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                        found.append(int(child))
    return found


def read(proxy: Proxy, key: str = "k") -> bytes:
    with RawConnection(proxy.address) as connection:
        reply = connection.ask("GET", f"/{NAME}/{key}")
        assert reply.status == 200
        return reply.body


@asynccontextmanager
async def behind(
    scripted: Scripted, certificate: Certificate, metrics: Metrics | None = None, *, piece_bytes: int = 65536
) -> AsyncIterator[tuple[TlsFront, HttpOrigin]]:
    """An origin that `scripted` is, over TLS and by one receiver."""
    async with listening(scripted.serve) as port:
        with TlsFront(("127.0.0.1", port), certificate, piece_bytes=piece_bytes) as front:
            async with opened(front.endpoint, metrics=metrics, receivers=1) as origin:
                yield front, origin


class GivenUp(Exception):
    pass


async def received_into(reply: OriginReply, sink: Placed) -> int:
    counts: list[int] = []
    await reply.receive(len(SMALL), sink, counts.append)
    return sum(counts)


async def rest_of(reply: OriginReply) -> bytes:
    got = b""
    while piece := await reply.some():
        got += piece
    return got


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_large_bodies_come_by_receivers_and_are_served_from_their_files(proxy: Proxy, front: TlsFront) -> None:
    assert read(proxy) == DATA
    proxy.settle()
    pids = receivers_of(os.getpid())
    assert len(pids) == proxy.metric("outrider_receivers") in (1, 2)
    asked_before = proxy.metric("outrider_origin_requests_total", method="GET")
    assert read(proxy) == DATA
    assert proxy.metric("outrider_origin_requests_total", method="GET") == asked_before
    # The block checksums are right: a start verifies them at the first read.
    proxy.restart()
    assert read(proxy) == DATA
    assert proxy.metric("outrider_bad_blocks_total") == 0
    for pid in pids:
        while not is_gone(pid):
            time.sleep(0.01)


def test_a_block_whose_tail_comes_first_has_the_checksum_of_the_whole(bucket: Bucket, front: TlsFront) -> None:
    """The receiver of the tail cannot hash it: the head is not there yet."""
    put(bucket)
    with Proxy(bucket, origin=front.endpoint, receivers=1, block_size="4MiB") as proxy:
        assert read(proxy, "before") == DATA
        with RawConnection(proxy.address) as connection:
            assert connection.ask("HEAD", f"/{NAME}/k").status == 200
            reply = connection.ask("GET", f"/{NAME}/k", (("range", "bytes=1500000-"),))
        assert reply.body == DATA[1_500_000:]
        proxy.settle()
        proxy.restart()
        before = proxy.metric("outrider_origin_requests_total", method="GET")
        assert read(proxy) == DATA
        assert proxy.metric("outrider_origin_requests_total", method="GET") == before
        assert proxy.metric("outrider_bad_blocks_total") == 0


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_receiver_that_dies_or_stops_costs_no_reader_an_error(
    number: signal.Signals, proxy: Proxy, front: TlsFront, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.2)
    assert read(proxy, "before") == DATA
    front.hold(300_000)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read(proxy)))
    reader.start()
    assert front.held.wait(60)
    pids = receivers_of(os.getpid())
    assert pids
    for pid in pids:
        os.kill(pid, number)
    front.release()
    reader.join(60)
    assert got == [DATA]
    assert proxy.metric("outrider_receivers_lost_total") >= 1
    for pid in pids:
        while not is_gone(pid):
            time.sleep(0.01)
    proxy.settle()
    assert [path.name for path in (proxy.cache_dir / "tmp").iterdir()] == ["descriptors"]


@pytest.mark.one_python
def test_no_receiver_outlives_a_proxy_that_is_killed(bucket: Bucket, front: TlsFront, tmp_path: Path) -> None:
    put(bucket)
    served = ServedProxy(bucket, tmp_path, front.endpoint, receivers="2", block_size="1MiB")
    served.environment["AWS_CA_BUNDLE"] = os.environ["AWS_CA_BUNDLE"]
    with served:
        with RawConnection(served.address) as connection:
            assert connection.ask("GET", f"/{NAME}/k").body == DATA
        pids = receivers_of(served.pid)
        assert pids
        environs = [Path(f"/proc/{pid}/environ").read_bytes() for pid in pids]
        assert not any(b"AWS" in environ or b"OUTRIDER" in environ for environ in environs)
        os.kill(served.pid, signal.SIGKILL)
        for pid in pids:
            while not is_gone(pid):
                time.sleep(0.01)


async def test_sessions_of_tls_are_taken_up_again(front: TlsFront, bucket: Bucket) -> None:
    put(bucket)
    async with opened(front.endpoint, Keys(bucket), receivers=1) as origin:
        for _ in range(3):
            async with reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)) as reply:
                assert reply.status == 200
                assert await reply.some()
    assert front.resumed == [False, True, True]


async def test_a_server_that_is_not_trusted_is_an_error_that_says_so(
    front: TlsFront, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certify(tmp_path).authority))
    async with opened(front.endpoint, receivers=1) as origin:
        with pytest.raises(OriginBroke, match="certificate verify failed") as broke:
            async with reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)):
                pass
        assert (broke.value.cause, broke.value.lasting) == (Broke.CONNECT, True)


async def test_a_body_until_the_end_is_not_whole_when_its_receiver_dies(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing but the end of the connection says that it is whole, and a process that dies ends it, too."""
    scripted = Scripted([b'HTTP/1.0 200 OK\r\nETag: "e"\r\n\r\n' + SMALL], closes=True)
    async with behind(scripted, certificate, piece_bytes=8192) as (front, origin):
        front.hold(20_000)
        async with reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)) as reply:
            got = b""
            while not front.held.is_set():
                got += await reply.some()
            for pid in receivers_of(os.getpid()):
                os.kill(pid, signal.SIGKILL)
            with pytest.raises(OriginBroke):
                await rest_of(reply)
        assert SMALL.startswith(got)
        front.release()


async def test_a_body_is_whole_however_its_server_ends_the_connection(certificate: Certificate) -> None:
    """It ends right after the last bytes, and without TLS's own end."""
    last = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nConnection: close\r\nContent-Length: 10000\r\n\r\n' + SMALL[:10_000]
    scripted = Scripted([last] * 8, closes=True)
    async with behind(scripted, certificate) as (front, origin):
        front.is_ragged = True
        for _ in range(8):
            async with reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)) as reply:
                assert await rest_of(reply) == SMALL[:10_000]


@pytest.mark.parametrize("stray", [b"\n", b"\r\n"])
async def test_bytes_between_replies_shift_no_file(
    stray: bytes, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They come once the line has been looked at before it is used again."""
    monkeypatch.setattr(ReceiverConnection, "is_open", True)
    scripted = Scripted([REPLY + stray, REPLY])
    async with behind(scripted, certificate) as (front, origin):
        for _ in range(2):
            whole = Placed()
            async with reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)) as reply:
                assert await received_into(reply, whole) == len(SMALL)
            assert bytes(whole.data) == SMALL
        assert len(front.resumed) == 1


@pytest.mark.parametrize("status", [200, 403])
async def test_a_forward_proxy_on_the_way_is_asked_for_a_tunnel_first(
    status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the bucket's host need not be known here."""
    made = certify(tmp_path, "bucket.test")
    requests: list[bytes] = []

    async def tunnel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        requests.append(head.split(b"\r\n")[0])
        writer.write(b"HTTP/1.1 %d what it says\r\n\r\n" % status)
        if status == 200:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", secure.port)
            with closing(far_writer):
                await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)
        writer.close()

    monkeypatch.setenv("AWS_CA_BUNDLE", str(made.authority))
    async with AsyncExitStack() as stack:
        way = await stack.enter_async_context(listening(tunnel))
        secure, _ = await stack.enter_async_context(behind(Scripted([REPLY]), made))
        monkeypatch.setenv("HTTPS_PROXY", f"http://127.0.0.1:{way}")
        origin = await stack.enter_async_context(opened("https://bucket.test", receivers=1))
        request, whole = OriginRequest("GET", NAME, "k", bulk=True), Placed()
        if status == 200:
            async with reply_to(origin, request) as reply:
                assert await received_into(reply, whole) == len(SMALL)
            assert bytes(whole.data) == SMALL
        else:
            with pytest.raises(OriginBroke, match="its proxy answers 403"):
                async with reply_to(origin, request):
                    pass
        assert requests == [b"CONNECT bucket.test:443 HTTP/1.1"]


async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    with closing(sink):
        while data := await source.read(65536):
            sink.write(data)


async def test_a_disk_that_takes_no_more_ends_its_own_line_alone(certificate: Certificate) -> None:
    scripted = Scripted([REPLY, REPLY])
    async with behind(scripted, certificate, metrics := Metrics()) as (_, origin):
        async with reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)) as reply:
            with pytest.raises(StoreUnavailable):
                await received_into(reply, Placed(fail_after=1000))
        whole = Placed()
        async with reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)) as reply:
            assert await received_into(reply, whole) == len(SMALL)
        assert metrics.value("outrider_receivers_lost_total") == 0


def test_a_slow_disk_makes_no_receiver_look_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here stands what takes its time: the answer comes late, and it is not stopped."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with subprocess.Popen(["sleep", "60"]) as process:
        one = module._Receiver(process, control, module.ReceiverTrust())
        theirs.send(b"1")
        assert one.is_alive()
        one.ping()
        assert (one.is_pinged, one.is_stopped()) == (True, False)
        os.kill(process.pid, signal.SIGSTOP)
        while not one.is_stopped():
            time.sleep(0.001)
        one.end()
    theirs.close()


async def test_receivers_that_are_idle_end(certificate: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    async with behind(Scripted([REPLY]), certificate, metrics := Metrics()) as (_, origin):
        async with reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)) as reply:
            assert await rest_of(reply) == SMALL
        (pid,) = receivers_of(os.getpid())
        monkeypatch.setattr(module, "_IDLE_S", 0.0)
        async with asyncio.timeout(60):
            while metrics.value("outrider_receivers") or not is_gone(pid):
                await asyncio.sleep(0.01)


async def test_where_none_can_be_started_the_event_loop_receives(
    certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fails)
    async with (
        behind(Scripted([REPLY]), certificate) as (_, origin),
        reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)) as reply,
    ):
        assert not reply.in_thread
        assert await rest_of(reply) == SMALL


async def test_a_body_given_up_amid_a_file_leaves_the_file_alone(certificate: Certificate) -> None:
    async with behind(Scripted([REPLY, REPLY]), certificate) as (front, origin):
        front.hold(130_000)
        sink = Placed()
        async with reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)) as reply:

            def give_up(_: int) -> None:
                if front.held.is_set():
                    raise GivenUp

            with suppress(GivenUp):
                await reply.receive(len(SMALL), sink, give_up)
        assert sink.is_over
        length = os.fstat(sink.file).st_size
        front.release()
        # Another body by the same receiver: the one before has been left.
        whole = Placed()
        async with reply_to(origin, OriginRequest("GET", NAME, "k", bulk=True)) as reply:
            await received_into(reply, whole)
        assert bytes(whole.data) == SMALL
        assert os.fstat(sink.file).st_size == length


async def test_a_member_s_bytes_come_by_a_receiver_that_shows_who_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And by another one, once its certificate and the authority are others."""
    monkeypatch.setattr(module, "_IDLE_S", inf)
    monkeypatch.setattr(module, "_LOOK_S", 0.01)
    before, after = trustme.CA(), trustme.CA()
    owner, edge = PeerTls(*write_identity(tmp_path / "1", before)), PeerTls(*write_identity(tmp_path / "2", before))
    service, metrics = FakeMember(hello_of("owner")), Metrics()
    version = service.put(REF, DATA)
    question = PeerRead(REF, Extent(0, len(DATA)), 0, Confirmed(version, 0.0), ReadClass.NEXT)
    receivers = Receivers(1, metrics, lambda: edge.trust)
    sides = Side("owner", tls=owner.server), Side("edge", tls=edge.client)
    async with peer_wire(service, owner=sides[0], edge=sides[1], receivers=receivers) as wire:
        pids: list[int] = []
        for authority in (before, after):
            if authority is after:
                async with following(owner.follow) as once, following(edge.follow) as once_more:
                    for folder in ("1", "2"):
                        write_identity(tmp_path / folder, after)
                    await once()
                    await once_more()
                # Its line stays open meanwhile, as the one to a bucket does.
                wire.client._client.bulk.idle.close()  # type: ignore[union-attr]
                async with asyncio.timeout(60):
                    while receivers.pids:
                        await asyncio.sleep(0.01)
            sink = Placed()
            async with wire.client.read(wire.member, question) as reply:
                assert reply.in_thread
                counts: list[int] = []
                await reply.receive(len(DATA), sink, counts.append)
                assert sum(counts) == len(DATA)
            assert bytes(sink.data) == DATA
            assert sink.count_written > len(DATA) // 2
            pids += receivers.pids
    assert len(set(pids)) == 2
    assert metrics.value("outrider_receivers") == 0


@pytest.mark.one_python
def test_ten_thousand_blocks_come_whole_over_a_line_that_breaks(bucket: Bucket, front: TlsFront) -> None:
    """10,000 in `make soak`."""
    bucket.make_bucket(NAME)
    client, chance = bucket.client(), random.Random(7)
    front.cut_after = lambda: chance.randrange(100_000, 2 * MIB)
    with Proxy(bucket, origin=front.endpoint, receivers=2, block_size="64KiB", prefetch="off") as proxy:
        for number in range(rounds(2)):
            data = chance.randbytes(8 * MIB)
            client.put_object(Bucket=NAME, Key=str(number), Body=data)
            assert read(proxy, str(number)) == data
            proxy.settle()
            before = proxy.metric("outrider_origin_requests_total", method="GET")
            assert read(proxy, str(number)) == data
            assert proxy.metric("outrider_origin_requests_total", method="GET") == before
            client.delete_object(Bucket=NAME, Key=str(number))
        assert proxy.metric("outrider_receivers") > 0
        assert proxy.metric("outrider_bad_blocks_total") == 0
    assert len(front.resumed) > 8
    client.close()


@pytest.mark.one_python
def test_a_disk_that_hangs_behind_a_receiver_costs_no_reader_an_error(
    bucket: Bucket, front: TlsFront, tmp_path: Path
) -> None:
    if not can_hang():
        pytest.skip("no root, no FUSE, or no bindfs")
    put(bucket)
    with HangingDisk(tmp_path / "disk") as disk:
        cache = str(tmp_path / "disk" / "cache")
        options = {"receivers": "1", "block_size": "1MiB", "prefetch": "off"}
        served = ServedProxy(bucket, tmp_path, front.endpoint, cache_dir=cache, **options)
        served.environment["AWS_CA_BUNDLE"] = os.environ["AWS_CA_BUNDLE"]
        served.forked = False
        served.argv = disk.wrapped(served.argv)
        with served, RawConnection(served.address, 60.0) as connection:
            assert connection.ask("GET", f"/{NAME}/before").body == DATA
            front.hold(300_000)
            connection.send(request("GET", f"/{NAME}/k"))
            assert front.held.wait(60)
            disk.hang()
            try:
                front.release()
                answer = connection.read_answer()
            finally:
                disk.go_on()
            assert (answer.status, answer.body) == (200, DATA)
            assert connection.ask("GET", f"/{NAME}/k").body == DATA


@pytest.mark.parametrize(("cores", "most"), [(1, 1), (2, 2), (3, 3), (4, 4), (64, 4)])
def test_there_are_no_more_than_cores_and_four_at_most(cores: int, most: int) -> None:
    assert most_receivers(cores) == most
