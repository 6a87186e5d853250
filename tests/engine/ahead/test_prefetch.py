"""Prefetch, carried out: wanted blocks are fetched once, behind all demand, and within the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from outrider.core.ahead.hint_messages import PlanProgress
from outrider.core.ahead.hints import Hint
from outrider.core.ahead.order.torch_sampler import Draw, order_at_once
from outrider.core.ahead.prefetch_candidates import Want
from outrider.core.cluster.messages import BegunRead, ReadsNotice
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.engine.ahead.prefetch import Mode
from outrider.engine.fill.fill_scheduler import READS_ON_S, FillSlot, Purpose
from tests.support.engine import BLOCK, Engine, engine, taken
from tests.support.fakes import FakeOrigin, Fault, no_patience_ends, ramp

CLIENT = "10.0.0.1"
COUNT = 12
REFS = [ObjectRef("train", f"shard-{number:06d}.tar") for number in range(COUNT)]
BODIES = {ref: ramp(2 * BLOCK, number) for number, ref in enumerate(REFS)}
OTHER = ObjectRef("other", "apart")
Making = Callable[..., AbstractContextManager[Engine]]


@pytest.fixture
def making(tmp_path: Path) -> Making:
    origin = FakeOrigin(chunk_bytes=10_000)
    for ref, body in BODIES.items():
        origin.put(ref, body)
    origin.put(OTHER, ramp(BLOCK, 77))
    return partial(engine, tmp_path / "c", origin, policy="epoch")


@pytest.fixture
def room(making: Making) -> Iterator[Engine]:
    with making() as room:
        yield room


def sizes_known(room: Engine) -> None:
    """Without known sizes, one object would be fetched first, to learn the size of the others."""
    room.planner.discovery.listed(REFS[0].bucket, [(ref.key, BLOCK) for ref in REFS])


def announce(room: Engine, refs: list[ObjectRef] = REFS) -> None:
    room.prefetch.announce(CLIENT, refs, start=0, total=len(refs))


async def read(room: Engine, ref: ObjectRef) -> str:
    """Read as the server does, and return the answer's `x-cache`."""
    answer = await room.reads.get(
        ref, {}, lambda version, extent: room.prefetch.requested(CLIENT, version, extent, checksums=False)
    )
    assert await taken(answer) == BODIES.get(ref, ramp(BLOCK, 77))
    room.prefetch.sent(CLIENT, ref)
    return answer.cache.value


async def test_reads_of_all_clients_are_reported_in_any_mode(making: Making) -> None:
    """Those that the engine served, hits that it did not serve, and those at other members."""
    read_by: list[tuple[str, ObjectRef, bool]] = []
    with making(policy="lru", prefetch=Mode.OFF) as room:
        room.prefetch.on_read = lambda client, ref, version: read_by.append((client, ref, version is not None))
        await read(room, REFS[0])
        version = ObjectVersion(REFS[1], '"e"', BLOCK)
        room.prefetch.note("noted", version, 0, 1, room.clock())
        assert await room.prefetch.tick()
    with making() as room:
        room.prefetch.on_read = lambda client, ref, version: read_by.append((client, ref, version is not None))
        room.prefetch.on_reads(ReadsNotice("b", 1, (BegunRead("told", REFS[2], BLOCK, 0.0),)))
        assert await room.prefetch.tick()
    assert read_by == [(CLIENT, REFS[0], True), ("noted", REFS[1], True), ("b/told", REFS[2], False)]


async def settled_loop() -> None:
    """Let the loop run until everything that waits for no gate is done."""
    for _ in range(3000):
        await asyncio.sleep(0)


def gets(room: Engine, bucket: str = "train") -> int:
    return sum(
        request.method == "GET" and request.bucket == bucket and request.key != "" for request in room.origin.log
    )


async def under_way(room: Engine, at_least: int) -> None:
    """Disk threads take part, so a number of steps of the loop is not enough."""
    async with asyncio.timeout(60):
        while room.origin.under_way < at_least:
            await asyncio.sleep(0)


