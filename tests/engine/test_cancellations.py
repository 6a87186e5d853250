"""Whoever is cancelled, at whichever of his waits: nobody else notices, and nothing is left of him."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

import pytest

from outrider.core.model import ObjectRef
from outrider.core.payload import UNSIGNED
from outrider.core.s3wire import classify
from outrider.engine.prefetch import Mode
from outrider.engine.uploads import upload_of
from tests.support.engine import BLOCK, REF, Engine, engine, taken
from tests.support.fakes import AtOnce, FakeOrigin, Fault, ramp
from tests.support.trials import SCALE, Trials

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

DATA = ramp(3 * BLOCK + 5)
OTHER, OTHER_DATA = ObjectRef("train", "b.tar"), ramp(2 * BLOCK, start=9)
NEW = ramp(1000, start=77)
# More waits than this no act here has.
WAITS_MAX = 2000


async def reads(room: Engine) -> None:
    assert await room.get() == DATA


async def reads_the_middle(room: Engine) -> None:
    assert await room.range(BLOCK // 2, 2 * BLOCK) == DATA[BLOCK // 2 : 2 * BLOCK]


async def reads_with_checksums(room: Engine) -> None:
    assert await taken(await room.reads.get(REF, {"x-amz-checksum-mode": "ENABLED"})) == DATA


async def asks_for_the_head(room: Engine) -> None:
    assert (await room.reads.head(REF, {})).length == len(DATA)


async def writes(room: Engine) -> None:
    async def body() -> AsyncIterator[bytes]:
        yield NEW

    upload = upload_of((), UNSIGNED, None, body(), len(NEW))
    answer = await room.forwards.send(classify("PUT", "/train/new", ()), (), upload)
    await answer.body.aclose()


@contextlib.contextmanager
def room_of(root: Path, capacity_bytes: int, *, ahead: bool) -> Iterator[Engine]:
    origin = FakeOrigin(chunk_bytes=30_000)
    origin.put(REF, DATA)
    origin.put(OTHER, OTHER_DATA)
    policy, mode = ("epoch", Mode.EPOCH) if ahead else ("lru", Mode.OFF)
    with engine(root, origin, capacity_bytes=capacity_bytes, policy=policy, prefetch=mode, fills_max=2) as room:
        room.store._threads.shutdown()
        room.store._threads = AtOnce()
        yield room


def open_files(root: Path) -> list[str]:
    targets = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if fd.isdigit()
               and os.path.islink(f"/proc/self/fd/{fd}")]  # fmt: skip
    return [target for target in targets if target.startswith(str(root))]


ROOMS = {
    "room for all": (16 * BLOCK, None),
    "room for little": (2 * (BLOCK + 4096), None),
    "no room": (0, None),
    "bodies that break": (16 * BLOCK, Fault(3, "GET", break_after=40_000)),
    "an origin that is busy": (16 * BLOCK, Fault(2, status=503)),
}


ACTS = (reads, reads_the_middle, reads_with_checksums, asks_for_the_head, writes)
# All of them together in the long form.
CASES = [
    (act, kind, warm, ahead)
    for act in ACTS
    for kind in ROOMS
    for warm in (False, True)
    for ahead in (False, True)
    if SCALE > 1
    or not (warm or ahead)
    or (act is reads and not (warm and ahead) and kind in ("room for all", "no room"))
]


@pytest.mark.parametrize(("act", "kind", "warm", "ahead"), CASES)
async def test_a_cancellation_at_any_wait_is_nobody_elses(
    act: Callable[[Engine], Awaitable[None]], kind: str, warm: bool, ahead: bool, tmp_path: Path, trials: Trials
) -> None:
    capacity_bytes, fault = ROOMS[kind]
    for waits in range(WAITS_MAX):
        root = tmp_path / str(waits)
        with room_of(root, capacity_bytes, ahead=ahead) as room:
            if warm:
                assert await room.get(OTHER) == OTHER_DATA
                assert await room.get() == DATA
                await room.tasks.settle()
            if fault is not None:
                room.origin.faults = [Fault(fault.times, fault.method, status=fault.status,
                                            break_after=fault.break_after)]  # fmt: skip
            victim, beside = asyncio.ensure_future(act(room)), asyncio.ensure_future(reads(room))
            for _ in range(waits):
                await asyncio.sleep(0)
            ended = not victim.cancel()
            await beside
            with contextlib.suppress(asyncio.CancelledError):
                await victim
            await room.tasks.settle()
            assert len(room.flights) == 0
            assert room.origin.under_way == 0
            assert not any(room.turns._held.values())
            assert room.store.leases() == 0
            slots = room.store._slots.values()
            assert not any(slot.in_use for slot in slots)
            assert room.store.used_bytes == sum(slot.disk_bytes for slot in slots) <= capacity_bytes
            assert list((root / "tmp").iterdir()) == []
            assert await room.get() == DATA
            await room.tasks.settle()
            if ended:
                break
        assert open_files(root) == []
    else:
        raise AssertionError("it never ends")
    trials.record("order", f"cancelled at each of its waits, {kind}", "the right bytes", times=waits + 1)
