"""The contract of `ports.MemberSource`, for each source: a list when it is first known and whenever it has changed, in
an order of its own, each address once; while the source is away nothing changes.

A job of Slurm has one list, and passes the part of the contract that is about the first one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.logs import logged
from tests.support.member_sources import SetMember, World, worlds

A, B, C = SetMember("10.0.0.1", "n1", "z1"), SetMember("10.0.0.2", "n2", "z2"), SetMember("10.0.0.3", "n3", "z1")


@pytest.fixture(params=["file", "dns", "kubernetes", "slurm"])
async def any_world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with worlds(tmp_path)[request.param]() as begun:
        yield begun


@pytest.fixture(params=["file", "dns", "kubernetes"])
async def world(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[World]:
    async with worlds(tmp_path)[request.param]() as begun:
        yield begun


async def test_the_first_list_has_all_members_by_address(any_world: World) -> None:
    any_world.set_members([C, A, B])
    async with any_world.watched.reading(any_world.source()):
        assert await any_world.watched.next_list() == (
            any_world.expected(A),
            any_world.expected(B),
            any_world.expected(C),
        )
    assert any_world.watched.failures == 0


async def test_a_change_gives_the_next_list(world: World) -> None:
    world.set_members([A, B])
    async with world.watched.reading(world.source()):
        assert await world.watched.next_list() == (world.expected(A), world.expected(B))
        world.set_members([A, C])
        assert await world.watched.next_list() == (world.expected(A), world.expected(C))
        world.set_members([A])
        assert await world.watched.next_list() == (world.expected(A),)


async def test_an_address_that_the_source_gives_twice_is_listed_once(any_world: World) -> None:
    any_world.set_members([B, A, A, B])
    async with any_world.watched.reading(any_world.source()):
        assert await any_world.watched.next_list() == (any_world.expected(A), any_world.expected(B))


async def test_another_order_is_no_change(world: World) -> None:
    world.set_members([A, A, B, B])
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        world.set_members([B, B, A, A])
        world.set_members([B, B, A, C])
        assert len(await world.watched.next_list()) == 3


async def test_an_empty_list_is_passed_on(world: World) -> None:
    """The membership decides how long it is not believed."""
    world.set_members([])
    async with world.watched.reading(world.source()):
        assert await world.watched.next_list() == ()
        world.set_members([A])
        assert await world.watched.next_list() == (world.expected(A),)
        world.set_members([])
        assert await world.watched.next_list() == ()


async def test_a_source_that_was_away_gives_no_list_until_it_has_changed(world: World) -> None:
    world.set_members([A, B])
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        world.away()
        await world.watched.failed(3)
        world.back()
        world.set_members([A, C])
        assert await world.watched.next_list() == (world.expected(A), world.expected(C))


async def test_a_source_that_is_away_at_first_gives_its_list_when_it_is_back(world: World) -> None:
    world.set_members([A, B])
    world.away()
    async with world.watched.reading(world.source()):
        await world.watched.failed(2)
        world.back()
        assert await world.watched.next_list() == (world.expected(A), world.expected(B))


async def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends(world: World) -> None:
    world.set_members([A, B])
    with logged("outrider.adapters.cluster") as records:
        async with world.watched.reading(world.source()):
            await world.watched.next_list()
            world.away()
            # The first failure of a connection that breaks is another one than those that follow.
            await world.watched.failed(2)
            begun = len(records)
            await world.watched.failed(5)
            assert len(records) == begun
            world.back()
            for members in ([A], [A, C]):
                world.set_members(members)
                await world.watched.next_list()
    messages = [record.getMessage() for record in records]
    assert 1 <= messages.count("source of members gives no list") <= 2
    assert messages.count("source of members is back") == 1
