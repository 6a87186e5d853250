"""Failures of the proxy, readers that are killed, and errors of calls of a mount."""

from __future__ import annotations

import asyncio
import errno
import struct
from typing import TYPE_CHECKING

import pytest

from outrider.mount.messages import READ, Op
from outrider.mount.nodes import ROOT
from tests.support.fakes import Fault

if TYPE_CHECKING:
    pass
from tests.unit.mount.kernel import MIB, World, mounted


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


async def test_the_kernel_learns_of_the_version_and_of_large_reads(world: World) -> None:
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


async def test_why_calls_fail_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture, world: World) -> None:
    world.proxy.faults = [Fault(status=404, times=None)]
    for after_s, lines in ((0, 1), (59, 1), (1, 2)):
        world.clock.advance(after_s)
        assert (await world.kernel.ask(Op.OPENDIR, ROOT, bytes(8))).error == errno.EIO
        logged = [record for record in caplog.records if record.levelname == "WARNING"]
        assert len(logged) == lines
    assert "there is no bucket pets" in logged[0].__dict__["error"]


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
