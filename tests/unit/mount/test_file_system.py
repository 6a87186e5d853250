"""The file system of `outrider mount` before a fake proxy; a socket stands in for the kernel's device."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import stat
import struct
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import pytest

from outrider.core.model import ObjectRef
from outrider.mount.bucket import MountBucket
from outrider.mount.file_system import FileSystem
from outrider.mount.messages import HEADER, READ, Op
from outrider.mount.nodes import ROOT
from outrider.mount.reads import STREAM_BYTES
from tests.support.fakes import FakeClock, FakeOrigin, FakeReply, Fault

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from outrider.core.model import Headers
    from outrider.ports import OriginRequest

MIB = 1024 * 1024
FLUSH = 25
TUESDAY: Headers = (("last-modified", "Tue, 06 Jan 2026 00:00:00 GMT"),)
TUESDAY_S = 1767657600
MODIFIED = "2026-01-06T00:00:00.519Z"


@dataclass
class Proxy(FakeOrigin):
    """`FakeOrigin` that also answers LISTs, `page` keys and groups at a time."""

    page: int = 1000
    listed: dict[str, tuple[int, str, str]] = field(default_factory=dict)
    """Size, ETag and date of objects in LISTs, where these are not the right ones."""
    heeds_prefix: bool = True
    """And the delimiter."""

    def _read(self, request: OriginRequest, ref: ObjectRef, fault: Fault | None) -> FakeReply:
        if ref.key:
            return super()._read(request, ref, fault)
        asked = dict(request.query)
        prefix, delimiter = asked["prefix"], asked.get("delimiter")
        if not self.heeds_prefix:
            prefix, delimiter = "", None
        rows: dict[str, str] = {}
        for (_, key), stored in sorted(self.objects.items()):
            name, slash, _ = key.removeprefix(prefix).partition("/")
            if not key.startswith(prefix):
                continue
            if delimiter and slash:
                group = f"{prefix}{name}/"
                rows[group] = f"<CommonPrefixes><Prefix>{_quoted(group)}</Prefix></CommonPrefixes>"
            else:
                size, etag, date = self.listed.get(key, (len(stored.data), stored.etag, MODIFIED))
                rows[key] = (
                    f"<Contents><Key>{_quoted(key)}</Key><Size>{size}</Size><ETag>{etag}</ETag>"
                    f"<LastModified>{date}</LastModified></Contents>"
                )
        begin = int(asked.get("continuation-token", "0"))
        end = begin + int(asked.get("max-keys", self.page))
        more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < len(rows) else ""
        told = f"<EncodingType>url</EncodingType><IsTruncated>{'true' if more else 'false'}</IsTruncated>{more}"
        body = f"<ListBucketResult>{told}{''.join(list(rows.values())[begin:end])}</ListBucketResult>".encode()
        return FakeReply(200, (), len(body), body, fault, self)

    @property
    def lists(self) -> int:
        return sum(request.method == "GET" and not request.key for request in self.log)


def _quoted(key: str) -> str:
    return quote(key, errors="surrogateescape")


class Answer(NamedTuple):
    error: int
    body: bytes


class Entry(NamedTuple):
    """`valid_s`: of the name; `attributes_valid_s`: of the rest."""

    number: int
    valid_s: float
    attributes_valid_s: float
    size: int
    time_ns: int
    is_directory: bool


def entry_of(body: bytes) -> Entry:
    number, _, valid_s, attributes_valid_s, rest, attributes_rest = struct.unpack_from("=QQQQII", body)
    return Entry(number, valid_s + rest / 1e9, attributes_valid_s + attributes_rest / 1e9, *attributes_of(body[40:]))


def attributes_of(body: bytes) -> tuple[int, int, bool]:
    _, size, _, _, seconds, _, _, rest, _, mode = struct.unpack_from("=QQQQQQIIII", body)
    return size, seconds * 10**9 + rest, stat.S_ISDIR(mode)


class Kernel:
    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self.unique = 0
        self.notices: list[bytes] = []

    async def send(self, op: int, number: int, body: bytes) -> None:
        head = HEADER.pack(HEADER.size + len(body), op, self.unique, number, 0, 0, 0, 0, 0)
        await asyncio.get_running_loop().sock_sendall(self._end, head + body)

    async def ask(self, op: int, number: int, body: bytes = b"") -> Answer:
        self.unique += 1
        unique = self.unique
        await self.send(op, number, body)
        reply = await self.answer()
        assert struct.unpack_from("=Q", reply, 8)[0] == unique
        return Answer(-struct.unpack_from("=i", reply, 4)[0], reply[16:])

    async def answer(self) -> bytes:
        """The next reply to a request, with its head."""
        while True:
            reply = await asyncio.get_running_loop().sock_recv(self._end, 2 * MIB)
            length, _, unique = struct.unpack_from("=IiQ", reply)
            assert length == len(reply)
            if unique:
                return reply
            self.notices.append(reply)

    async def forget(self, *nodes: int) -> None:
        """As for one telling of each."""
        batch = b"".join(struct.pack("=QQ", node, 1) for node in nodes[1:])
        await self.send(Op.FORGET, nodes[0], struct.pack("=Q", 1))
        await self.send(Op.BATCH_FORGET, 0, struct.pack("=II", len(nodes) - 1, 0) + batch)

    async def knows(self, number: int) -> bool:
        """Whether the file system still has the node."""
        return (await self.ask(Op.GETATTR, number, bytes(16))).error != errno.ESTALE

    async def look(self, name: str, parent: int = ROOT) -> Entry | None:
        error, body = await self.ask(Op.LOOKUP, parent, os.fsencode(name) + b"\0")
        assert error == 0
        return entry_of(body) if entry_of(body).number else None

    async def found(self, name: str, parent: int = ROOT) -> Entry:
        entry = await self.look(name, parent)
        assert entry is not None
        return entry

    async def stat(self, number: int) -> int:
        """The size."""
        error, body = await self.ask(Op.GETATTR, number, bytes(16))
        assert error == 0
        return attributes_of(body[16:])[0]

    async def read(self, number: int, start: int, size: int) -> Answer:
        return await self.ask(Op.READ, number, READ.pack(0, start, size, 0, 0, 0, 0))

    async def names(self, number: int = ROOT, size: int = 4096) -> dict[str, Entry]:
        error, body = await self.ask(Op.OPENDIR, number, bytes(8))
        assert error == 0
        handle, offset, found = struct.unpack_from("=Q", body)[0], 0, {}
        while part := (await self.ask(Op.READDIRPLUS, number, READ.pack(handle, offset, size, 0, 0, 0, 0))).body:
            at = 0
            while at < len(part):
                _, offset, length, _ = struct.unpack_from("=QQII", part, at + 128)
                name = os.fsdecode(part[at + 152 : at + 152 + length])
                found[name] = entry_of(part[at:])
                at += (152 + length + 7) // 8 * 8
        return found


class World(NamedTuple):
    proxy: Proxy
    kernel: Kernel
    clock: FakeClock

    def put(self, key: str, data: bytes = b"image") -> None:
        self.proxy.put(ObjectRef("pets", key), data, TUESDAY)

    @property
    def reads(self) -> list[str]:
        """The Range of each GET of an object."""
        return [dict(sent.headers).get("range", "") for sent in self.proxy.log if sent.method == "GET" and sent.key]

    @property
    def requests(self) -> int:
        return len(self.proxy.log)

    @property
    def read_bytes(self) -> int:
        """The bytes that the GETs of ranges asked for."""
        ends = [read.removeprefix("bytes=").split("-") for read in self.reads]
        return sum(int(last) - int(first) + 1 for first, last in ends)


async def _at_once(_: float) -> None:
    await asyncio.sleep(0)


@asynccontextmanager
async def mounted(believed_s: float = 60.0, prefix: str = "train/") -> AsyncIterator[World]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setblocking(False)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
    with ours, theirs:
        proxy, clock = Proxy(chunk_bytes=256 * 1024), FakeClock()
        bucket = MountBucket(proxy, "pets", _at_once)
        files = FileSystem(ours.fileno(), bucket, prefix, believed_s, clock)
        files.start()
        yield World(proxy, Kernel(theirs), clock)
        await files.stop()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with mounted() as made:
        yield made


async def test_a_name_is_found_and_then_believed(world: World) -> None:
    world.put("train/cat.jpg")
    entry = await world.kernel.found("cat.jpg")
    assert (entry.size, entry.is_directory, entry.valid_s) == (5, False, 60.0)
    assert entry.attributes_valid_s == 0.0, "a LIST alone has told them"
    assert entry.time_ns // 10**9 == TUESDAY_S
    world.clock.advance(20)
    assert (await world.kernel.found("cat.jpg")).valid_s == pytest.approx(40.0)
    assert await world.kernel.look("dog.jpg") is None
    assert (world.proxy.lists, world.requests) == (1, 1)


async def test_a_name_does_not_wait_for_the_other_pages_of_its_directory(world: World) -> None:
    world.proxy.page = 10
    for number in range(100, 200):
        world.put(f"train/{number}")
    gate = asyncio.Event()
    world.proxy.faults = [Fault(gate=gate, while_=lambda: world.proxy.lists == 2)]
    assert (await world.kernel.found("105")).size == 5
    assert (await world.kernel.found("195")).size == 5
    assert [request.key for request in world.proxy.log if request.method == "HEAD"] == ["train/195"]
    gate.set()


async def test_names_are_found_by_head_where_a_list_is_refused(world: World) -> None:
    world.put("train/cat.jpg")
    world.proxy.faults = [Fault(status=403)]
    assert (await world.kernel.found("cat.jpg")).size == 5
    world.clock.advance(60)
    assert (await world.kernel.found("cat.jpg")).size == 5
    assert (world.proxy.lists, world.proxy.count("HEAD")) == (1, 2)


async def test_a_directory_is_a_prefix_of_keys(world: World) -> None:
    world.put("train/cats/1.jpg")
    cats = await world.kernel.found("cats")
    assert cats.is_directory
    assert (await world.kernel.found("1.jpg", cats.number)).size == 5


async def test_a_listed_directory_answers_by_itself(world: World) -> None:
    world.proxy.page = 7
    for number in range(40):
        world.put(f"train/{number:02}.jpg", bytes(number))
    world.put("train/more/x")
    names = await world.kernel.names()
    assert sorted(names) == [".", "..", *(f"{number:02}.jpg" for number in range(40)), "more"]
    assert names["more"].is_directory
    assert names["21.jpg"].size == 21
    asked = world.requests
    assert await world.kernel.found("21.jpg") == names["21.jpg"]
    assert await world.kernel.look("absent") is None
    assert world.requests == asked


async def test_the_file_system_is_as_large_as_the_files_that_are_known(world: World) -> None:
    async def pages() -> tuple[int, int]:
        blocks, _, available, *_, page_bytes = struct.unpack_from(
            "=QQQQQI", (await world.kernel.ask(Op.STATFS, 1)).body
        )
        assert page_bytes == 4096
        return blocks, available

    assert await pages() == (0, 0)
    world.put("train/cat.jpg", bytes(10_000))
    world.put("train/dog.jpg", bytes(3 * 4096))
    await world.kernel.names()
    assert await pages() == (6, 0)
    cat = await world.kernel.found("cat.jpg")
    world.clock.advance(61)
    world.put("train/cat.jpg", bytes(100_000))
    other = await world.kernel.found("cat.jpg")
    # The kernel has both versions.
    assert await pages() == (-(-(110_000 + 3 * 4096) // 4096), 0)
    await world.kernel.forget(cat.number, cat.number)
    assert not await world.kernel.knows(cat.number)
    assert await pages() == (-(-(100_000 + 3 * 4096) // 4096), 0)
    assert other.number != cat.number


async def test_names_that_no_path_can_have_are_left_out(world: World) -> None:
    keys = ("train/", "train//x", "train/./x", "train/nul\0", "train/both", "train/both/x", "train/" + 300 * "n")
    for key in keys:
        world.put(key)
    names = await world.kernel.names()
    assert sorted(names) == [".", "..", "both"]
    assert names["both"].is_directory


async def test_names_are_utf_8_or_any_other_bytes(world: World) -> None:
    for key in ("train/m\u00e4uschen", "train/\u732b", "train/no-utf-8-\udcff"):
        world.put(key)
    assert sorted(await world.kernel.names()) == sorted([".", "..", "m\u00e4uschen", "\u732b", "no-utf-8-\udcff"])
    assert (await world.kernel.found("no-utf-8-\udcff")).size == 5


async def test_a_directory_hides_an_empty_object_that_marks_it() -> None:
    async with mounted(believed_s=0.0) as world:
        world.put("train/both", b"")
        world.put("train/both/x")
        assert (await world.kernel.found("both")).is_directory
        world.put("train/empty", b"")
        assert not (await world.kernel.found("empty")).is_directory


async def test_names_that_are_looked_up_at_once_wait_for_one_list(world: World) -> None:
    gate = asyncio.Event()
    world.proxy.faults = [Fault(gate=gate)]
    for number in range(20):
        world.put(f"train/{number}")
    for number in range(20):
        world.kernel.unique += 1
        await world.kernel.send(Op.LOOKUP, ROOT, b"%d\0" % number)
        while world.proxy.under_way == 0:
            await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    gate.set()
    for _ in range(20):
        assert entry_of((await world.kernel.answer())[16:]).size == 5
    assert (world.proxy.lists, world.requests) == (1, 1)


async def test_a_proxy_that_is_away_is_waited_for_once(world: World) -> None:
    world.put("train/cat.jpg")
    world.proxy.faults = [Fault(refuse=True, times=None)]
    assert (await world.kernel.ask(Op.LOOKUP, ROOT, b"cat.jpg\0")).error == errno.EIO
    assert world.proxy.count("HEAD") == 0, "the LIST was tried for half a minute"
    world.proxy.faults = []
    assert (await world.kernel.found("cat.jpg")).size == 5


async def test_a_directory_whose_list_takes_longer_than_it_is_believed_is_listed_for_a_part_of_the_time(
    world: World,
) -> None:
    world.proxy.page = 10
    for number in range(100, 120):
        world.put(f"train/{number}")
    gate = asyncio.Event()
    world.proxy.faults = [Fault(gate=gate, while_=lambda: world.proxy.lists == 2)]
    await world.kernel.found("100")
    world.clock.advance(61)
    gate.set()
    await world.kernel.names()
    for after_s, name, is_listed in ((0, "117", False), (609, "118", False), (1, "119", True)):
        world.clock.advance(after_s)
        assert (await world.kernel.found(name)).size == 5
        assert (world.proxy.lists > 2) is is_listed


async def test_a_directory_whose_list_failed_is_listed_again_after_a_minute(world: World) -> None:
    world.put("train/cat.jpg")
    # In each form: such a refusal may mean that the store does not know a parameter.
    world.proxy.faults = [Fault(status=400, times=3)]
    for after_s, lists in ((0, 3), (59, 3), (1, 4)):
        world.clock.advance(after_s)
        assert (await world.kernel.found("cat.jpg")).size == 5
        assert world.proxy.lists == lists


async def test_what_is_neither_in_the_bucket_nor_known_to_the_kernel_takes_no_memory(world: World) -> None:
    for name in ("0", "1", "2", "more/x"):
        world.put(f"train/{name}")
    names = await world.kernel.names()
    more = names["more"].number
    known = [names["0"].number, (await world.kernel.found("1")).number, names["2"].number, more]
    inner = (await world.kernel.found("x", more)).number
    await world.kernel.forget(*known, inner)
    assert [await world.kernel.knows(number) for number in known] == [True] * 4, "the bucket has them"
    for name in ("0", "1", "2", "more/x"):
        world.proxy.delete(ObjectRef("pets", f"train/{name}"))
    world.clock.advance(60)
    await world.kernel.names()
    assert [await world.kernel.knows(number) for number in (*known, inner)] == [False, True, False, False, False]
    await world.kernel.forget(known[1])
    assert not await world.kernel.knows(known[1]), "it was told twice"


async def test_the_kernel_opens_files_by_itself(world: World) -> None:
    """After ENOSYS the kernel asks no more, and keeps a file's pages over its opens."""
    for op in (Op.OPEN, FLUSH):
        assert (await world.kernel.ask(op, ROOT, bytes(8))).error == errno.ENOSYS


