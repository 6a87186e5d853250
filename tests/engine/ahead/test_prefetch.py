"""Prefetch, carried out: wanted blocks are fetched once, behind all demand, and within the budget."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from outrider.core.ahead.hint_messages import PlanProgress
from outrider.core.ahead.hints import Hint
from outrider.core.ahead.order.torch_sampler import Draw, order_at_once
from outrider.core.ahead.prefetch_candidates import Want
from outrider.core.cluster.messages import BegunRead, ReadsNotice
from outrider.core.model import Extent, ObjectRef, ObjectVersion
from outrider.engine.ahead.prefetch import Mode
from outrider.engine.fill.fill_scheduler import FillSlot, Purpose
from tests.engine.ahead.shards import BODIES, CLIENT, COUNT, REFS, Making, announce, gets, read, sizes_known, under_way
from tests.support.engine import BLOCK, Engine
from tests.support.fakes import Fault, ramp


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
        room.prefetch.on_reads(ReadsNotice("b", 1, (BegunRead("peer", REFS[2], BLOCK, 0.0),)))
        assert await room.prefetch.tick()
    assert read_by == [(CLIENT, REFS[0], True), ("noted", REFS[1], True), ("b/peer", REFS[2], False)]


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
        for number in (COUNT - 1, 0, 7, 3):
            await read(room, REFS[number])
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
        announced = [dataset.names.keys[key] for key in dataset.epochs()[-1].agenda]
        await room.tasks.cancel()
        assert announced == [ref.key for ref in refs[::2]]


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
