"""The lookup of hits: which reads need no request to the origin, and for how long a version is current."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from outrider.core.model import BlockKey, Extent, ObjectRef
from outrider.engine.read.hit_lookup import HitLookup
from outrider.engine.read.version_cache import Known
from tests.support.engine import BLOCK, REF, Engine, engine, slot_of
from tests.support.fakes import RAMP

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OTHER = ObjectRef("train", "b.tar")
DATA = RAMP[: 3 * BLOCK + 5]


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Engine]:
    with engine(tmp_path, catalog_entries=2) as made:
        made.origin.put(REF, DATA)
        made.origin.put(OTHER, DATA)
        yield made


def hits_of(room: Engine) -> HitLookup:
    return HitLookup(room.layout, room.versions, room.store, room.clock)


async def known(room: Engine) -> Known:
    found = hits_of(room).known(REF)
    assert found is not None
    return found


async def read(room: Engine, times: int = 2) -> None:
    for _ in range(times):
        assert await room.get() == DATA
        await room.tasks.settle()


async def test_pieces_are_the_requested_bytes_of_the_right_files(room: Engine) -> None:
    await read(room)
    found = await known(room)
    for start, stop in ((0, 5), (BLOCK - 1, BLOCK + 1), (BLOCK, 2 * BLOCK), (5, len(DATA)), (3 * BLOCK, len(DATA))):
        for at_most in (1, BLOCK, BLOCK + 1, len(DATA)):
            pieces = hits_of(room).pieces(found, Extent(start, stop), at_most)
            assert pieces is not None
            got = b"".join(os.pread(fd, count, offset) for _, fd, offset, count in pieces)
            assert got == DATA[start : min(stop, start + at_most)]
            for lease, *_ in pieces:
                lease.release()


async def test_an_open_file_has_the_requested_bytes_of_one_block(room: Engine) -> None:
    await read(room)
    found = await known(room)
    for start, stop in ((0, 5), (BLOCK - 1, BLOCK), (BLOCK, 2 * BLOCK), (BLOCK + 5, BLOCK + 7)):
        opened = hits_of(room).open_file(found, room.clock(), start, stop)
        assert opened is not None
        file, offset = opened
        assert os.pread(file.fd, stop - start, offset) == DATA[start:stop]
    for start, stop in ((BLOCK - 1, BLOCK + 1), (0, 2 * BLOCK), (0, BLOCK + 1)):
        assert hits_of(room).open_file(found, room.clock(), start, stop) is None


async def test_an_open_file_of_a_version_that_is_not_current_is_not_given(room: Engine) -> None:
    await read(room)
    found, hits = await known(room), hits_of(room)
    assert hits.open_file(found, found.until - 1, 0, 5) is not None
    assert hits.open_file(found, found.until, 0, 5) is None
    room.versions.forget(REF)
    assert hits.open_file(found, found.until - 1, 0, 5) is None


async def test_pages_are_read_in_for_an_extent_within_one_cached_block(room: Engine) -> None:
    await read(room)
    found, hits = await known(room), hits_of(room)
    for start, stop, brought in (
        (0, BLOCK, True), (BLOCK - 1, BLOCK, True), (BLOCK + 5, 2 * BLOCK, True), (BLOCK - 1, BLOCK + 1, False),
        (0, 2 * BLOCK, False),
    ):  # fmt: skip
        assert (hits.page_in(found, Extent(start, stop)) is not None) == brought, (start, stop)
    await room.store.drop(room.store.present())
    assert hits.page_in(found, Extent(0, BLOCK)) is None


async def test_a_block_that_was_not_verified_is_made_ready_for_an_extent_within_it(room: Engine) -> None:
    await read(room)
    found, hits = await known(room), hits_of(room)
    assert hits.prepare(found, Extent(0, BLOCK)) is False, "it is ready"
    slots = [slot_of(room.store, BlockKey(found.version_id, index)) for index in range(4)]
    for slot in slots:
        slot.verified = False
    assert hits.prepare(found, Extent(BLOCK - 1, BLOCK + 1)) is False
    assert hits.prepare(found, Extent(BLOCK + 5, 2 * BLOCK)) is True
    assert [slot.verified for slot in slots] == [False, True, False, False]
    room.store.disks[0].directory.can_probe_memory = False
    prepare = hits.prepare(found, Extent(0, 5))
    assert not isinstance(prepare, bool)
    await prepare()
    assert [slot.verified for slot in slots] == [True, True, False, False]


async def test_a_block_of_a_remote_disk_is_not_lent(room: Engine) -> None:
    for is_remote in (False, True):
        room.store.disks[0].directory.is_remote = is_remote
        await room.store.drop(room.store.present())
        await read(room)
        found, hits = await known(room), hits_of(room)
        for lent in (hits.lend_at_once(found, 0), await hits.lend(found, 0)):
            assert (lent is None) is is_remote
            if lent is not None:
                lent.lease.release()


async def test_a_read_is_no_hit_if_a_block_is_missing_or_not_open(room: Engine) -> None:
    assert hits_of(room).known(REF) is None
    assert await room.range(0, 10) == DATA[:10]
    await room.tasks.settle()
    found = await known(room)
    assert hits_of(room).pieces(found, Extent(0, BLOCK + 1), 1) is None, "the second block is missing"
    assert hits_of(room).pieces(found, Extent(BLOCK, BLOCK + 1), 1) is None
    assert await room.range(0, 10) == DATA[:10]
    assert hits_of(room).pieces(found, Extent(0, BLOCK), 1) is not None


async def test_a_known_version_is_current_until_its_ttl_a_write_or_another_version(room: Engine) -> None:
    hits = hits_of(room)
    await read(room)
    found = await known(room)
    assert hits.is_current(found)
    room.clock.advance(59.9)
    assert hits.is_current(found)
    room.clock.advance(0.1)
    assert not hits.is_current(found)
    assert hits.known(REF) is None
    await read(room, 1)
    found = await known(room)
    room.versions.forget(REF)
    assert not hits.is_current(found)
    await read(room, 1)
    found = await known(room)
    room.versions.forget_bucket(REF.bucket)
    assert not hits.is_current(found)
    await read(room, 1)
    found = await known(room)
    room.versions.gone(REF)
    assert not hits.is_current(found)


async def test_a_version_that_fell_out_of_the_cache_is_not_current(room: Engine) -> None:
    hits = hits_of(room)
    await read(room)
    found = await known(room)
    for key in ("x", "y"):
        ref = ObjectRef("train", key)
        room.origin.put(ref, b"1")
        await room.get(ref)
    assert not hits.is_current(found)
    assert hits.known(REF) is None
    assert len(room.versions) == 2
