"""A mount reads blocks by descriptors that the proxy on its machine lends; see `http.control.lender`."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import time
from contextlib import asynccontextmanager, suppress
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from outrider.adapters.origin.credentials import AwsCredentials
from outrider.adapters.origin.http_origin import HttpOrigin
from outrider.core.cache import loan_messages
from outrider.metrics import Metrics
from outrider.mount.listed import ObjectFacts
from outrider.mount.loans import Loans
from outrider.mount.nodes import File, MountNodes
from tests.support.damage import block_files, zero_the_payload
from tests.support.fakes import FakeClock
from tests.support.faulty_disk import SickDisk
from tests.support.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable

    from outrider.core.cache.loan_messages import LoanRead
    from tests.support.bucket import Bucket

BLOCK_BYTES = 64 * 1024
BODY = bytes(range(251)) * 800  # four blocks
CLIENTS = """
[[client]]
name = "reader"
access_key = "AKREADER"
secret_key = "the reader's secret"
grants = [{bucket = "*", access = "read"}]
"""


@asynccontextmanager
async def loans_of(proxy: Proxy, bucket: str, *, held_max: int = 100, **options: Any) -> AsyncIterator[Loans]:
    """Those of a mount that is not connected yet."""
    origin = HttpOrigin(proxy.endpoint, "eu-west-1", AwsCredentials(), Metrics(), time.time, connections=2)
    await origin.open()
    loans = Loans(origin, bucket, held_max=held_max, **options)
    try:
        yield loans
    finally:
        await loans.stop()
        await origin.close()


class Room(NamedTuple):
    """A bucket with an object that the proxy has in its cache, and the file of a mount for it."""

    proxy: Proxy
    bucket: str
    client: Any
    file: File

    def gets(self) -> float:
        return self.proxy.metric("outrider_requests_total", op="get")

    def lent(self) -> float:
        self.proxy.settle()
        return self.proxy.metric("outrider_requests_total", op="descriptor")

    async def both(self, loans: Loans, start: int, stop: int) -> tuple[bytes | None, bytes | None]:
        """By a question, where the block is not lent yet, and at once."""
        return await self.read(loans, start, stop), _kept(loans.at_once(self.file, start, stop))

    async def read(self, loans: Loans, start: int, stop: int) -> bytes | None:
        return _kept(await loans.read(self.file, start, stop))


def open_blocks(proxy: Proxy) -> list[int]:
    """The block files that the proxy and the mount have open, which are one process here."""
    found: list[int] = []
    for fd in os.listdir("/proc/self/fd"):
        # Those of the listing, and of earlier tests in threads, may be closed by now.
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{fd}").startswith(str(proxy.cache_dir / "v2")):
                found.append(int(fd))
    return found


def _kept(data: bytes | memoryview | None) -> bytes | None:
    return None if data is None else bytes(data)


def room(proxy: Proxy, bucket: str, body: bytes = BODY) -> Room:
    client = proxy.client()
    client.put_object(Bucket=bucket, Key="a b/\u00e4.jpg", Body=body)
    got = client.get_object(Bucket=bucket, Key="a b/\u00e4.jpg")
    assert got["Body"].read() == body
    proxy.settle()
    modified = parsedate_to_datetime(got["ResponseMetadata"]["HTTPHeaders"]["last-modified"])
    nodes, facts = MountNodes(""), ObjectFacts.of(len(body), got["ETag"], modified)
    file = nodes.file(nodes.directory(nodes.root, "a b"), "\u00e4.jpg", facts, 0.0, settled=True)
    return Room(proxy, bucket, client, file)


async def test_cached_blocks_are_read_without_a_get_and_each_is_asked_for_once(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions, pack = 0, loan_messages.pack_reads

    def counted(reads: Iterable[LoanRead]) -> bytes:
        nonlocal questions
        questions += sum(read.number > 0 for read in reads)
        return pack(reads)

    monkeypatch.setattr(loan_messages, "pack_reads", counted)
    with Proxy(bucket, block_size=f"{BLOCK_BYTES}") as proxy:
        here = room(proxy, bucket.make_bucket("lent"))
        gets, served = here.gets(), proxy.metric("outrider_served_bytes_total", source="disk")
        async with loans_of(proxy, here.bucket) as loans:
            assert await loans.connect()
            assert await here.both(loans, 10, 500) == (BODY[10:500], BODY[10:500])
            # Over the border of two blocks no bytes come at once.
            assert await here.both(loans, BLOCK_BYTES - 7, BLOCK_BYTES + 9) == (BODY[BLOCK_BYTES - 7 :][:16], None)
            reads = await asyncio.gather(*(here.read(loans, at, at + 800) for at in range(0, len(BODY), 800)))
            assert b"".join(read or b"" for read in reads) == BODY
            # Pages that are not in memory any more are read in a thread.
            for path in block_files(proxy.cache_dir):
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            assert await here.read(loans, 10, 500) == BODY[10:500]
            assert await here.both(loans, len(BODY) - 100, len(BODY)) == (BODY[-100:],) * 2
        assert questions == 4
        assert here.lent() > 0
        assert here.gets() == gets
        read_bytes = 3 * 490 + 16 + len(BODY) + 2 * 100
        assert proxy.metric("outrider_served_bytes_total", source="disk") - served == read_bytes
        # By the same name as GETs of the mount, so that a planner follows one reader.
        assert {reader["name"] for reader in proxy.status()["readers"]} == {"127.0.0.1"}


async def test_loans_end_with_a_write_their_time_another_version_and_the_proxy(bucket: Bucket) -> None:
    clock = FakeClock()
    with Proxy(bucket, freshness="ttl:60") as proxy:
        here = room(proxy, bucket.make_bucket("lent-until"))
        async with loans_of(proxy, here.bucket, clock=clock) as loans:
            assert await loans.connect()
            assert await here.both(loans, 0, 100) == (BODY[:100],) * 2
            clock.advance(61)
            assert loans.at_once(here.file, 0, 100) is None
            assert await here.both(loans, 0, 100) == (BODY[:100],) * 2

            facts = here.file.facts
            for other in (facts._replace(size=facts.size - 1), facts._replace(etag="other")):
                here.file.learn(other, 0.0, settled=True)
                assert await here.both(loans, 0, 100) == (None, None)
            here.file.learn(facts._replace(seconds=facts.seconds - 1), 0.0, settled=True)
            clock.advance(61)
            assert await here.both(loans, 0, 100) == (None, None), "it was put again"
            here.file.learn(facts, 0.0, settled=True)
            assert await here.both(loans, 0, 100) == (BODY[:100],) * 2

            # Any write ends them; that of another object does no harm.
            here.client.put_object(Bucket=here.bucket, Key="other", Body=b"x")
            assert loans.at_once(here.file, 0, 100) is None
            assert await here.both(loans, 0, 100) == (BODY[:100],) * 2

            here.client.put_object(Bucket=here.bucket, Key=here.file.key, Body=BODY[::-1])
            assert await here.both(loans, 0, 100) == (None, None), "the origin has to be asked"
            assert here.client.get_object(Bucket=here.bucket, Key=here.file.key)["Body"].read() == BODY[::-1]
            proxy.settle()
            assert await here.both(loans, 0, 100) == (None, None), "the file is of the old version"

        again = room(proxy, here.bucket)
        async with loans_of(proxy, here.bucket) as loans:
            await loans.start()
            assert await again.both(loans, 0, 100) == (BODY[:100],) * 2
            proxy.stop()
            assert await again.both(loans, 0, 100) == (None, None)


async def test_a_block_that_is_evicted_gives_no_bytes_and_takes_no_room(bucket: Bucket) -> None:
    with Proxy(bucket) as proxy:
        here = room(proxy, bucket.make_bucket("lent-evicted"))
        async with loans_of(proxy, here.bucket) as loans:
            assert await loans.connect()
            assert await here.both(loans, 0, 100) == (BODY[:100],) * 2
            store = proxy.outrider.store
            proxy.on_loop(lambda: store.drop(store.present()))
            assert {os.fstat(fd).st_size for fd in open_blocks(proxy)} == {0}
            assert await here.both(loans, 0, 100) == (None, None)


async def test_a_disk_that_hangs_ends_the_loans(bucket: Bucket) -> None:
    with Proxy(bucket, block_size=f"{BLOCK_BYTES}") as proxy:
        here = room(proxy, bucket.make_bucket("lent-hanging"))
        async with loans_of(proxy, here.bucket, patience_s=0.01) as loans:
            assert await loans.connect()
            border = BLOCK_BYTES - 1, BLOCK_BYTES + 1
            assert await here.both(loans, 0, 100) == (BODY[:100],) * 2
            with SickDisk(proxy.cache_dir) as sick:
                sick.hold("pread")
                assert await here.read(loans, *border) is None
                assert await here.both(loans, 0, 100) == (None, None)


async def test_loans_are_bounded(bucket: Bucket) -> None:
    with Proxy(bucket, block_size=f"{BLOCK_BYTES}") as proxy:
        here = room(proxy, bucket.make_bucket("lent-bounded"))
        async with loans_of(proxy, here.bucket, held_max=2) as loans:
            assert await loans.connect()
            connected = len(open_blocks(proxy))
            for _ in range(2):
                for start in range(0, len(BODY), BLOCK_BYTES):
                    assert await here.read(loans, start, start + 10) == BODY[start : start + 10]
            assert len(open_blocks(proxy)) == connected + 2
            assert here.gets() == 1
        assert len(open_blocks(proxy)) == connected


async def test_a_block_is_verified_before_it_is_lent(bucket: Bucket) -> None:
    with Proxy(bucket) as proxy:
        here = room(proxy, bucket.make_bucket("lent-verified"))
        proxy.stop()
        (path,) = block_files(proxy.cache_dir)
        zero_the_payload(path, random.Random(0))
        proxy.start()
        async with loans_of(proxy, here.bucket) as loans:
            assert await loans.connect()
            assert await here.both(loans, 0, 100) == (None, None)
        assert proxy.metric("outrider_bad_blocks_total") == 1


async def test_descriptors_are_for_the_proxys_own_user_who_may_read_all(bucket: Bucket, tmp_path: Path) -> None:
    clients = tmp_path / "clients.toml"
    clients.write_text(CLIENTS)
    for settings in ({"auth": "sigv4", "clients": clients}, {"verify": "always"}):
        with Proxy(bucket, **settings) as proxy:
            async with loans_of(proxy, "any") as loans:
                assert not await loans.connect()
            assert not (proxy.cache_dir / "tmp" / "descriptors").exists()

    with Proxy(bucket) as proxy:
        path = proxy.cache_dir / "tmp" / "descriptors"
        assert path.stat().st_mode & 0o777 == 0o600
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(30)
            stranger.connect(str(path))
            stranger.send(b"0" * 32 + b"bucket")
            assert stranger.recv(100) == b"", "it has no token of this proxy"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_even_where_the_modes_let_it_in(bucket: Bucket) -> None:
    with Proxy(bucket) as proxy:
        place = proxy.cache_dir / "tmp"
        place.chmod(0o711)
        (place / "descriptors").chmod(0o666)
        directory = os.open(place, os.O_PATH)
        lender = proxy.outrider.lender
        assert lender is not None
        offer = lender.offer("127.0.0.1")
        assert offer is not None
        for uid, terms in ((0, lender.terms), (65534, b"")):
            # This process has threads: the child makes system calls alone, and ends.
            if (child := os.fork()) == 0:
                try:
                    os.fchdir(directory)
                    os.setresuid(uid, uid, uid)
                    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asks:
                        asks.settimeout(30)
                        asks.connect("descriptors")
                        answer = b""
                        with suppress(OSError):
                            asks.send(loan_messages.pack_greeting(offer["token"], "any"))
                            answer = asks.recv(100)
                        os._exit(0 if answer == terms else 1)
                finally:
                    os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0, uid
        os.close(directory)
