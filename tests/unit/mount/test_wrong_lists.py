"""LISTs that are late or wrong: what a mount believes of them, and for how long."""

from __future__ import annotations

import asyncio
import errno
import struct
from typing import TYPE_CHECKING

import pytest

from outrider.core.model import ObjectRef
from outrider.mount.messages import READ, Op
from outrider.mount.reads import STREAM_BYTES
from tests.support.fakes import Fault

if TYPE_CHECKING:
    pass
from tests.unit.mount.kernel import MIB, MODIFIED, World

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
async def test_a_size_that_only_a_list_stated_is_settled_before_the_kernel_uses_it(size: int, world: World) -> None:
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


async def test_a_file_that_is_longer_than_a_believed_list_stated_is_read_to_its_end(world: World) -> None:
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


async def test_a_file_that_is_shorter_than_a_believed_list_stated_is_another_file(world: World) -> None:
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
