"""A request that is cancelled at any of its waits disturbs no other request and leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from outrider.core.errors import S3Error, Signal
from outrider.core.maintenance.object_list import ObjectList
from outrider.core.maintenance.progress import State
from outrider.core.model import ObjectRef
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.core.s3.operation import classify
from outrider.engine.ahead.prefetch import Mode
from outrider.engine.maintenance.warmup import Warmup
from outrider.engine.write.upload import upload_of
from tests.support.child import open_below
from tests.support.engine import (
    BLOCK,
    REF,
    Engine,
    as_large,
    as_small,
    by_threads,
    engine,
    nothing_is_left,
    taken,
)
from tests.support.event_loops import SeededLoop, SeededThreads
from tests.support.fakes import FakeOrigin, Fault, ramp
from tests.support.trials import SCALE, Trials

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
    from pathlib import Path

pytestmark = pytest.mark.one_python

DATA = ramp(3 * BLOCK + 5)
OTHER, OTHER_DATA = ObjectRef("train", "b.tar"), ramp(2 * BLOCK, start=9)
NEW = ramp(1000, start=77)
# No act in these tests has more waits than this.
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
    answer = await room.passthrough.send(classify("PUT", "/train/new", ()), (), upload)
    await answer.body.aclose()


@contextlib.contextmanager
def room_of(
    root: Path, capacity_bytes: int, buffer_bytes: Callable[[int], int], *, ahead: bool,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> Iterator[Engine]:  # fmt: skip
    origin = FakeOrigin(chunk_bytes=30_000)
    origin.put(REF, DATA)
    origin.put(OTHER, OTHER_DATA)
    policy, mode = ("epoch", Mode.EPOCH) if ahead else ("lru", Mode.OFF)
    with engine(
        root, origin, capacity_bytes=capacity_bytes, policy=policy, prefetch=mode, fills_max=2,
        buffer_bytes=buffer_bytes, sleep=sleep,
    ) as room:  # fmt: skip
        room.store.disks[0].work.threads.shutdown()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        room.store.disks[0].work.threads = SeededThreads(loop)
        yield room


ROOMS = {
    "room for all": (16 * BLOCK, None),
    "room for little": (2 * (BLOCK + 4096), None),
    "no room": (0, None),
    "bodies that break": (16 * BLOCK, Fault(3, "GET", break_after=40_000)),
    "an origin that is busy": (16 * BLOCK, Fault(2, status=503)),
}


ACTS = (reads, reads_the_middle, reads_with_checksums, asks_for_the_head, writes)
# The short form has a read in each room, and each other act in two. The long form tests all of them together.
TWO_ROOMS = {
    reads_the_middle: ("room for little", "bodies that break"),
    reads_with_checksums: ("no room", "bodies that break"),
    asks_for_the_head: ("room for all", "an origin that is busy"),
    writes: ("room for all", "an origin that is busy"),
}
CASES = [
    (act, kind, warm, ahead)
    for act in ACTS
    for kind in ROOMS
    for warm in (False, True)
    for ahead in (False, True)
    if SCALE > 1
    or (not (warm or ahead) and kind in TWO_ROOMS.get(act, ROOMS))
    or (act is reads and not (warm and ahead) and kind in ("room for all", "no room"))
]
WAYS = (as_large, as_small, by_threads)
# The short form takes one of the three ways to receive for each case, in turn.
RECEIVED = [
    (*case, buffer_bytes)
    for number, case in enumerate(CASES)
    for turn, buffer_bytes in enumerate(WAYS)
    if SCALE > 1 or (number + turn) % 3 == 0
]


def at_each_wait(tmp_path: Path, attempt: Callable[[Path, int], Coroutine[Any, Any, bool]]) -> int:
    """Repeat the attempt with one wait more each time, until it returns that there were no more. Returns the number of
    attempts."""
    for waits in range(WAITS_MAX):
        root = tmp_path / str(waits)
        with asyncio.Runner(loop_factory=partial(SeededLoop, waits)) as runner:
            over = runner.run(attempt(root, waits))
        assert open_below(root) == []
        shutil.rmtree(root)
        if over:
            return waits + 1
    raise AssertionError("it never ends")


async def prepare(room: Engine, fault: Fault | None, *, warm: bool) -> None:
    if warm:
        assert await room.get(OTHER) == OTHER_DATA
        assert await room.get() == DATA
        await room.tasks.settle()
    if fault is not None:
        room.origin.faults = [replace(fault)]


async def settled(room: Engine) -> None:
    await room.tasks.settle()
    assert room.origin.under_way == 0
    await nothing_is_left(room)
    on_disk = {path.name for path in room.store.disks[0].directory.root.glob("v2/*/*")}
    assert len(on_disk) == len(room.store), "a block that no index knows"
    room.origin.faults = []
    assert await room.get() == DATA
    await room.tasks.settle()


@pytest.mark.parametrize(("act", "kind", "warm", "ahead", "buffer_bytes"), RECEIVED)
def test_a_cancellation_at_any_wait_disturbs_no_other_request(
    act: Callable[[Engine], Coroutine[Any, Any, None]], kind: str, warm: bool, ahead: bool,
    buffer_bytes: Callable[[int], int], tmp_path: Path, trials: Trials,
) -> None:  # fmt: skip
    capacity_bytes, fault = ROOMS[kind]

    async def attempt(root: Path, waits: int) -> bool:
        with room_of(root, capacity_bytes, buffer_bytes, ahead=ahead) as room:
            await prepare(room, fault, warm=warm)
            victim, beside = asyncio.ensure_future(act(room)), asyncio.ensure_future(reads(room))
            for _ in range(waits):
                await asyncio.sleep(0)
            ended = not victim.cancel()
            await beside
            with contextlib.suppress(asyncio.CancelledError):
                await victim
            await settled(room)
            assert list((root / "tmp").iterdir()) == []
            return ended

    times = at_each_wait(tmp_path, attempt)
    trials.record("order", f"cancelled at each of its waits, {kind}", "the right bytes", times=times)


@pytest.mark.parametrize(
    ("kind", "buffer_bytes"),
    [(kind, way) for number, kind in enumerate(ROOMS) for way in (WAYS if SCALE > 1 else [WAYS[number % 3]])],
)
def test_a_stop_of_the_background_at_any_wait_leaves_nothing_behind(
    kind: str, buffer_bytes: Callable[[int], int], tmp_path: Path, trials: Trials
) -> None:
    """Readers get the right bytes past the cache, or an error that says that the proxy is stopping."""
    capacity_bytes, fault = ROOMS[kind]

    async def attempt(root: Path, waits: int) -> bool:
        with room_of(root, capacity_bytes, buffer_bytes, ahead=True) as room:
            await prepare(room, fault, warm=False)
            readers = [asyncio.ensure_future(act(room)) for act in (reads, reads_the_middle)]
            for _ in range(waits):
                await asyncio.sleep(0)
            over = all(reader.done() for reader in readers)
            await room.tasks.cancel()
            for ended in await asyncio.gather(*readers, return_exceptions=True):
                assert ended is None or isinstance(ended, S3Error | Signal), repr(ended)
            await settled(room)
            return over

    times = at_each_wait(tmp_path, attempt)
    trials.record("order", f"the background cancelled at each wait, {kind}", "the right bytes, or 503", times=times)


@pytest.mark.parametrize("buffer_bytes", WAYS if SCALE > 1 else [as_small])
def test_a_stop_at_any_wait_of_a_warm_up_ends_it(buffer_bytes: Callable[[int], int], tmp_path: Path) -> None:
    """The warm-up's fills end in the same moment. The warm-up must not take that for a failure, and retry."""

    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    async def attempt(root: Path, waits: int) -> bool:
        with room_of(root, 16 * BLOCK, buffer_bytes, ahead=False, sleep=sleep) as room:
            now = room.clock()
            wanted = ObjectList((REF, OTHER), ())
            warm_up = Warmup("", "", "all", b"", now, wanted, lambda _: True, now, 0.0)
            room.warmup_runner.begin(warm_up)
            for _ in range(waits):
                await asyncio.sleep(0)
            over = not warm_up.running
            await room.tasks.cancel()
            assert not pauses, "the warm-up must not retry"
            assert warm_up.progress.state is (State.DONE if over else State.CANCELLED)
            await settled(room)
            return over

    at_each_wait(tmp_path, attempt)
