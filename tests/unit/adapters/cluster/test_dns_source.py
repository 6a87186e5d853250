"""A name without an address is an empty list; a server that does not answer changes nothing."""

from __future__ import annotations

import asyncio
import socket

import pytest
from aiohttp.resolver import ThreadedResolver

from outrider.adapters.cluster.dns_source import DnsSource
from outrider.core.cluster.member import ListedMember
from outrider.settings.members import DnsPeers
from tests.support.member_sources import PORT, DnsWorld, SetMember, Watched

A, B = SetMember("10.0.0.1", ""), SetMember("fd00::2", "")


async def test_addresses_of_both_families_are_members() -> None:
    world = DnsWorld()
    world.set_members([B, A])
    async with world.watched.reading(world.source()):
        assert await world.watched.next_list() == (ListedMember(f"10.0.0.1:{PORT}"), ListedMember(f"[fd00::2]:{PORT}"))


@pytest.mark.parametrize("code", [socket.EAI_NONAME, socket.EAI_NODATA])
async def test_a_name_that_has_no_address_is_an_empty_list(code: int) -> None:
    world = DnsWorld()
    world.resolver.error = socket.gaierror(code, "no address")
    async with world.watched.reading(world.source()):
        assert await world.watched.next_list() == ()
    assert world.watched.failures == 0


@pytest.mark.parametrize(
    "error", [socket.gaierror(socket.EAI_AGAIN, "again"), socket.gaierror(socket.EAI_FAIL, "fail"), OSError("odd")]
)
async def test_a_server_that_does_not_answer_gives_no_list(error: OSError) -> None:
    world = DnsWorld()
    world.set_members([A])
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        world.resolver.error = error
        await world.watched.failed(1)
        world.back()
        world.set_members([])
        assert await world.watched.next_list() == ()


async def test_the_name_is_looked_up_every_five_seconds_and_less_often_while_the_server_is_away() -> None:
    world = DnsWorld()
    world.set_members([A])
    async with world.watched.reading(world.source()):
        await world.watched.next_list()
        assert await world.watched.sleeps.end_next() == 5.0
        world.away()
        waits = [await world.watched.sleeps.end_next() for _ in range(9)]
        # Half of the backoff: the test's chance is 0.
        assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
        assert waits[-1] == 15.0


async def test_the_systems_own_resolver_is_asked() -> None:
    watched = Watched()
    peers = DnsPeers("localhost", PORT)
    source = DnsSource(peers, watched.outages(), resolver=ThreadedResolver(), sleep=watched.sleeps)
    async with asyncio.timeout(60), watched.reading(source):
        found = {entry.address for entry in await watched.next_list()}
    assert found & {f"127.0.0.1:{PORT}", f"[::1]:{PORT}"}