async def test_a_file_in_one_read_takes_one_request(world: World) -> None:
    world.put("train/cat.jpg", b"0123456789")
    number = (await world.kernel.found("cat.jpg")).number
    assert await world.kernel.read(number, 0, 131072) == Answer(0, b"0123456789")
    assert await world.kernel.read(number, 10, 131072) == Answer(0, b"")
    assert world.reads == [""], "the whole object, as any job reads it"


async def test_a_reader_that_goes_on_takes_one_request_for_each_part(world: World) -> None:
    body = bytes(range(251)) * (STREAM_BYTES // 251 + 9000)
    world.put("train/1.tar", body)
    number = (await world.kernel.found("1.tar")).number
    read = b"".join([(await world.kernel.read(number, start, MIB)).body for start in range(0, len(body), MIB)])
    assert read == body
    assert len(world.reads) == 2


async def test_the_next_part_is_on_its_way_before_it_is_read(world: World) -> None:
    world.put("train/1.tar", bytes(2 * STREAM_BYTES))
    number = (await world.kernel.found("1.tar")).number
    await world.kernel.read(number, 0, MIB)
    assert len(world.reads) == 1
    await world.kernel.read(number, STREAM_BYTES // 2, MIB)
    await world.kernel.names()
    assert len(world.reads) == 2


async def test_more_readers_than_there_are_streams_take_each_byte_once(world: World) -> None:
    names = [f"{number}.tar" for number in range(40)]
    for name in names:
        world.put(f"train/{name}", bytes(2 * STREAM_BYTES))
    numbers = [(await world.kernel.found(name)).number for name in names]
    for start in range(0, 2 * STREAM_BYTES, MIB):
        for number in numbers:
            await world.kernel.read(number, start, MIB)
    assert world.read_bytes == 40 * 2 * STREAM_BYTES


async def test_streams_that_nobody_reads_on_make_room(world: World) -> None:
    world.put("train/1.tar", bytes(2 * STREAM_BYTES))
    for number in range(40):
        world.put(f"train/{number}.h5", bytes(STREAM_BYTES))
    for number in range(40):
        await world.kernel.read((await world.kernel.found(f"{number}.h5")).number, 0, 4096)
    while world.proxy.under_way:
        await asyncio.sleep(0)
    world.clock.advance(1)
    number, asked = (await world.kernel.found("1.tar")).number, len(world.reads)
    for start in range(0, 2 * STREAM_BYTES, MIB):
        await world.kernel.read(number, start, MIB)
    assert len(world.reads) == asked + 2


async def test_a_reader_in_the_middle_of_a_part_takes_what_it_asks_for(world: World) -> None:
    world.put("train/1.tar", bytes(3 * STREAM_BYTES))
    number = (await world.kernel.found("1.tar")).number
    for start in (6 * MIB, 7 * MIB, 8 * MIB):
        await world.kernel.read(number, start, MIB)
    assert [read.split("=")[-1] for read in world.reads] == [
        "6291456-7340031",
        "7340032-8388607",
        "8388608-16777215",
    ]


async def test_a_read_far_away_takes_no_more_than_it_asks_for(world: World) -> None:
    body = bytes(3 * STREAM_BYTES)
    world.put("train/data.mdb", body)
    number = (await world.kernel.found("data.mdb")).number
    assert (await world.kernel.read(number, 17 * MIB, 4096)).body == bytes(4096)
    assert world.reads == [f"bytes={17 * MIB}-{17 * MIB + 4095}"]


async def test_a_version_of_the_same_second_and_size_is_another_file_with_another_time(world: World) -> None:
    """By its number the kernel knows that its pages are old, and programs by its time."""
    world.put("train/cat.jpg", b"old")
    old = await world.kernel.found("cat.jpg")
    world.put("train/cat.jpg", b"new")
    assert await world.kernel.found("cat.jpg") == old
    world.clock.advance(60)
    new = await world.kernel.found("cat.jpg")
    assert (new.size, new.time_ns // 10**9) == (old.size, TUESDAY_S)
    assert new.number != old.number
    assert new.time_ns != old.time_ns


async def test_an_object_that_was_put_again_with_the_same_bytes_is_the_same_file(world: World) -> None:
    world.put("train/cat.jpg")
    number = (await world.kernel.found("cat.jpg")).number
    world.put("train/cat.jpg")
    world.clock.advance(60)
    assert (await world.kernel.found("cat.jpg")).number == number


async def test_a_list_and_a_head_tell_the_same_time(world: World) -> None:
    world.put("train/cat.jpg")
    by_list = await world.kernel.found("cat.jpg")
    world.clock.advance(60)
    error, body = await world.kernel.ask(Op.GETATTR, by_list.number, bytes(16))
    assert (error, world.proxy.count("HEAD")) == (0, 1)
    assert attributes_of(body[16:])[1] == by_list.time_ns


async def test_a_read_never_mixes_versions(world: World) -> None:
    world.put("train/cat.jpg", b"old")
    number = (await world.kernel.found("cat.jpg")).number
    assert (await world.kernel.read(number, 0, 4096)).body == b"old"
    world.put("train/cat.jpg", b"new")
    assert (await world.kernel.read(number, 0, 4096)).error == errno.ESTALE
    # With a reader's pages locked, the kernel would take a notice to drop them only after the answer to the READ.
    assert [struct.unpack_from("=Qq", notice, 16) for notice in world.kernel.notices] == [(number, -1)]
    assert (await world.kernel.ask(Op.GETATTR, number, bytes(16))).error == errno.ESTALE, "so that it looks anew"
    new = await world.kernel.found("cat.jpg")
    assert (await world.kernel.read(new.number, 0, 4096)).body == b"new"


# -- LISTs that are wrong ----------------------------------------------------------------------------------------

DATA = bytes(range(100))


async def trusting(world: World) -> int:
    """Let LISTs be believed of objects of some hundred bytes. Returns the number of HEADs so far."""
    for number in range(4):
        world.put(f"train/true/{number}", DATA)
    true = (await world.kernel.found("true")).number
    for number in range(4):
        await world.kernel.stat((await world.kernel.found(str(number), true)).number)
    return world.proxy.count("HEAD")


async def test_sizes_are_believed_of_lists_that_were_right_four_times(world: World) -> None:
    for number in range(20):
        world.put(f"train/{number}", DATA)
    assert await trusting(world) == 4
    for name, entry in (await world.kernel.names()).items():
        if not name.startswith(".") and name != "true":
            assert entry.attributes_valid_s == 60.0
            assert await world.kernel.stat(entry.number) == 100
    assert world.proxy.count("HEAD") == 4


async def test_reads_prove_lists_without_a_request_of_their_own(world: World) -> None:
    for number in range(5):
        world.put(f"train/{number}", DATA)
    for number in range(4):
        await world.kernel.read((await world.kernel.found(str(number))).number, 0, 4096)
    assert (await world.kernel.found("4")).attributes_valid_s == 60.0
    assert world.proxy.count("HEAD") == 0


@pytest.mark.parametrize("size", [0, 50, 300])
async def test_a_size_that_only_a_list_told_is_settled_before_the_kernel_uses_it(size: int, world: World) -> None:
    world.put("train/cat.jpg", DATA)
    world.proxy.listed["train/cat.jpg"] = (size, "listed", MODIFIED)
    entry = await world.kernel.found("cat.jpg")
    assert (entry.size, entry.valid_s, entry.attributes_valid_s) == (size, 60.0, 0.0)
    assert await world.kernel.stat(entry.number) == 100
    assert (await world.kernel.read(entry.number, 0, 4096)).body == DATA
    again = await world.kernel.found("cat.jpg")
    assert (again.number, again.size, again.attributes_valid_s) == (entry.number, 100, 60.0)
    assert world.proxy.count("HEAD") == 1


async def test_a_few_files_of_a_directory_that_is_opened_prove_its_list(world: World) -> None:
    for number in range(20):
        world.put(f"train/{number}", DATA)
    names = await world.kernel.names()
    assert {names[str(number)].attributes_valid_s for number in range(20)} == {60.0}
    assert world.proxy.count("HEAD") == 4


async def test_a_list_that_is_wrong_of_some_files_of_a_directory_is_believed_of_none(world: World) -> None:
    for number in range(20):
        world.put(f"train/{number}", DATA)
        world.proxy.listed[f"train/{number}"] = (70, "listed", MODIFIED)
    for entry in [entry for name, entry in (await world.kernel.names()).items() if not name.startswith(".")]:
        assert (entry.size, entry.attributes_valid_s) in ((100, 60.0), (70, 0.0))
        assert await world.kernel.stat(entry.number) == 100


async def test_a_size_of_0_is_never_believed(world: World) -> None:
    for number in range(10):
        world.put(f"train/{number}", b"")
    for number in range(10):
        entry = await world.kernel.found(str(number))
        assert entry.attributes_valid_s == 0.0
        assert await world.kernel.stat(entry.number) == 0
    assert world.proxy.count("HEAD") == 10


async def test_a_file_that_is_longer_than_a_believed_list_told_is_read_to_its_end(world: World) -> None:
    heads = await trusting(world)
    world.put("train/cat.jpg", DATA * 3)
    world.put("train/dog.jpg", DATA * 3)
    for name in ("cat", "dog"):
        world.proxy.listed[f"train/{name}.jpg"] = (100, "listed", MODIFIED)
    world.clock.advance(60)
    names = await world.kernel.names()
    cat, dog = names["cat.jpg"].number, names["dog.jpg"].number
    assert names["cat.jpg"].attributes_valid_s == 60.0
    # The kernel asks for the page to its end.
    assert (await world.kernel.read(cat, 0, 4096)).body == DATA * 3
    assert world.proxy.count("HEAD") == heads + 1
    assert await world.kernel.stat(cat) == 300
    noticed = [struct.unpack_from("=Q", notice, 16)[0] for notice in world.kernel.notices]
    assert cat in noticed, "so that it asks for the attributes before it reads on"
    assert dog in noticed, "no LIST is believed any more"
    assert await world.kernel.stat(dog) == 300


async def test_a_file_that_is_shorter_than_a_believed_list_told_is_another_file(world: World) -> None:
    await trusting(world)
    world.put("train/cat.jpg", DATA)
    world.proxy.listed["train/cat.jpg"] = (120, "listed", MODIFIED)
    world.clock.advance(60)
    number = (await world.kernel.names())["cat.jpg"].number
    for start in (0, 110):
        assert (await world.kernel.read(number, start, 4096)).error == errno.ESTALE
    assert (await world.kernel.ask(Op.GETATTR, number, bytes(16))).error == errno.ESTALE
    new = await world.kernel.found("cat.jpg")
    assert (await world.kernel.read(new.number, 0, 4096)).body == DATA


async def test_a_list_that_stays_behind_does_not_make_files_stale_for_ever(world: World) -> None:
    await trusting(world)
    world.put("train/cat.jpg", b"new" * 40)
    world.proxy.listed["train/cat.jpg"] = (100, "old", "2026-01-05T00:00:00.000Z")
    for _ in range(3):
        world.clock.advance(60)
        entry = (await world.kernel.names())["cat.jpg"]
        if (read := await world.kernel.read(entry.number, 0, 4096)).error == errno.ESTALE:
            entry = await world.kernel.found("cat.jpg")
            read = await world.kernel.read(entry.number, 0, 4096)
        assert read.body == b"new" * 40
        assert (await world.kernel.found("cat.jpg")).number == entry.number, "no LIST takes its place"


async def test_an_object_that_was_put_again_is_looked_up_by_itself_after_the_list_that_shows_it(world: World) -> None:
    world.put("train/cat.jpg", DATA)
    old = await world.kernel.found("cat.jpg")
    assert await world.kernel.stat(old.number) == 100
    world.put("train/cat.jpg", b"new")
    world.clock.advance(60)
    assert (await world.kernel.names())["cat.jpg"].valid_s == 0.0
    lists = world.proxy.lists
    new = await world.kernel.found("cat.jpg")
    assert (new.number == old.number, new.size, world.proxy.lists) == (False, 3, lists)
    assert (await world.kernel.ask(Op.GETATTR, old.number, bytes(16))).error == errno.ESTALE


async def test_bytes_that_were_on_their_way_when_a_list_proved_wrong_are_not_read(world: World) -> None:
    old, new = b"o" * 3 * STREAM_BYTES, b"n" * 3 * STREAM_BYTES
    world.put("train/1.tar", old)
    number, gate = (await world.kernel.found("1.tar")).number, asyncio.Event()
    world.proxy.faults, sent_bytes = [Fault(body_gate=gate, gate_after=1000)], world.proxy.body_bytes
    world.kernel.unique += 1
    await world.kernel.send(Op.READ, number, READ.pack(0, 0, 4096, 0, 0, 0, 0))
    while world.proxy.body_bytes == sent_bytes:
        await asyncio.sleep(0)
    # Within the second of the version that was listed.
    world.put("train/1.tar", new)
    assert (await world.kernel.read(number, 2 * STREAM_BYTES + MIB, 4096)).body == new[:4096]
    gate.set()
    assert (await world.kernel.answer())[16:] == new[:4096]


async def test_other_bytes_than_a_range_asked_for_are_not_read(world: World) -> None:
    world.put("train/1.tar", bytes(range(250)) * (STREAM_BYTES // 100))
    number, start = (await world.kernel.found("1.tar")).number, 250 * (STREAM_BYTES // 125)
    world.proxy.faults = [Fault(method="GET", shift=1)]
    assert (await world.kernel.read(number, start, 250)).error == errno.EIO
    assert (await world.kernel.read(number, start, 250)).body == bytes(range(250))


async def test_keys_that_may_list_and_not_read_still_see_sizes(world: World) -> None:
    world.put("train/cat.jpg", DATA)
    entry = await world.kernel.found("cat.jpg")
    world.proxy.faults = [Fault(status=403, times=None)]
    assert await world.kernel.stat(entry.number) == 100
    assert (await world.kernel.read(entry.number, 0, 4096)).error == errno.EACCES


async def test_a_store_that_ignores_prefix_and_delimiter_shows_directories_all_the_same(world: World) -> None:
    for key in ("other/x", "train/a", "train/b/1", "train/b/2"):
        world.put(key)
    world.proxy.heeds_prefix = False
    assert sorted(await world.kernel.names()) == [".", "..", "a", "b"]


async def test_a_file_that_is_open_stays_its_version_when_another_program_has_found_the_next_one(world: World) -> None:
    old, new = b"o" * 3 * STREAM_BYTES, b"n" * 3 * STREAM_BYTES
    world.put("train/1.tar", old)
    number = (await world.kernel.found("1.tar")).number
    assert (await world.kernel.read(number, 0, MIB)).body == old[:MIB]
    world.put("train/1.tar", new)
    world.clock.advance(60)
    found = (await world.kernel.found("1.tar")).number
    assert (await world.kernel.read(found, 0, MIB)).body == new[:MIB], "and no bytes that came for the old one"
    assert (await world.kernel.read(number, 2 * STREAM_BYTES, MIB)).error == errno.ESTALE
    assert (await world.kernel.read(found, 2 * STREAM_BYTES, MIB)).body == new[:MIB]


async def test_an_object_that_is_gone_is_no_file_when_it_is_looked_at_again(world: World) -> None:
    world.put("train/cat.jpg")
    number = (await world.kernel.found("cat.jpg")).number
    world.proxy.delete(ObjectRef("pets", "train/cat.jpg"))
    world.clock.advance(60)
    assert (await world.kernel.ask(Op.GETATTR, number, bytes(16))).error == errno.ENOENT
    assert await world.kernel.look("cat.jpg") is None
    world.put("train/dog.jpg")
    await world.kernel.names()
    world.proxy.delete(ObjectRef("pets", "train/dog.jpg"))
    world.clock.advance(60)
    assert await world.kernel.look("dog.jpg") is None
    assert sorted(await world.kernel.names()) == [".", ".."]


async def test_freshness_always_asks_each_time() -> None:
    async with mounted(believed_s=0.0) as world:
        world.put("train/cat.jpg")
        for _ in range(20):
            assert (await world.kernel.found("cat.jpg")).valid_s == 0.0
        assert (world.proxy.count("HEAD"), world.proxy.lists) == (20, 0)
        await world.kernel.names()
        await world.kernel.found("cat.jpg")
        assert (world.proxy.count("HEAD"), world.proxy.lists) == (21, 1)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(status=403), errno.EACCES),
        (Fault(status=500, times=None), errno.EIO),
        (Fault(refuse=True, times=None), errno.EIO),
        (Fault(bug=RuntimeError("ours")), errno.EIO),
    ],
)
async def test_a_failure_is_an_error_of_the_call(fault: Fault, error: int, world: World) -> None:
    world.put("train/cat.jpg", bytes(9 * MIB))
    number = (await world.kernel.found("cat.jpg")).number
    world.proxy.faults = [fault]
    assert (await world.kernel.read(number, 0, 4096)).error == error
    world.proxy.faults = []
    assert (await world.kernel.read(number, 0, 4096)).body == bytes(4096)


async def test_a_proxy_that_is_started_anew_is_waited_for(world: World) -> None:
    world.put("train/1.tar", bytes(range(250)) * 20_000)
    world.proxy.faults = [Fault(refuse=True, times=3), Fault(status=503, times=2)]
    number = (await world.kernel.found("1.tar")).number
    world.proxy.faults = [Fault(refuse=True), Fault(break_after=3_000_000)]
    await world.kernel.read(number, 0, 4096)
    assert (await world.kernel.read(number, 4 * MIB, 100_000)).body == (bytes(range(250)) * 20_000)[4 * MIB :][:100_000]
    assert world.reads[-1] == "bytes=3000000-4999999", "what came is not asked for again"


async def test_a_node_that_is_not_there_is_stale(world: World) -> None:
    assert (await world.kernel.ask(Op.GETATTR, 999, bytes(16))).error == errno.ESTALE
    assert (await world.kernel.read(999, 0, 1)).error == errno.ESTALE


async def test_the_kernel_is_told_of_the_version_and_of_large_reads(world: World) -> None:
    error, body = await world.kernel.ask(Op.INIT, 0, struct.pack("=IIII", 7, 45, 131072, 0xFFFFFFFF))
    major, minor, _, flags = struct.unpack_from("=IIII", body)
    assert (error, major, minor, len(body)) == (0, 7, 31, 64)
    assert flags & 1 << 12, "pages are dropped when the time changes"
    assert struct.unpack_from("=H", body, 28)[0] == MIB // 4096
    old = await world.kernel.ask(Op.INIT, 0, struct.pack("=IIII", 7, 19, 131072, 0))
    assert old.error == errno.EPROTO


async def test_a_reader_that_is_killed_waits_for_nothing(world: World) -> None:
    world.put("train/1.tar", bytes(9 * MIB))
    number = (await world.kernel.found("1.tar")).number
    gate = asyncio.Event()
    world.proxy.faults = [Fault(gate=gate)]
    reading = asyncio.create_task(world.kernel.read(number, 0, 4096))
    while world.proxy.under_way == 0:
        await asyncio.sleep(0)
    await world.kernel.send(Op.INTERRUPT, 0, struct.pack("=Q", world.kernel.unique))
    assert (await reading).error == errno.EINTR
    gate.set()
    assert (await world.kernel.read(number, 0, 4096)).body == bytes(4096), "others that wait for it still get it"


async def test_a_reader_that_is_killed_at_once_is_answered(world: World) -> None:
    """The kernel waits for the answer, and its process cannot be killed until then."""
    world.put("train/1.tar", bytes(9 * MIB))
    number = (await world.kernel.found("1.tar")).number
    world.kernel.unique += 1
    await world.kernel.send(Op.READ, number, READ.pack(0, 0, 4096, 0, 0, 0, 0))
    await world.kernel.send(Op.INTERRUPT, 0, struct.pack("=Q", world.kernel.unique))
    _, error, unique = struct.unpack_from("=IiQ", await world.kernel.answer())
    assert (-error, unique) == (errno.EINTR, world.kernel.unique)


async def test_a_request_that_breaks_us_is_answered(world: World) -> None:
    assert (await world.kernel.ask(Op.READDIR, ROOT, b"short")).error == errno.EIO


async def test_why_calls_fail_is_told_once_a_minute(caplog: pytest.LogCaptureFixture, world: World) -> None:
    world.proxy.faults = [Fault(status=404, times=None)]
    for after_s, lines in ((0, 1), (59, 1), (1, 2)):
        world.clock.advance(after_s)
        assert (await world.kernel.ask(Op.OPENDIR, ROOT, bytes(8))).error == errno.EIO
        told = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(told) == lines
    assert "there is no bucket pets" in told[0].__dict__["error"]


async def test_a_listing_goes_on_for_the_others_when_one_of_those_that_wait_is_killed(world: World) -> None:
    world.put("train/1.jpg")
    gate = asyncio.Event()
    world.proxy.faults = [Fault(gate=gate)]
    opening = asyncio.create_task(world.kernel.ask(Op.OPENDIR, ROOT, bytes(8)))
    while world.proxy.under_way == 0:
        await asyncio.sleep(0)
    first = world.kernel.unique
    await world.kernel.send(Op.INTERRUPT, 0, struct.pack("=Q", first))
    assert (await opening).error == errno.EINTR
    gate.set()
    assert "1.jpg" in await world.kernel.names()
    assert world.proxy.lists == 1
