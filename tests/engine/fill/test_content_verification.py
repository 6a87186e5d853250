"""Bytes are compared with what the bucket knows of the object: one bit turned on the way never stays."""

from __future__ import annotations

import asyncio
import logging
import os
from base64 import b64encode
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path

import pytest

from outrider.adapters.disk.block_dir import BlockDir
from outrider.adapters.disk.recovery import Recovery
from outrider.core.model import Headers, ObjectRef
from outrider.core.s3.checksums import Kind
from outrider.engine.fill import content_verification
from outrider.engine.fill.content_verification import ContentMismatch
from outrider.engine.read.body_pieces import FilePiece
from outrider.engine.read.object_read import CacheStatus
from tests.support.engine import BLOCK, REF, Engine, as_large, by_threads, bytes_of, engine, taken
from tests.support.fakes import RAMP, FakeOrigin, Fault, Stored, Turned

SMALL = RAMP[:900]
BLOCKS = 5
LARGE = RAMP[: (BLOCKS - 1) * BLOCK + 777]
CRCS = [kind for kind in Kind if kind.is_crc]
MD5 = f'"{md5(SMALL).hexdigest()}"'


def checksum_headers(kind: Kind, data: bytes, *, is_full: bool = True) -> Headers:
    running = kind.begin()
    running.update(data)
    value = b64encode(running.digest()).decode()
    form = ("x-amz-checksum-type", "FULL_OBJECT" if is_full else "COMPOSITE")
    return (f"x-amz-checksum-{kind.value}", value if is_full else f"{value}-2"), form


# A checksum of the checksums of the parts, as stores send it that leave out the number of parts, the type, or both.
_COMPOSITE = checksum_headers(Kind.CRC32, bytes(12), is_full=False)
_UNMARKED = _COMPOSITE[0][0], _COMPOSITE[0][1].partition("-")[0]
COMPOSITES = ((_UNMARKED, _COMPOSITE[1]), (_COMPOSITE[0],), (_UNMARKED,))


