"""The task group: a cancelled owner ends, even when one of its tasks fails at the same time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from outrider.engine.tasks.task_group import TaskGroup


class FailedError(Exception):
    pass


Work = Callable[[], Coroutine[Any, Any, None]]
ORDERS = pytest.mark.parametrize("first", ["the failure", "the cancel"])
BODIES = pytest.mark.parametrize("body", ["waits", "is over"])


def group_that_fails(gate: asyncio.Event, body: str) -> Work:
    """A group whose tasks go on once the gate opens. `body` runs in the group's own block meanwhile."""

    async def fail() -> None:
        await gate.wait()
        raise FailedError

    async def work() -> None:
        async with TaskGroup() as group:
            group.create_task(fail())
            if body == "waits":
                await asyncio.Event().wait()

    return work


async def at_its_gate(work: Work) -> asyncio.Task[None]:
    task = asyncio.create_task(work())
    for _ in range(5):
        await asyncio.sleep(0)
    return task


@ORDERS
@BODIES
async def test_a_cancel_at_the_moment_of_a_failure_ends_the_owner(first: str, body: str) -> None:
    gate = asyncio.Event()
    went_on = False

    async def warm() -> None:
        nonlocal went_on
        try:
            await group_that_fails(gate, body)()
        except FailedError:
            await asyncio.sleep(0)
            went_on = True

    task = await at_its_gate(warm)
    for act in (gate.set, task.cancel) if first == "the failure" else (task.cancel, gate.set):
        act()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not went_on


@pytest.mark.parametrize("turns", range(6))
@BODIES
async def test_a_cancel_some_steps_after_a_failure_ends_the_owner(turns: int, body: str) -> None:
    gate = asyncio.Event()
    task = await at_its_gate(group_that_fails(gate, body))
    gate.set()
    for _ in range(turns):
        await asyncio.sleep(0)
    is_over = task.done()
    assert task.cancel() is not is_over
    with pytest.raises(FailedError if is_over else asyncio.CancelledError):
        await task


@BODIES
async def test_a_cancel_ends_the_owner_although_its_tasks_fail_because_of_it(body: str) -> None:
    async def fail_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise FailedError

    async def work() -> None:
        async with TaskGroup() as group:
            group.create_task(fail_at_its_end())
            if body == "waits":
                await asyncio.Event().wait()

    task = await at_its_gate(work)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@ORDERS
@BODIES
async def test_a_time_limit_around_the_group_is_distinguished_from_a_cancel(first: str, body: str) -> None:
    gate = asyncio.Event()

    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            limits.append(limit)
            await group_that_fails(gate, body)()

    limits: list[asyncio.Timeout] = []

    async def work() -> None:
        with pytest.raises(TimeoutError):
            await limited()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)

    task = await at_its_gate(work)
    now = asyncio.get_running_loop().time()
    for act in (gate.set, lambda: limits[0].reschedule(now)) if first == "the failure" else (
        lambda: limits[0].reschedule(now), gate.set,
    ):  # fmt: skip
        act()
    await task


@BODIES
async def test_a_failure_alone_is_raised_itself_and_is_no_cancel(body: str) -> None:
    gate = asyncio.Event()
    gate.set()
    with pytest.raises(FailedError):
        await group_that_fails(gate, body)()
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


@pytest.mark.parametrize("who", ["a task", "the body", "outside"])
async def test_no_task_outlives_the_group(who: str) -> None:
    ended = 0

    async def wait() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended += 1

    async def fail() -> None:
        raise FailedError

    async def work() -> None:
        async with TaskGroup() as group:
            for _ in range(3):
                group.create_task(wait())
            await asyncio.sleep(0)
            if who == "a task":
                group.create_task(fail())
            elif who == "the body":
                raise FailedError

    task = await at_its_gate(work)
    if who == "outside":
        task.cancel()
    with pytest.raises((FailedError, asyncio.CancelledError)):
        await task
    assert ended == 3


@pytest.mark.parametrize("cancelled", [False, True])
@BODIES
async def test_the_group_leaves_nothing_to_the_garbage_collector(cancelled: bool, body: str) -> None:
    gate = asyncio.Event()

    async def act() -> None:
        task = await at_its_gate(group_that_fails(gate, body))
        if cancelled:
            task.cancel()
        else:
            gate.set()
        await asyncio.wait([task])
        assert task.cancelled() is cancelled
        if not cancelled:
            assert isinstance(task.exception(), FailedError)

    left = 1
    # Once more if something is left: a thread of an earlier test may have freed its own meanwhile.
    for _ in range(2):
        if left:
            gate.clear()
            gc.collect()
            gc.disable()
            try:
                await act()
                left = gc.collect()
            finally:
                gc.enable()
    assert left == 0
