"""Connections of many members: those of a node together are bounded at both ends; idle ones make room or are closed."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from outrider.adapters.cluster import peer_client
from outrider.core.cluster.messages import FORGET_PATH, Forget, ListedPage, ListRequest, forget_body
from outrider.core.cluster.peer_messages import PeerFailed, PeerRead
from outrider.core.model import Extent
from outrider.engine.listing import lists
from tests.server.test_peer_port import REF, SIZES, SMALL, member_with, read_whole, refusals, why
from tests.server.test_silent_clients import turns_until
from tests.support.fake_peers import PeerWire, Side, hello_of, peer_wire
from tests.support.fakes import pieces_of, ramp

ROOM = 4


async def test_reads_of_all_peers_together_are_limited_and_nothing_else_waits_for_them() -> None:
    other = member_with(ramp(SMALL))
    async with (
        peer_wire(member_with(ramp(SMALL)), reads_per_peer=1, client_reads_max=1) as wire,
        peer_wire(other, owner=Side("other")) as second,
    ):  # fmt: skip
        for _ in range(2):
            async with wire.client.read(wire.member, PeerRead(REF, Extent(0, SMALL))):
                assert await why(wire, SMALL, second.member) == "busy"
                assert await wire.client.hello(second.member.address, hello_of("edge")) == other.mine
                await wire.client.send(second.member, FORGET_PATH, forget_body(Forget("edge", 1, 1, ("bucket",))))
        for member in (second.member, wire.member, second.member):
            assert await read_whole(wire, SMALL, member) == ramp(SMALL)


async def list_of(wire: PeerWire, prefix: str) -> str:
    """The `why` of the failure of a LIST; empty: there is a page."""
    request = ListRequest("edge", "bucket", (("prefix", prefix),))
    try:
        assert await wire.client.request(wire.member, request, ListedPage) == ListedPage(packed=b"page")
    except PeerFailed as failed:
        return failed.why
    return ""


async def test_lists_of_a_peer_are_limited_and_leave_connections_for_all_else() -> None:
    """As while its bucket is slow."""
    service = member_with(ramp(SMALL))
    service.gate = asyncio.Event()
    async with peer_wire(service, reads_per_peer=4, connections_max=4) as wire:
        answers = asyncio.as_completed([list_of(wire, prefix) for prefix in "abcdef"])
        assert [await next(answers) for _ in range(4)] == ["busy"] * 4
        await wire.client.send(wire.member, FORGET_PATH, forget_body(Forget("edge", 1, 1, ("bucket",))))
        reading = asyncio.create_task(read_whole(wire, SMALL))
        await turns_until(lambda: len(service.asked) == 1)
        service.gate.set()
        assert await reading == ramp(SMALL)
        assert [await answer for answer in answers] == ["", ""]
        assert [await list_of(wire, prefix) for prefix in "abcdef"] == [""] * 6
        assert refusals(wire) == {}


async def test_half_as_many_lists_as_reads_are_answered_at_once_and_reads_wait_for_none() -> None:
    service = member_with(ramp(SMALL))
    service.gate = asyncio.Event()
    async with peer_wire(service, reads_max=4) as wire:
        answers = asyncio.as_completed([list_of(wire, prefix) for prefix in "abcdef"])
        assert [await next(answers) for _ in range(4)] == ["busy"] * 4
        reading = [asyncio.create_task(read_whole(wire, SMALL)) for _ in range(4)]
        await turns_until(lambda: len(service.asked) == 4)
        service.gate.set()
        assert [await each for each in reading] == [ramp(SMALL)] * 4
        assert [await answer for answer in answers] == ["", ""]
        assert refusals(wire) == {"busy": 4}
        assert await list_of(wire, "a") == ""


def test_the_first_of_many_clients_has_time_for_the_bucket_while_the_others_wait_for_it() -> None:
    _, timeout_s = peer_client._QUESTIONS[ListRequest]
    assert timeout_s <= lists._FLIGHT_S - 1


@SIZES
async def test_idle_connections_to_all_peers_together_are_limited(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_client, "_IDLE_MAX", 2)
    async with AsyncExitStack() as stack:
        wires = [
            await stack.enter_async_context(peer_wire(member_with(ramp(size)), owner=Side(name))) for name in "abcd"
        ]
        for wire in wires:
            assert await read_whole(wires[0], size, wire.member) == ramp(size)
        await turns_until(lambda: [len(wire.server.connections) for wire in wires] == [0, 0, 1, 1])


@SIZES
async def test_the_connection_that_is_idle_for_longest_makes_room_for_another_one(size: int) -> None:
    """As in a cluster of many members, each of which keeps one for hellos. One with a read is not cut."""
    service = member_with(ramp(size))
    service.body_gate = asyncio.Event()
    async with peer_wire(service, connections_max=ROOM) as wire, AsyncExitStack() as stack:
        clients = {
            name: (await stack.enter_async_context(peer_wire(member_with(b""), edge=Side(name)))).client
            for name in "abcde"
        }

        async def greets(name: str) -> None:
            await clients[name].hello(wire.member.address, hello_of(name))

        reading = clients["a"].read(wire.member, PeerRead(REF, Extent(0, size)))
        reply = await stack.enter_async_context(reading)
        for name in "bcd":
            await greets(name)
        there = [*wire.server.connections]
        assert len(there) == ROOM
        await greets("b")
        await greets("e")
        assert [each.is_ending for each in there] == [False, False, True, False], "the one of c"  # type: ignore[attr-defined]
        await turns_until(lambda: len(wire.server.connections) == ROOM)
        service.body_gate.set()
        assert b"".join([chunk async for chunk in pieces_of(reply)]) == ramp(size)
        assert refusals(wire) == {}


@SIZES
async def test_connections_beyond_the_limit_are_cut(size: int) -> None:
    service = member_with(ramp(size))
    service.body_gate = asyncio.Event()
    async with peer_wire(service, connections_max=1) as wire:
        async with wire.client.read(wire.member, PeerRead(REF, Extent(0, size))):
            assert await why(wire, size) == "broke"
        assert refusals(wire) == {}


async def no_connections(wire: PeerWire) -> bool:
    """Whether all connections are closed within some turns of the loop, long before any is closed as idle."""
    for _ in range(100):
        await asyncio.sleep(0)
    return not wire.server.connections


async def test_a_stop_closes_idle_connections() -> None:
    async with peer_wire(member_with(ramp(SMALL))) as wire:
        assert await read_whole(wire, SMALL) == ramp(SMALL)
        assert not await no_connections(wire)
        wire.server.pre_shutdown()
        assert await no_connections(wire)


async def test_a_stop_lets_a_read_end_and_then_its_connection() -> None:
    service = member_with(ramp(SMALL))
    service.body_gate = asyncio.Event()
    async with peer_wire(service) as wire:
        async with wire.client.read(wire.member, PeerRead(REF, Extent(0, SMALL))) as reply:
            wire.server.pre_shutdown()
            service.body_gate.set()
            assert b"".join([chunk async for chunk in pieces_of(reply)]) == ramp(SMALL)
        await wire.server.idle()
        assert await no_connections(wire)
