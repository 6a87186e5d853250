"""A client that leaves before its answer ends disturbs no other and leaves nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from outrider.core.errors import ServiceUnavailable
from tests.engine.read.five_blocks import DATA
from tests.support.engine import BLOCK, REF, Engine, nothing_is_left
from tests.support.fakes import Fault

pytestmark = pytest.mark.one_python


async def test_a_reader_that_leaves_disturbs_no_other(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(gate=gate)]
    leader, follower = (asyncio.create_task(room.get()) for _ in range(2))
    while not room.origin.log:
        await asyncio.sleep(0)
    leader.cancel()
    await asyncio.wait([leader])
    assert not follower.done()
    gate.set()
    assert await follower == DATA
    assert leader.cancelled()


@pytest.mark.parametrize("after", [0, 1, 8_000])
async def test_a_fill_goes_on_when_all_readers_left_in_mid_body(after: int, room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults = [Fault(body_gate=gate, gate_after=after)]
    readers = [asyncio.create_task(room.range(at, BLOCK)) for at in (0, 100, BLOCK - 5)]
    while room.origin.body_bytes < after or not room.origin.log:
        await asyncio.sleep(0)
    for reader in readers:
        reader.cancel()
    await asyncio.wait(readers)
    assert all(reader.cancelled() for reader in readers)
    gate.set()
    await room.tasks.settle()
    assert await room.range(0, BLOCK) == DATA[:BLOCK]
    assert room.origin.count() == 1


async def test_an_answer_that_is_never_read_gives_its_file_back(room: Engine) -> None:
    await room.get()
    await room.tasks.settle()
    answer = await room.reads.get(REF, {})
    assert answer.body is not None
    await answer.body.aclose()
    answer = await room.reads.get(REF, {})
    assert answer.body is not None
    await anext(aiter(answer.body))
    await answer.body.aclose()
    await nothing_is_left(room)


async def test_the_proxy_stopping_ends_every_wait_with_an_answer(room: Engine) -> None:
    room.origin.faults = [Fault(times=None, gate=asyncio.Event())]
    reads = [asyncio.create_task(room.get()) for _ in range(3)]
    while not room.origin.log:
        await asyncio.sleep(0)
    await room.tasks.cancel()
    for read in reads:
        with pytest.raises(ServiceUnavailable):
            await read