@pytest.fixture(params=[as_large, by_threads])
def room(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    origin = FakeOrigin(chunk_bytes=1000)
    with engine(tmp_path / "c", origin, verify_origin=True, sleep=_at_once, buffer_bytes=request.param) as room:
        yield room


async def _at_once(_: float) -> None:
    pass


async def asked_before(room: Engine) -> None:
    """The version is known with its checksum, as after a prefetch or a HEAD."""
    await room.reads.head(REF, {})


def mismatches(room: Engine) -> float:
    return room.metrics.value("outrider_origin_mismatches_total")


def put(room: Engine, data: bytes, *headers: tuple[str, str], etag: str | None = None, ref: ObjectRef = REF) -> None:
    room.origin.put(ref, data, headers)
    if etag is not None:
        room.origin.objects[ref] = Stored(data, etag, headers)


async def read(room: Engine, ref: ObjectRef = REF, /, **headers: str) -> bytes:
    """The body, once all that the read began has ended. Raises ContentMismatch: it was cut."""
    try:
        return await room.get(ref, **headers)
    finally:
        await room.tasks.settle()


async def read_or_cut(room: Engine, **headers: str) -> bytes:
    """As `read`. Empty: the reply was cut."""
    try:
        return await read(room, REF, **headers)
    except ContentMismatch:
        return b""


def proved(room: Engine, ref: ObjectRef = REF) -> list[int]:
    """The indexes of the blocks that are proved."""
    version = room.versions.stale(ref)
    assert version is not None
    return [
        index
        for index in range(room.layout.count(version.size))
        if room.store.is_proved(room.layout.key(version, index))
    ]


# -- small objects ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*Kind])
async def test_a_bit_turned_in_a_small_object_is_noticed_by_no_reader(kind: Kind, room: Engine) -> None:
    headers = () if kind is Kind.MD5 else checksum_headers(kind, SMALL)
    put(room, SMALL, *headers, etag=MD5 if kind is Kind.MD5 else '"v1"')
    await asked_before(room)
    room.origin.turned[REF] = Turned(offset=500, times=1)
    assert await read(room) == SMALL
    assert (mismatches(room), room.origin.count("GET")) == (1, 2)
    # The second fetch is by a Range, whose reply has no checksum, and no HEAD is sent for one that is no CRC.
    assert proved(room) == ([] if kind in (Kind.SHA1, Kind.SHA256) else [0])
    assert await read(room) == SMALL
    assert room.origin.count("GET") == 2


async def test_no_byte_of_a_wrong_small_body_reaches_a_reader(room: Engine) -> None:
    data = RAMP[:10_500]
    put(room, data)
    room.origin.turned[REF] = Turned(offset=10, times=1)
    assert await read(room) == data
    assert mismatches(room) == 1


async def test_the_last_bytes_of_a_wrong_body_reach_no_reader(room: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_verification, "_HELD_BYTES_MAX", 0)
    data, right = RAMP[:10_500], ObjectRef(REF.bucket, "right.bin")
    put(room, data, ref=right)
    assert await read(room, right) == data
    await room.store.drop(room.store.present())
    put(room, data)
    room.origin.turned[REF] = Turned(offset=10, times=1)
    answer = await room.reads.get(REF, {})
    came = bytearray()

    async def take() -> None:
        assert answer.body is not None
        async for piece in answer.body:
            came.extend(bytes_of(piece))

    with pytest.raises(ContentMismatch):
        await take()
    assert 0 < len(came) < len(data)
    await room.tasks.settle()
    assert len(room.store) == 0
    assert await read(room) == data


@pytest.mark.parametrize("kind", [Kind.MD5, Kind.CRC32])
async def test_a_small_object_that_never_matches_is_relayed_and_asked_about_again_after_a_while(
    kind: Kind, room: Engine, caplog: pytest.LogCaptureFixture
) -> None:
    headers = () if kind is Kind.MD5 else checksum_headers(kind, SMALL)
    put(room, SMALL, *headers, etag=MD5 if kind is Kind.MD5 else '"v1"')
    await asked_before(room)
    room.origin.turned[REF] = Turned(offset=500, times=-1)
    # The second body goes to the reader: the origin would give no other to a client of its own.
    assert len(await read(room)) == len(SMALL)
    assert mismatches(room) == 2
    gets = room.origin.count("GET")
    assert len(room.store) == 0
    for count in (1, 2):
        answer = await room.reads.get(REF, {})
        assert answer.cache is CacheStatus.MISS
        assert await taken(answer) != SMALL
        await room.tasks.settle()
        assert (room.origin.count("GET"), len(room.store), mismatches(room)) == (gets + count, 0, 2)
    assert room.metrics.value("outrider_uncached_reads_total", reason="content") >= 2
    events = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert {record.getMessage() for record in events} == {"content does not match the bucket"}
    assert [vars(record)["then"] for record in events] == ["fetched again", "relayed uncached"]
    assert {vars(record)["object"] for record in events} == {str(REF)}
    # Prefetch and warm-ups leave it alone, too.
    with pytest.raises(Exception, match="checksum"):
        await room.fills.opened(REF)
    room.origin.turned.clear()
    room.clock.advance(601)
    assert await read(room) == SMALL
    assert proved(room) == [0]


async def test_an_etag_that_is_no_md5_costs_one_object_a_second_fetch_and_claims_nothing(room: Engine) -> None:
    refs = [ObjectRef("train", f"{number}.bin") for number in range(20)]
    for ref in refs:
        put(room, SMALL, etag=f'"{md5(ref.key.encode()).hexdigest()}"', ref=ref)
    for ref in refs:
        assert await read(room, ref) == SMALL
    assert (room.origin.count("GET"), len(room.store)) == (21, 20)
    assert [proved(room, ref) for ref in refs] == [[]] * 20


async def test_no_reader_is_cut_by_an_etag_that_is_no_md5(room: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the size that is held back as a rule, too, the first body of a bucket is."""
    monkeypatch.setattr(content_verification, "_HELD_BYTES_MAX", 0)
    data, refs = RAMP[:10_500], [ObjectRef("train", f"{number}.bin") for number in range(5)]
    for ref in refs:
        put(room, data, etag=f'"{md5(ref.key.encode()).hexdigest()}"', ref=ref)
    assert await asyncio.gather(*(room.get(ref) for ref in refs)) == [data] * len(refs)
    await room.tasks.settle()
    assert [proved(room, ref) for ref in refs] == [[]] * len(refs)


@pytest.mark.parametrize(
    "headers",
    [(("x-amz-server-side-encryption", "aws:kms"),), (("x-amz-server-side-encryption-customer-algorithm", "AES256"),)],
)
async def test_an_etag_under_a_key_of_kms_or_of_the_client_is_not_compared(headers: Headers, room: Engine) -> None:
    put(room, SMALL, *headers, etag=f'"{md5(b"").hexdigest()}"')
    assert await read(room) == SMALL
    assert mismatches(room) == 0
    assert proved(room) == []


@pytest.mark.parametrize("kind", [Kind.MD5, Kind.CRC64NVME])
async def test_a_small_object_whose_end_is_read_first_is_compared_when_it_is_whole(kind: Kind, room: Engine) -> None:
    data = RAMP[: BLOCK - 10]
    put(room, data, *(() if kind is Kind.MD5 else checksum_headers(kind, data)))
    await room.reads.head(REF, {})
    room.origin.turned[REF] = Turned(offset=BLOCK - 20, times=1)
    # These bytes are out before the object is whole.
    assert await read(room, range=f"bytes={BLOCK - 100}-{BLOCK - 11}") != data[BLOCK - 100 :]
    assert (mismatches(room), len(room.store)) == (1, 0)
    assert await read(room, range=f"bytes={BLOCK - 100}-{BLOCK - 11}") == data[BLOCK - 100 :]
    assert proved(room) == [0]


# -- large objects ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", CRCS)
async def test_a_bit_turned_in_a_large_object_is_found_when_the_last_block_is_here(kind: Kind, room: Engine) -> None:
    put(room, LARGE, *checksum_headers(kind, LARGE), etag='"v1-3"')
    room.origin.turned[REF] = Turned(offset=2 * BLOCK + 5, times=1)
    # The reply has other bytes than the object, unless it is cut in time.
    assert await read_or_cut(room) != LARGE
    assert mismatches(room) == 1
    assert len(room.store) == 0
    assert await read(room) == LARGE
    assert proved(room) == [*range(BLOCKS)]
    assert room.metrics.value("outrider_store_verified_bytes") == room.store.used_bytes
    assert mismatches(room) == 1
    # One question for the checksum of the version, and none once it is known; one for the version after it was dropped.
    gets = room.origin.count("GET")
    assert await read(room) == LARGE
    assert room.origin.count("GET") == gets
    assert room.origin.count("HEAD") <= 2


async def test_a_large_object_that_does_not_match_twice_is_relayed(room: Engine) -> None:
    put(room, LARGE, *checksum_headers(Kind.CRC64NVME, LARGE), etag='"v1-3"')
    room.origin.turned[REF] = Turned(offset=2 * BLOCK + 5, times=-1)
    for _ in range(2):
        await read_or_cut(room)
    assert mismatches(room) == 2
    gets = room.origin.count("GET")
    assert len(await read(room)) == len(LARGE)
    assert len(room.store) == 0
    assert room.origin.count("GET") == gets + 1
    assert room.metrics.value("outrider_uncached_reads_total", reason="content") == 1


async def test_readers_under_way_of_a_condemned_object_are_cut(room: Engine) -> None:
    put(room, LARGE, *checksum_headers(Kind.CRC64NVME, LARGE), etag='"v1-3"')
    room.origin.turned[REF] = Turned(offset=5, times=1)
    last = BLOCKS - 1
    await read(room, range=f"bytes=0-{last * BLOCK - 1}")
    answer = await room.reads.get(REF, {})
    assert answer.body is not None
    pieces = aiter(answer.body)
    first = await anext(pieces)
    assert isinstance(first, FilePiece)
    # Another reader brings the last block.
    await read(room, range=f"bytes={last * BLOCK}-{last * BLOCK + 9}")
    assert mismatches(room) == 1
    # One of the disk's threads cuts the file. The kernel gives no more of it then.
    while os.fstat(first.fd).st_size:
        await room.store.disks[0].work.run(lambda: None)
    with pytest.raises(AssertionError, match="shorter"):
        bytes_of(first)
    with pytest.raises(ContentMismatch):
        await anext(pieces)
    await answer.body.aclose()
    # A reply that the fast path began before is cut as well, and one that began since is not.
    version = room.versions.stale(REF)
    assert await read(room) == LARGE
    version = room.versions.stale(REF)
    assert version is not None
    rest = room.layout.extent(1, len(LARGE))
    with pytest.raises(ContentMismatch):
        await anext(aiter(room.reads.resume(version, rest, 0)))
    resumed = room.reads.resume(version, rest, room.versions.changes)
    assert await anext(aiter(resumed))
    await resumed.aclose()


async def test_a_wrong_block_that_replaces_a_proved_one_goes_alone(room: Engine) -> None:
    put(room, LARGE, *checksum_headers(Kind.CRC64NVME, LARGE), etag='"v1-3"')
    assert await read(room) == LARGE
    version = room.versions.stale(REF)
    assert version is not None
    await room.store.drop([room.layout.key(version, 2)])
    room.origin.turned[REF] = Turned(offset=2 * BLOCK, times=1)
    its_range = f"bytes={2 * BLOCK}-{2 * BLOCK + 9}"
    assert await read_or_cut(room, range=its_range) != LARGE[2 * BLOCK : 2 * BLOCK + 10]
    assert mismatches(room) == 1
    assert len(room.store) == BLOCKS - 1
    assert await read(room) == LARGE
    assert proved(room) == [*range(BLOCKS)]


async def test_an_object_is_proved_whose_blocks_were_never_here_together(room: Engine) -> None:
    put(room, LARGE, *checksum_headers(Kind.CRC64NVME, LARGE), etag='"v1-3"')
    for index in range(BLOCKS):
        await read(room, range=f"bytes={index * BLOCK}-{index * BLOCK + 999}")
        version = room.versions.stale(REF)
        assert version is not None
        if index < BLOCKS - 1:
            await room.store.drop([room.layout.key(version, index)])
    assert proved(room) == [BLOCKS - 1]


async def test_blocks_are_read_again_where_the_bucket_has_another_kind_of_crc(room: Engine) -> None:
    put(room, LARGE, *checksum_headers(Kind.CRC32C, LARGE), etag='"v1-3"')
    assert await read(room) == LARGE
    assert proved(room) == [*range(BLOCKS)]
    scrubbed = room.metrics.value("outrider_scrubbed_blocks_total")
    assert 0 < scrubbed <= BLOCKS
    # From then on, blocks of this bucket are hashed so as they come.
    other = ObjectRef(REF.bucket, "b.tar")
    put(room, LARGE, *checksum_headers(Kind.CRC32C, LARGE), etag='"v2-3"', ref=other)
    assert await read(room, other) == LARGE
    assert proved(room, other) == [*range(BLOCKS)]
    assert room.metrics.value("outrider_scrubbed_blocks_total") == scrubbed


@pytest.mark.parametrize(
    "headers",
    [(), checksum_headers(Kind.CRC32, LARGE, is_full=False), *COMPOSITES, checksum_headers(Kind.SHA256, LARGE)],
    ids=["no checksum", "composite", "no suffix", "no type", "no suffix and no type", "no CRC"],
)
async def test_nothing_is_claimed_where_the_bucket_gives_nothing_that_can_be_compared(
    headers: Headers, room: Engine
) -> None:
    refs = [ObjectRef("train", f"{number}.tar") for number in range(8)]
    for ref in refs:
        put(room, LARGE, *headers, etag=f'"{ref.key}-3"', ref=ref)
        assert await read(room, ref) == LARGE
    assert (mismatches(room), room.store.proved_bytes) == (0, 0)
    # The folder is left alone after three questions in vain.
    assert room.origin.count("HEAD") == 3
    assert room.contents.questions.is_silent(refs[0])
    assert not room.contents.questions.is_silent(ObjectRef("train", "elsewhere/0.tar"))


@pytest.mark.parametrize("headers", COMPOSITES, ids=["no suffix", "no type", "neither"])
async def test_a_checksum_of_parts_cuts_no_reader_of_ranges_however_late_it_comes(
    headers: Headers, room: Engine
) -> None:
    put(room, LARGE, *headers, etag='"v1-3"')
    gate = asyncio.Event()
    room.origin.faults.append(Fault(method="HEAD", times=None, gate=gate))
    for index in range(BLOCKS):
        stop = min(len(LARGE), (index + 1) * BLOCK)
        assert await room.get(REF, range=f"bytes={index * BLOCK}-{stop - 1}") == LARGE[index * BLOCK : stop]
    answer = await room.reads.get(REF, {})
    gate.set()
    await room.tasks.settle()
    assert room.origin.count("HEAD") == 1
    assert await taken(answer) == LARGE
    assert (mismatches(room), len(room.store), proved(room)) == (0, BLOCKS, [])


@pytest.mark.parametrize("headers", COMPOSITES, ids=["no suffix", "no type", "neither"])
async def test_a_checksum_of_parts_proves_nothing_of_a_small_object(headers: Headers, room: Engine) -> None:
    put(room, SMALL, *headers, etag='"v1-3"')
    await asked_before(room)
    assert await read(room) == SMALL
    assert (mismatches(room), room.origin.count("GET"), proved(room)) == (0, 1, [])


async def test_an_object_that_was_overwritten_meanwhile_proves_nothing(room: Engine) -> None:
    put(room, LARGE, etag='"v1-3"')
    await read(room, range=f"bytes=0-{2 * BLOCK - 1}")
    room.origin.faults.append(Fault(method="GET", times=0))
    put(room, bytes(len(LARGE)), *checksum_headers(Kind.CRC64NVME, bytes(len(LARGE))), etag='"v2-3"')
    await read(room, range=f"bytes={2 * BLOCK}-{2 * BLOCK + 9}")
    assert mismatches(room) == 0
    assert await read(room) == bytes(len(LARGE))
    assert (mismatches(room), proved(room)) == (0, [*range(BLOCKS)])


async def test_a_head_that_fails_is_asked_again_and_costs_no_reader_anything(room: Engine) -> None:
    put(room, LARGE, *checksum_headers(Kind.CRC64NVME, LARGE), etag='"v1-3"')
    room.origin.faults.append(Fault(method="HEAD", times=12, refuse=True))
    assert await read(room) == LARGE
    assert proved(room) == [*range(BLOCKS)]
    room.origin.faults.append(Fault(method="HEAD", times=None, status=400))
    put(room, LARGE, etag='"v2-3"', ref=ObjectRef("train", "b.tar"))
    assert await read(room, ObjectRef("train", "b.tar")) == LARGE
    assert proved(room, ObjectRef("train", "b.tar")) == []


async def test_off_nothing_is_asked_and_nothing_claimed(tmp_path: Path) -> None:
    with engine(tmp_path / "c", verify_origin=False) as room:
        put(room, LARGE, *checksum_headers(Kind.CRC64NVME, LARGE), etag='"v1-3"')
        room.origin.turned[REF] = Turned(offset=5, times=1)
        assert await read(room) != LARGE
        assert room.origin.count("HEAD") == 0
        assert (mismatches(room), proved(room)) == (0, [])


# -- over a stop and a start ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clean", [True, False], ids=["snapshot", "scan"])
async def test_a_start_knows_what_was_proved_or_proves_it_anew(clean: bool, tmp_path: Path) -> None:
    small, alone = ObjectRef("train", "small.bin"), ObjectRef("train", "later.tar")
    origin = FakeOrigin()
    with engine(tmp_path / "c", origin, verify_origin=True, sleep=_at_once) as room:
        put(room, LARGE, *checksum_headers(Kind.CRC64NVME, LARGE), etag='"v1-3"')
        put(room, LARGE, *checksum_headers(Kind.CRC64NVME, LARGE), etag='"v2-3"', ref=alone)
        put(room, SMALL, ref=small)
        await read(room)
        await read(room, small)
        await read(room, alone, range=f"bytes=0-{3 * BLOCK}")
        was = room.store.proved_bytes
        assert was > 0
        if clean:
            recovery = Recovery(room.store, room.versions)
            await recovery.index()
            await recovery.save()
    with engine(
        tmp_path / "c", origin, directory=BlockDir.open(tmp_path / "c"), verify_origin=True, sleep=_at_once
    ) as room:
        await Recovery(room.store, room.versions).index()
        heads = origin.count("HEAD")
        assert room.store.proved_bytes == (was if clean else 0)
        # The scrubber comes by.
        for block in room.store.present():
            await room.store.verify(block, again=False)
        await room.tasks.settle()
        assert room.store.proved_bytes == was
        if clean:
            # One for the object that is not whole.
            assert origin.count("HEAD") <= heads + 1
        # The rest of the object comes, and its first blocks need not come again.
        gets = origin.count("GET")
        assert await read(room, alone) == LARGE
        assert proved(room, alone) == [*range(BLOCKS)]
        assert origin.count("GET") == gets + 1
