"""The names of a mounted bucket: lookups, directories, and how long they are believed."""

from __future__ import annotations

import asyncio
import errno
import struct
from typing import TYPE_CHECKING

import pytest

from outrider.core.model import ObjectRef
from outrider.mount.messages import Op
from outrider.mount.nodes import ROOT
from tests.support.fakes import Fault

if TYPE_CHECKING:
    pass
from tests.unit.mount.kernel import TUESDAY_S, World, entry_of, mounted


async def test_a_name_is_found_and_then_believed(world: World) -> None:
    world.put("train/cat.jpg")
    entry = await world.kernel.found("cat.jpg")
    assert (entry.size, entry.is_directory, entry.valid_s) == (5, False, 60.0)
    assert entry.attributes_valid_s == 0.0, "only a LIST has stated them"
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
    assert not await world.kernel.knows(known[1]), "the kernel got it twice"