async def test_hinted_objects_are_fetched_once_and_before_their_reads(room: Engine) -> None:
    announce(room)
    await room.tasks.settle()
    for ref in REFS:
        assert await read(room, ref) == "HIT"
        await room.tasks.settle()
    assert room.origin.body_bytes == sum(map(len, BODIES.values()))
    assert gets(room) == 2 * COUNT


async def test_prefetch_begins_after_its_readers_may_have_requested_more(
    making: Making, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waiting: list[Callable[[], None]] = []
    with making(later=lambda _, act: waiting.append(act)) as room:
        for ref in REFS[:4]:
            await read(room, ref)
        await room.tasks.settle()
        assert (gets(room), len(waiting)) == (2 * 4, 1), "one call of the planner serves all reads"
        waiting.pop()()
        await room.tasks.settle()
        assert gets(room) == 2 * COUNT
        await read(room, REFS[4])
        assert len(waiting) == 1, "the next read causes another call"
        monkeypatch.setattr(room.planner, "wants", lambda *_: 1 // 0)
        waiting.pop()()
        assert "prefetch failed" in caplog.text


async def test_after_a_withdrawal_only_fills_under_way_are_completed(making: Making) -> None:
    with making(prefetch_blocks=2) as room:
        gate, hint = asyncio.Event(), Hint()
        room.origin.faults += [Fault(times=None, key=ref.key, body_gate=gate) for ref in REFS]
        sizes_known(room)
        room.prefetch.announce(CLIENT, REFS, start=0, total=COUNT, hint=hint)
        await under_way(room, 2)
        before = gets(room)
        assert room.prefetch.withdraw(hint, ()) == COUNT
        gate.set()
        await room.tasks.settle()
        await room.prefetch.tick()
        await room.tasks.settle()
        brought = {request.key for request in room.origin.log if request.key}
        assert brought <= {ref.key for ref in REFS[:2]}
        assert gets(room) <= before + 2, "more than the outstanding fills were completed"
        assert await read(room, REFS[0]) == "HIT"


async def test_progress_counts_objects_that_are_cached_whole(making: Making) -> None:
    with making() as room:
        hint, gate = Hint(), asyncio.Event()
        # The first block of one object comes whole, and the second one in part.
        room.origin.faults += [Fault(key=REFS[5].key), Fault(key=REFS[5].key, body_gate=gate, gate_after=10)]
        room.prefetch.announce(CLIENT, REFS, start=0, total=COUNT, hint=hint)
        async with asyncio.timeout(60):
            while len(room.store) < 2 * COUNT - 1:
                await asyncio.sleep(0)
        assert (await room.prefetch.progress(hint)).here == COUNT - 1
        gate.set()
        await room.tasks.settle()
        assert await room.prefetch.progress(hint) == PlanProgress(told=COUNT, here=COUNT)
        await read(room, REFS[0])
        assert await room.prefetch.progress(hint) == PlanProgress(told=COUNT, read=1, here=COUNT - 1)
        room.versions.forget(REFS[1])
        assert await room.prefetch.progress(hint) == PlanProgress(told=COUNT, read=1, here=COUNT - 2, left=1)


async def test_a_reader_joins_the_prefetch_of_its_object(making: Making) -> None:
    with making() as room:
        gate = asyncio.Event()
        room.origin.faults.append(Fault(times=None, key=REFS[0].key, body_gate=gate, gate_after=30_000))
        announce(room)
        await under_way(room, 1)
        reading = asyncio.create_task(read(room, REFS[0]))
        await settled_loop()
        gate.set()
        assert await reading in ("MISS", "PARTIAL")
        await room.tasks.settle()
        assert sum(request.key == REFS[0].key for request in room.origin.log) == 2
        assert room.origin.body_bytes <= sum(map(len, BODIES.values()))


async def told_amid_a_get(
    room: Engine, **headers: str
) -> tuple[asyncio.Event, asyncio.Task[ObjectVersion], asyncio.Task[bytes]]:
    """The GET of a reader is under way, and a HEAD that was asked before it has told the version. Returns the gate that
    its reply waits for, the telling of the version, and the read."""
    ref, head, get = REFS[0], asyncio.Event(), asyncio.Event()
    room.origin.faults += [
        Fault(key=ref.key, method="HEAD", gate=head), Fault(key=ref.key, method="GET", gate=get)
    ]  # fmt: skip
    told = asyncio.create_task(room.fills.look_up(ref))
    await under_way(room, 1)
    reading = asyncio.create_task(room.get(ref, **headers))
    await under_way(room, 2)
    head.set()
    await settled_loop()
    assert room.fills.known(ref) is not None
    return get, told, reading


async def begun_by_a(way: str, room: Engine, told: asyncio.Task[ObjectVersion]) -> asyncio.Task[ObjectVersion]:
    if way == "known version":
        announce(room, REFS[:1])
    elif way == "opened object":
        told = asyncio.create_task(room.fills.opened(REFS[0]))
    await settled_loop()
    return told


WAYS = ["told version", "known version", "opened object"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_get_under_way_brings_a_block_whose_version_a_head_told_meanwhile(making: Making, way: str) -> None:
    with making(sleep=no_patience_ends) as room:
        get, told, reading = await told_amid_a_get(room, range=f"bytes={BLOCK}-")
        begun = await begun_by_a(way, room, told)
        if begun.done():
            room.fills.fill(begun.result(), [0, 1])
        get.set()
        room.fills.fill(await begun, [0, 1])
        assert await reading == BODIES[REFS[0]][BLOCK:]
        await room.tasks.settle()
        assert room.origin.body_bytes == 2 * BLOCK
        assert room.origin.count() == 3, "a HEAD, and a GET of each block"


@pytest.mark.parametrize("way", WAYS)
async def test_the_version_that_a_get_under_way_brings_is_fetched(making: Making, way: str) -> None:
    """The object is overwritten between the replies to the HEAD and the GET."""
    with making(sleep=no_patience_ends) as room:
        get, told, reading = await told_amid_a_get(room)
        old = room.fills.known(REFS[0])
        begun = await begun_by_a(way, room, told)
        room.origin.put(REFS[0], ramp(2 * BLOCK, 99))
        get.set()
        if way != "known version":
            room.fills.fill(await begun, [0, 1])
        assert await reading == ramp(2 * BLOCK, 99)
        await room.tasks.settle()
        assert old is not None
        assert old.etag not in [dict(request.headers).get("if-match") for request in room.origin.log]
        assert room.fills.is_cached(REFS[0])


async def test_a_reader_that_joins_the_first_request_of_an_object_reports_the_bytes_to_come(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults.append(Fault(key=OTHER.key, body_gate=gate))
    opened = asyncio.create_task(room.fills.opened(OTHER, size=BLOCK))
    for _ in range(100):
        await asyncio.sleep(0)
    reading = asyncio.create_task(room.get(OTHER))
    for _ in range(100):
        await asyncio.sleep(0)
    assert room.scheduler.line.held == 1
    assert room.scheduler.line.left_bytes == BLOCK, "otherwise the fill would be taken for demand that ends"
    gate.set()
    assert await reading == ramp(BLOCK, 77)
    await opened
    assert room.scheduler.line.left_bytes == 0


async def test_a_prefetch_whose_object_a_reader_requests_gives_its_slot_back(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults += [Fault(key=ref.key, gate=gate) for ref in (OTHER, REFS[0])]
    reading = asyncio.create_task(room.get(OTHER))
    await under_way(room, 1)
    ahead = [asyncio.create_task(room.fills.opened(ref, size=BLOCK)) for ref in (OTHER, REFS[0])]
    await under_way(room, 2)
    gate.set()
    assert await reading == ramp(BLOCK, 77)
    assert [version.ref for version in await asyncio.gather(*ahead)] == [OTHER, REFS[0]]
    await room.tasks.settle()
    assert [request.key for request in room.origin.log] == [OTHER.key, REFS[0].key], "the object is requested once"
    [metric] = room.metrics.prefetched_blocks.collect()
    assert [sample.value for sample in metric.samples if sample.name.endswith("_total")] == [1]


async def test_demand_does_not_wait_for_prefetch(making: Making) -> None:
    with making(fills_max=1) as room:
        gate = asyncio.Event()
        room.origin.faults += [Fault(times=None, key=ref.key, body_gate=gate) for ref in REFS]
        announce(room)
        await under_way(room, 1)
        assert await asyncio.wait_for(read(room, OTHER), 60) == "MISS"
        gate.set()
        await room.tasks.settle()


async def test_a_reader_promotes_the_prefetched_blocks_that_it_would_request(making: Making) -> None:
    with making() as room:
        gate = asyncio.Event()
        room.origin.put(REFS[0], ramp(6 * BLOCK, 5))
        await room.reads.head(REFS[0], {})
        room.origin.faults.append(Fault(times=None, key=REFS[0].key, body_gate=gate))
        announce(room, REFS[:1])
        await under_way(room, 1)
        alone = room.origin.under_way
        reading = asyncio.create_task(room.get(REFS[0]))
        await under_way(room, 4)
        assert alone < 4
        gate.set()
        assert await reading == ramp(6 * BLOCK, 5)
        await room.tasks.settle()


async def test_a_stale_object_that_is_not_cached_costs_one_request(room: Engine) -> None:
    await room.reads.head(REFS[0], {})
    room.clock.advance(61.0)
    before = len(room.origin.log)
    assert await room.range(0, 100, REFS[0]) == BODIES[REFS[0]][:100]
    await room.tasks.settle()
    assert [request.method for request in room.origin.log[before:]] == ["GET"]


async def test_no_more_blocks_are_outstanding_than_the_budget_allows(making: Making) -> None:
    with making(prefetch_blocks=3) as room:
        at_requests: list[int] = []

        def noted() -> bool:
            at_requests.append(room.planner.outstanding.blocks)
            return False

        room.origin.faults = [Fault(None, while_=noted)]
        announce(room)
        await room.tasks.settle()
        assert 1 <= max(at_requests) <= 4, "an object's last block may be one too many"


async def test_prefetch_keeps_to_the_bandwidth_of_the_budget(making: Making) -> None:
    with making(prefetch_bytes_s=BLOCK) as room:
        announce(room)
        await room.tasks.settle()
        assert gets(room) == 0
        for _ in range(4):
            room.clock.advance(1.0)
            room.planner.announced(CLIENT, (), room.clock())
            announce(room)
            await room.tasks.settle()
        # Whole objects of two blocks are fetched, since their size is not known before.
        assert 2 * BLOCK <= room.origin.body_bytes <= (4 + 4) * BLOCK


async def test_bandwidth_that_was_not_spent_for_a_minute_is_not_saved_up(making: Making) -> None:
    with making(prefetch_bytes_s=BLOCK) as room:
        room.clock.advance(60.0)
        announce(room)
        assert room.planner.outstanding.blocks == 1
        await room.tasks.settle()


async def test_a_request_for_prefetch_waits_for_a_slot(room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults += [Fault(times=None, key=ref.key, body_gate=gate) for ref in REFS]
    sizes_known(room)
    announce(room)
    await under_way(room, 2)
    await settled_loop()
    assert room.planner.outstanding.blocks > 2
    assert room.origin.under_way == 2
    gate.set()
    await room.tasks.settle()


@pytest.mark.parametrize("mode", [Mode.OFF, Mode.OBJECT])
async def test_without_prefetch_of_epochs_no_object_is_fetched_before_its_read(making: Making, mode: Mode) -> None:
    with making(prefetch=mode) as room:
        announce(room)
        for ref in REFS[:4]:
            assert await read(room, ref) == "MISS"
            await room.prefetch.tick()
            await room.tasks.settle()
        assert {request.key for request in room.origin.log} == {ref.key for ref in REFS[:4]}


async def test_prefetching_ends_within_a_second_of_its_readers(making: Making) -> None:
    with making(prefetch_blocks=1) as room:
        announce(room)
        await room.tasks.settle()
        gate = asyncio.Event()
        room.origin.faults += [Fault(times=None, key=ref.key, body_gate=gate) for ref in REFS]
        await read(room, REFS[0])
        room.clock.advance(0.1)
        before = gets(room)
        await read(room, REFS[1])
        room.clock.advance(2.0)
        gate.set()
        await room.prefetch.tick()
        await room.tasks.settle()
        assert gets(room) <= before + 2, "more than the outstanding fills were made"


def page(refs: list[ObjectRef], *, more: bool) -> bytes:
    contents = "".join(f"<Contents><Key>{ref.key}</Key><Size>{2 * BLOCK}</Size></Contents>" for ref in refs)
    token = "<NextContinuationToken>more</NextContinuationToken>" if more else ""
    return (
        f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{contents}{token}</ListBucketResult>".encode()
    )


@pytest.mark.parametrize("then", [200, 403])
async def test_objects_of_a_long_list_are_prefetched_before_its_end(then: int, room: Engine) -> None:
    gate = asyncio.Event()
    room.origin.faults += [Fault(key="", status=200, body=page(REFS[:6], more=True)),
                           Fault(key="", status=then, body=page(REFS[6:], more=False), gate=gate)]  # fmt: skip
    for number in (3, 0, 5, 1):
        await read(room, REFS[number])
    async with asyncio.timeout(60):
        while not all(map(room.fills.is_cached, REFS[:6])):
            await asyncio.sleep(0)
    assert not any(request.key == REFS[6].key for request in room.origin.log)
    room.scheduler.line.limits[0].beside = 40
    gate.set()
    await room.tasks.settle()
    assert room.scheduler.line.limits[0].beside < 10, "a limit measured beside the LIST does not hold without it"
    await read(room, REFS[11])
    await read(room, REFS[8])
    await room.tasks.settle()
    assert all(map(room.fills.is_cached, REFS)) == (then == 200)


async def test_a_failed_list_or_get_is_not_retried_for_ever_and_ends_no_task(room: Engine) -> None:
    broken = [Fault(times=None, key=REFS[0].key, status=403), Fault(times=None, key=REFS[1].key, refuse=True)]
    room.origin.faults += broken
    announce(room)
    async with asyncio.timeout(60):
        await room.tasks.settle()
    tried = len(room.origin.log)
    await room.prefetch.tick()
    await room.tasks.settle()
    assert len(room.origin.log) == tried, "a failure is followed by a pause"
    room.origin.faults.clear()
    seen = []
    for ref in REFS:
        room.clock.advance(10.0)
        announce(room, REFS)
        await room.prefetch.tick()
        await room.tasks.settle()
        seen.append(await read(room, ref))
        await room.tasks.settle()
    assert seen[-3:] == ["HIT"] * 3


@pytest.mark.parametrize(("status", "lists"), [(400, 2), (403, 1), (503, 2)])
async def test_a_list_is_retried_unless_it_was_refused(status: int, lists: int, room: Engine) -> None:
    room.origin.faults.append(Fault(times=None, key="", status=status))
    asked = 0
    for ref in REFS[:6]:
        room.origin.log.clear()
        await read(room, ref)
        await room.tasks.settle()
        asked += any(request.key == "" for request in room.origin.log)
        room.clock.advance(30.0)
    assert asked == lists


async def test_without_room_prefetch_pauses(room: Engine) -> None:
    room.store.disks[0].admitting = False
    announce(room)
    async with asyncio.timeout(60):
        await room.tasks.settle()
    assert len(room.origin.log) <= 4 * COUNT
    assert room.planner.outstanding.blocks == 0
    room.store.disks[0].admitting = True
    room.clock.advance(10.0)
    announce(room)
    await room.prefetch.tick()
    await room.tasks.settle()
    assert await read(room, REFS[0]) == "HIT"


async def tries(room: Engine, seconds: float) -> list[float]:
    """Send hints and ticks every tenth of a second, for `seconds`. Returns the seconds at which the origin got a
    request."""
    began, asked = room.clock(), []
    while room.clock() <= began + seconds:
        before = len(room.origin.log)
        announce(room)
        await room.prefetch.tick()
        await room.tasks.settle()
        if len(room.origin.log) > before:
            asked.append(round(room.clock() - began, 1))
        room.clock.advance(0.1)
    return asked


def pauses_of(asked: list[float]) -> list[float]:
    return [round(later - sooner, 1) for sooner, later in pairwise(asked)]


async def test_the_pause_after_failures_doubles_up_to_five_seconds_and_ends_with_a_success(making: Making) -> None:
    with making(prefetch_blocks=1) as room:
        room.clock.advance(0.05)  # so that no tick falls exactly on the end of a rest
        room.origin.faults.append(Fault(times=None, refuse=True))
        rests = pauses_of(await tries(room, 21.0))
        assert rests[:6] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 3.2], abs=0.11)
        assert rests[6:] == pytest.approx([5.0] * len(rests[6:]), abs=0.11)
        assert len(rests) >= 8
        room.origin.faults = [Fault(times=None, key=ref.key, refuse=True) for ref in REFS[1:]]
        assert pauses_of(await tries(room, 7.0))[:3] == pytest.approx([0.1, 0.2, 0.4], abs=0.11)
        assert await read(room, REFS[0]) == "HIT"


async def test_fills_that_fail_together_are_one_failure(room: Engine) -> None:
    room.origin.faults += [Fault(times=None, key=ref.key, refuse=True) for ref in REFS]
    sizes_known(room)
    announce(room)
    await room.tasks.settle()
    assert len({request.key for request in room.origin.log if request.key}) >= 4
    room.origin.faults.clear()
    room.clock.advance(0.15)
    announce(room)
    await room.tasks.settle()
    assert await read(room, REFS[0]) == "HIT"


async def test_after_a_pause_every_object_is_requested_again_from_a_busy_origin(making: Making) -> None:
    with making(prefetch_blocks=4) as room:
        sizes_known(room)
        room.origin.faults.append(Fault(times=None, status=503))
        announce(room)
        for _ in range(10):
            await room.tasks.settle()
            room.clock.advance(0.02)
            await room.prefetch.tick()
        room.origin.faults.clear()
        room.clock.advance(5.0)
        for _ in range(10):
            announce(room, REFS[:1])
            await room.tasks.settle()
            room.clock.advance(0.02)
        assert all(map(room.fills.is_cached, REFS))


async def test_an_object_that_has_changed_is_fetched_in_its_new_version(making: Making) -> None:
    with making(freshness="immutable") as room:
        sizes_known(room)
        await read(room, REFS[1])
        await room.tasks.settle()
        await room.store.drop(room.store.blocks_of(lambda ref: ref == REFS[1]))
        room.origin.put(REFS[1], ramp(2 * BLOCK, 99))
        announce(room, [REFS[0], *REFS[2:], REFS[1]])
        for _ in range(3):
            # Only the fill learns that the object has changed; no read makes the cache forget it.
            room.clock.advance(10.0)
            room.planner.announced("another", REFS, room.clock())
            await room.prefetch.tick()
            await room.tasks.settle()
        assert room.fills.is_cached(REFS[1])


async def test_a_hint_keeps_its_order_where_the_settings_exclude_some_objects(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    with making() as room:
        monkeypatch.setattr(room.prefetch, "_mode_of", lambda ref: Mode.OFF if ref.key.endswith("json") else Mode.EPOCH)
        refs = [ObjectRef("train", f"s/{n:06d}.{kind}") for n in range(60) for kind in ("jpg", "json")]
        for at in range(0, 120, 40):
            room.prefetch.announce(CLIENT, refs[at : at + 40], start=at, total=120)
        [dataset] = room.planner.registry.datasets()
        told = [dataset.names.keys[key] for key in dataset.epochs()[-1].agenda]
        await room.tasks.cancel()
        assert told == [ref.key for ref in refs[::2]]


async def test_a_samplers_order_is_prefetched_after_its_first_reads(
    making: Making, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    async def sleep(delay_s: float) -> None:
        pauses.append(delay_s)

    refs = [ObjectRef("train", f"samples/{number:04d}.jpg") for number in range(200)]
    order = order_at_once(Draw(5), len(refs))
    with making(prefetch_blocks=4) as room:
        for number, ref in enumerate(refs):
            room.origin.put(ref, ramp(100, number))
        room.planner.discovery.listed("train", [(ref.key, 100) for ref in refs])

        def later() -> float:
            room.clock.advance(0.001)
            return room.clock()

        monkeypatch.setattr(room.planner, "wants", lambda now, free_bytes, blocks: [])
        for number in order[:16]:
            version = ObjectVersion(refs[number], '"e"', 100)
            room.clock.advance(1.0)
            room.prefetch.requested(CLIENT, version, Extent(0, 100), checksums=False)
            room.prefetch.sent(CLIENT, refs[number])
        monkeypatch.undo()
        # Each reading of the CPU time takes a millisecond, so each step is followed by a pause of ten milliseconds.
        monkeypatch.setattr(room.prefetch, "_cpu", later)
        monkeypatch.setattr("outrider.engine.ahead.prefetch.asyncio.sleep", sleep)
        await room.tasks.settle()
        monkeypatch.undo()
        brought = [request.key for request in room.origin.log if request.key]
        await room.tasks.cancel()
    assert brought[:3] == [refs[number].key for number in order[16:19]]
    # Other code yields to the loop, too.
    assert sum(pause_s > 0.009 for pause_s in pauses) >= 5
    assert {round(pause_s, 2) for pause_s in pauses} == {0.0, 0.01}


@pytest.mark.parametrize(("computed_s", "asked"), [(0.0, 12), (0.003, 2)])
async def test_prefetch_rests_after_long_thoughts_but_not_after_interrupted_ones(
    making: Making, monkeypatch: pytest.MonkeyPatch, computed_s: float, asked: int
) -> None:
    """On a machine that is busy, a thought lasts long and computes little. Twelve of them follow one another."""
    cpu_s = 0.0
    with making(cpu=lambda: cpu_s) as room:
        thoughts = []

        def wants(now: float, free_bytes: int, blocks: int) -> list[Want]:
            nonlocal cpu_s
            cpu_s += computed_s
            room.clock.advance(0.003)
            thoughts.append(now)
            return []

        monkeypatch.setattr(room.planner, "wants", wants)
        for _ in range(12):
            room.prefetch.think()
            room.clock.advance(0.001)
    assert len(thoughts) == asked


@pytest.mark.parametrize("size", [2 * BLOCK, -1])
@pytest.mark.parametrize("is_guess", [True, False])
async def test_guesses_are_fetched_as_guesses(
    room: Engine, monkeypatch: pytest.MonkeyPatch, is_guess: bool, size: int
) -> None:
    slots: list[FillSlot] = []
    granted, blocks = room.scheduler.grant, (0, 1) if size > 0 else (0,)

    async def grant(slot: FillSlot) -> None:
        slots.append(slot)
        await granted(slot)

    monkeypatch.setattr(room.scheduler, "grant", grant)
    wants = iter([[Want(REFS[0], size, blocks, is_guess=is_guess)]])
    monkeypatch.setattr(room.planner, "wants", lambda now, free_bytes, blocks: next(wants, []))
    room.prefetch.think()
    await room.tasks.settle()
    assert slots
    assert {slot.purpose for slot in slots} == {Purpose.GUESS if is_guess else Purpose.READER}


async def test_a_bug_in_a_long_computation_ends_no_other_one(
    room: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> bool:
        raise RuntimeError("a thought of ours")

    monkeypatch.setattr(room.planner, "step", fail)
    announce(room)
    assert "prefetch failed" in caplog.text
    thoughts = iter([True, True, False])
    monkeypatch.setattr(room.planner, "step", lambda: next(thoughts))
    await room.tasks.settle()
    assert next(thoughts, None) is None, "they were thought to their end"
    assert await read(room, REFS[0]) == "HIT"


# -- noted hits ---------------------------------------------------------------------------------------------------


def many(number: int) -> ObjectVersion:
    return ObjectVersion(ObjectRef("train", f"many/{number:06d}"), '"e"', 100)


async def test_a_noted_hit_marks_its_reader_as_reading_on(room: Engine) -> None:
    assert not room.scheduler.reads_on
    room.prefetch.note(CLIENT, many(0), 0, 100, room.clock())
    assert room.scheduler.reads_on
    room.clock.advance(READS_ON_S)
    assert not room.scheduler.reads_on


async def test_a_tick_tells_of_some_of_a_burst_of_hits_and_the_oldest_beyond_a_bound_are_dropped(
    room: Engine,
) -> None:
    for number in range(20_000):
        room.prefetch.note(CLIENT, many(number), 0, 100, room.clock())
    await room.prefetch.tick()
    assert len(room.planner.registry) == 256
    for _ in range(20_000 // 256):
        await room.prefetch.tick()
    assert len(room.planner.registry) == 16_384
    [dataset] = room.planner.registry.datasets()
    assert dataset.names.keys[0] == many(20_000 - 16_384).ref.key
    assert dataset.names.keys[-1] == many(19_999).ref.key
    await room.tasks.settle()


async def test_other_work_runs_during_a_burst_of_hits(room: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, asked, event_s = [], room.planner.requested, 0.0004

    def takes_long(client: str, ref: ObjectRef, *rest: Any) -> Extent | None:
        room.clock.advance(event_s)
        heard.append(ref)
        return asked(client, ref, *rest)

    async def others() -> None:
        while True:
            scheduler.append(room.clock())
            await asyncio.sleep(0)

    monkeypatch.setattr(room.planner, "requested", takes_long)
    scheduler: list[float] = []
    for number in range(100):
        room.prefetch.note(CLIENT, many(number), 0, 100, room.clock())
    beside = asyncio.create_task(others())
    ticks, done = 0, False
    while not done:
        began = room.clock()
        done = await room.prefetch.tick()
        ticks += 1
        assert room.clock() - began < 0.012, "the burst takes no more than 12 ms of each 50 ms"
    beside.cancel()
    assert max(later - sooner for sooner, later in pairwise(scheduler)) < 0.0013
    assert heard == [many(number).ref for number in range(100)]
    assert ticks == 4
    await room.tasks.settle()


async def test_random_reads_of_one_object_do_not_displace_reads_of_others(room: Engine) -> None:
    version = ObjectVersion(ObjectRef("train", "wide"), '"e"', 10**6)
    for number in range(1000):
        room.prefetch.note(CLIENT, version, 10 * number, 10 * number + 1, room.clock())
    room.prefetch.note(CLIENT, many(0), 0, 100, room.clock())
    await room.prefetch.tick()
    assert len(room.planner.registry) == 2
    await room.tasks.settle()


async def test_a_stop_leaves_nothing_behind(room: Engine) -> None:
    room.origin.faults += [Fault(times=None, key=ref.key, body_gate=asyncio.Event()) for ref in REFS]
    announce(room)
    await under_way(room, 2)
    await room.tasks.cancel()
    assert room.tasks.failures == []
    assert room.origin.under_way == 0
    assert len(room.flights) == 0
    assert room.planner.outstanding.blocks == 0


async def test_a_bug_in_the_planner_fails_no_request_and_is_logged_once_a_minute(
    room: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise IndexError("array index out of range")

    version = await room.version_lookup.ask(REFS[0], 0)
    for act in ("requested", "sent", "wants"):
        with monkeypatch.context() as now:
            now.setattr(room.planner, act, broken)
            await read(room, REFS[1])
            for _ in range(3):
                room.prefetch.note(CLIENT, version, 0, BLOCK, room.clock())
                await room.prefetch.tick()
        assert [line.message for line in caplog.records if line.exc_info] == ["prefetch failed"], act
        caplog.clear()
        room.clock.advance(60.0)


async def test_a_slow_planner_takes_a_tenth_of_the_time(room: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    took_s = 0.02
    thoughts: list[float] = []

    def long_call(now: float, *_: object) -> list[object]:
        thoughts.append(now)
        room.clock.advance(took_s)
        return []

    monkeypatch.setattr(room.planner, "wants", long_call)
    began = room.clock()
    while room.clock() - began < 10.0:
        room.prefetch.think()
        room.clock.advance(0.001)
    assert 0.08 * 10.0 <= took_s * len(thoughts) <= 0.12 * 10.0
    # Short calls cause no pause, and neither does a single call that was interrupted.
    took_s = 0.0005
    room.prefetch.think()
    for took_s in (0.0005, 0.5, 0.0005):
        room.clock.advance(5.0)
        count = len(thoughts)
        for _ in range(3 if took_s < 0.1 else 1):
            room.prefetch.think()
        assert len(thoughts) - count == (3 if took_s < 0.1 else 1)
    await room.tasks.settle()
