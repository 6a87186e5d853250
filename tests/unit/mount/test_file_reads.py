"""Reads of a mounted file: which requests they cost, and that they never mix versions."""

from __future__ import annotations

import asyncio
import errno
import struct
from typing import TYPE_CHECKING

from outrider.mount.messages import Op
from outrider.mount.nodes import ROOT
from outrider.mount.reads import STREAM_BYTES

if TYPE_CHECKING:
    pass
from tests.unit.mount.kernel import MIB, TUESDAY_S, Answer, World, attributes_of

FLUSH = 25


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


async def test_a_list_and_a_head_state_the_same_time(world: World) -> None:
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
