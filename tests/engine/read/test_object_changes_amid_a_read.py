"""An object that is overwritten before or during a GET: no answer mixes two versions."""

from __future__ import annotations

import asyncio

import pytest

from outrider.core.errors import VersionChanged
from outrider.engine.fill.refused import OriginRefused
from outrider.engine.read.body_pieces import Body
from outrider.engine.read.version_answers import NotCacheable
from tests.engine.read.five_blocks import DATA, OTHER, SIZE
from tests.support.engine import BLOCK, REF, Engine, pieces_of
from tests.support.fakes import Fault

pytestmark = pytest.mark.one_python


async def test_a_version_that_changed_before_the_first_byte_makes_the_read_begin_again(room: Engine) -> None:
    await room.range(0, 10)
    await room.tasks.settle()
    room.origin.put(REF, OTHER)
    # The version is fresh by its ttl, but the block is not cached, and its fill finds that the version is gone.
    assert await room.range(3 * BLOCK, SIZE) == OTHER[3 * BLOCK :]
    assert await room.get() == OTHER


async def test_a_version_that_changes_after_the_first_byte_cuts_the_answer(room: Engine) -> None:
    await room.range(0, 10)
    await room.tasks.settle()
    answer = await room.reads.get(REF, {})
    assert answer.body is not None
    got = bytearray()
    room.origin.put(REF, OTHER)

    async def take(body: Body) -> None:
        async for piece in pieces_of(body):
            got.extend(piece)

    with pytest.raises(VersionChanged):
        await take(answer.body)
    assert DATA.startswith(bytes(got))
    assert len(got) < SIZE
    assert await room.get() == OTHER  # cached old blocks that are fresh by the ttl do not cut it again
    await room.tasks.settle()


@pytest.mark.parametrize("heeds_if_match", [True, False])
async def test_a_resumed_body_never_mixes_two_versions(heeds_if_match: bool, room: Engine) -> None:
    room.origin.ignore_if_match = not heeds_if_match
    gate = asyncio.Event()
    room.origin.faults = [Fault(break_after=9_000, body_gate=gate, gate_after=8_000)]
    read = asyncio.create_task(room.range(0, BLOCK))
    while room.origin.body_bytes < 8_000:
        await asyncio.sleep(0)
    room.origin.put(REF, OTHER)
    gate.set()
    with pytest.raises(VersionChanged):
        await read
    await room.tasks.settle()
    assert len(room.store) == 0


async def test_an_object_that_changes_at_each_try_is_forwarded(room: Engine) -> None:
    await room.range(0, 10)
    await room.tasks.settle()
    room.origin.faults = [Fault(times=None, method="GET", status=412)]
    with pytest.raises((NotCacheable, OriginRefused)):
        await room.range(3 * BLOCK, SIZE)
    await room.tasks.settle()
