"""Pins that are given to one member of a cluster: each member keeps the blocks that it owns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.core.cache.block_file import usual_disk_bytes
from outrider.core.cluster.membership import AWAY_S
from outrider.core.cluster.messages import Command, CommandAnswer
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.errors import NoRoom, NoSuchKey
from outrider.core.model import ObjectRef
from tests.engine.maintenance.maintaining import COUNT, EVERY, LIST, REFS, SIZE, Room, room
from tests.support.engine import BLOCK

A_FEW = b"s3://train/shard-{000000..000001}.tar"
DISK_BYTES = COUNT * (3 * usual_disk_bytes(BLOCK) + usual_disk_bytes(5))


def reserved(here: Room) -> dict[str, int]:
    return {node.name: node.engine.pins.reserved_bytes for node in here.nodes}


def owned(here: Room, name: str) -> set[tuple[ObjectRef, int]]:
    return {block for block in EVERY if here.owner(*block) == name}


def kept(here: Room, name: str) -> set[tuple[ObjectRef, int]]:
    """The blocks that the member has, and must not evict."""
    made = here.nodes[name].engine
    found = [(key, made.store.version_of(key)) for key in made.store.present() if made.pins.holds_block(key)]
    return {(version.ref, key.index) for key, version in found if version is not None}


async def pinned(here: Room, asked: str = "a", body: bytes = LIST) -> None:
    """The pin is given to one member, and kept by all."""
    await here.time.run(here.of[asked].send("PUT", "pin", body))
    assert (await here.time.run(here.of[asked].ended("pin")))["state"] == "done"


async def met(here: Room, names: str, after_s: float = 0.0) -> None:
    """These members, and those that look after them, have greeted each other, `after_s` from now."""
    await here.time.until(here.time() + after_s)
    for name in names:
        await here.time.run(here.nodes[name].list([*names]))
    greets = [asyncio.create_task(node.greets()) for node in here.nodes]
    await here.time.until(here.time() + 1.1)
    for each in greets:
        each.cancel()
    await here.time.until(here.time() + 4)


async def test_each_member_keeps_the_blocks_that_it_owns(here: Room) -> None:
    await here.time.run(here.nodes.meet())
    await pinned(here)
    assert all(kept(here, name) == owned(here, name) == here.held(name) for name in here.of)
    assert (sum(reserved(here).values()), min(reserved(here).values()) > 0) == (DISK_BYTES, True)
    assert here.origin.body_bytes == COUNT * SIZE, "the bucket is asked for each block once"
    for each in here.of.values():
        report = await here.time.run(each.send("GET", "pin"))
        assert (report["state"], report["reserved_bytes"]) == ("done", DISK_BYTES)
        assert report["bytes"] == {"wanted": COUNT * SIZE, "on_disk": COUNT * SIZE, "fetched": COUNT * SIZE}
        assert report["objects"] == {"wanted": COUNT, "on_disk": COUNT, "failed": 0, "unsized": 0}
    # A copy of another's block may go.
    near = here.a_block_of("b")
    await here.time.run(here.nodes["a"].get(near[0]))
    await here.time.run(here.nodes.settle())
    assert near in here.held("a")
    await here.time.run(here.of["c"].send("PUT", "evict", LIST))
    assert (await here.time.run(here.of["c"].send("GET", "evict")))["pinned_blocks"] == len(EVERY)
    assert all(here.held(name) == owned(here, name) for name in here.of)
    await here.time.run(here.of["b"].send("DELETE", "pin"))
    assert set(reserved(here).values()) == {0}
    for each in here.of.values():
        with pytest.raises(NoSuchKey):
            await here.time.run(each.send("GET", "pin"))


def part_bytes(here: Room, name: str) -> int:
    """The room that the member's part of the pin takes."""
    return sum(usual_disk_bytes(5 if index == 3 else BLOCK) for _, index in owned(here, name))


@pytest.mark.parametrize("before", [b"", A_FEW], ids=["none", "a smaller one"])
async def test_a_pin_is_refused_by_a_member_that_is_asked_and_has_no_room_for_its_part(
    before: bytes, here: Room
) -> None:
    """Nothing has changed: the pin of that name that was kept before is kept still."""
    await here.time.run(here.nodes.meet())
    if before:
        await pinned(here, "b", before)
    bytes_before, blocks_before = reserved(here), {name: kept(here, name) for name in here.of}
    here.nodes["a"].engine.store.disks[0].budget.capacity_bytes = part_bytes(here, "a") - 1
    with pytest.raises(NoRoom, match="The member a: 1 bytes are missing"):
        await here.time.run(here.of["a"].send("PUT", "pin", LIST))
    await met(here, "abc", 61)
    assert reserved(here) == bytes_before
    assert {name: kept(here, name) for name in here.of} == blocks_before
    assert [len(each.pinning.book.all()) for each in here.of.values()] == [bool(before)] * 3


async def test_a_pin_is_failed_while_a_part_does_not_fit_and_names_the_member(here: Room) -> None:
    """The others keep their parts. Nothing is left of the pin of that name before."""
    await here.time.run(here.nodes.meet())
    await pinned(here, "c", A_FEW)
    here.nodes["b"].engine.store.disks[0].budget.capacity_bytes = part_bytes(here, "b") - 1
    await here.time.run(here.of["a"].send("PUT", "pin", LIST))
    report = await here.time.run(here.of["a"].ended("pin"))
    (failure,) = report["failures"]
    assert (report["state"], failure["object"]) == ("failed", "the part of b")
    assert "1 bytes are missing" in failure["error"]
    assert (reserved(here)["b"], report["reserved_bytes"]) == (0, sum(reserved(here).values()))
    assert all(kept(here, name) == owned(here, name) for name in "ac")
    # Whichever member is asked.
    assert (await here.time.run(here.of["b"].send("GET", "pin")))["failures"] == [failure]


async def test_a_pin_that_is_given_while_a_member_is_away_is_done_when_that_one_is_back(here: Room) -> None:
    await here.time.run(here.nodes.meet())
    service, address = here.nodes["c"].service, here.nodes["c"].address
    await here.lose("c")
    await here.time.run(here.of["a"].send("PUT", "pin", LIST))
    await here.time.until(here.time() + 5)
    assert (await here.time.run(here.of["a"].send("GET", "pin")))["state"] == "running"
    assert kept(here, "c") == set()
    for name in "ab":
        here.nodes[name].wire.services[address] = service
    await met(here, "abc", 61)
    assert (await here.time.run(here.of["a"].ended("pin")))["state"] == "done"
    assert all(kept(here, name) == owned(here, name) for name in here.of)


@pytest.mark.parametrize("before", [b"", A_FEW], ids=["none", "a smaller one"])
async def test_a_member_that_missed_a_pin_asks_for_it(before: bytes, here: Room) -> None:
    """Its part of an earlier pin of that name does not count."""
    await here.time.run(here.nodes.meet())
    if before:
        await pinned(here, "b", before)
    commands = here.of["c"].commands

    async def misses_puts(command: Command) -> CommandAnswer:
        if command.verb == "put":
            raise PeerFailed("broke")
        return await commands.command(command)

    here.nodes["c"].service.take_command = misses_puts
    await here.time.run(here.of["a"].send("PUT", "pin", LIST))
    await here.time.until(here.time() + 5)
    assert (await here.time.run(here.of["a"].send("GET", "pin")))["state"] == "running"
    await met(here, "abc", 61)
    assert (await here.time.run(here.of["a"].ended("pin")))["state"] == "done"
    assert kept(here, "c") == owned(here, "c")


@pytest.mark.parametrize("before", [b"", A_FEW], ids=["none", "a smaller one"])
async def test_a_member_of_0_2_may_give_a_pin_back(before: bytes, here: Room) -> None:
    """There a pin was reserved by all ("put"), and then begun, or given back ("cancel") for the one before it."""
    await here.time.run(here.nodes.meet())
    if before:
        await pinned(here, "a", before)
    bytes_before = reserved(here)["c"]
    await here.time.run(here.of["a"].send("PUT", "pin", LIST))
    (pin,) = here.of["a"].pinning.book.all()
    for verb in ("put", "begin"):
        answer = await here.of["c"].commands.command(Command("a", verb, "pin", "", "mine", LIST, at=pin.at))
        assert answer.error == ""
    await here.time.until(here.time() + 5)
    assert kept(here, "c") == owned(here, "c")
    # So does such a member with its own part.
    await here.time.run(here.of["a"].pinning.unpin("", "mine"))
    if before:
        await here.time.run(here.of["a"].send("PUT", "pin", before))
    await here.of["c"].commands.command(Command("a", "cancel", "pin", "", "mine", at=pin.at))
    await met(here, "abc", 61)
    assert reserved(here)["c"] == bytes_before


async def test_the_blocks_of_a_member_that_leaves_are_kept_by_the_others(tmp_path: Path) -> None:
    """Not while it is away for a moment, even if another one joins meanwhile."""
    with room(tmp_path, names="abcd") as here:
        for node in here.nodes:
            node.members.ready()
        await met(here, "abc")
        await pinned(here)
        before = reserved(here)
        await here.lose("c")
        await met(here, "ab", AWAY_S / 2)
        assert reserved(here) == before
        assert (await here.time.run(here.of["a"].send("GET", "pin")))["state"] == "running", "a part is away"
        await met(here, "abd")
        assert all(kept(here, name) == owned(here, name) != set() for name in "ab")
        await met(here, "abd", AWAY_S)
        assert sum(len(kept(here, name)) for name in "abd") == len(EVERY)
        assert set.union(*(kept(here, name) for name in "abd")) == EVERY
        assert sum(reserved(here)[name] for name in "abd") == DISK_BYTES
        report = await here.time.run(here.of["a"].send("GET", "pin"))
        assert (report["state"], report["bytes"]["on_disk"], report["objects"]["on_disk"]) == (
            "done",
            COUNT * SIZE,
            COUNT,
        )


async def test_a_member_that_joins_keeps_its_part(here: Room) -> None:
    for node in here.nodes:
        node.members.ready()
    await met(here, "ab")
    await pinned(here)
    assert kept(here, "a") | kept(here, "b") == EVERY
    await met(here, "abc")
    assert all(kept(here, name) == owned(here, name) != set() for name in here.of)
    assert sum(reserved(here).values()) == DISK_BYTES
    assert (await here.time.run(here.of["c"].send("GET", "pin")))["state"] == "done"


async def test_a_member_learns_of_pins_that_it_lost_or_missed_the_end_of(here: Room) -> None:
    await here.time.run(here.nodes.meet())
    await pinned(here)
    # As after a start with an empty directory.
    await here.time.run(here.of["c"].pinning.unpin("", "mine"))
    await met(here, "abc", 61)
    assert kept(here, "c") == owned(here, "c")
    del here.nodes["a"].wire.services[here.nodes["c"].address]
    await here.time.run(here.of["a"].send("DELETE", "pin"))
    assert (reserved(here)["a"], reserved(here)["c"] > 0) == (0, True)
    here.nodes["a"].wire.services[here.nodes["c"].address] = here.nodes["c"].service
    await met(here, "abc", 61)
    assert set(reserved(here).values()) == {0}


async def test_the_end_of_a_pin_outlives_a_start_of_all_members_that_knew_of_it(here: Room) -> None:
    await here.time.run(here.nodes.meet())
    await pinned(here)
    del here.nodes["a"].wire.services[here.nodes["c"].address]
    await here.time.run(here.of["a"].send("DELETE", "pin"))
    for name in "ab":
        pinning, saved = here.of[name].pinning, here.of[name].saved
        pinning.ended.clear()
        pinning.restore(saved, 10 * DISK_BYTES)
        pinning.resume()
    here.nodes["a"].wire.services[here.nodes["c"].address] = here.nodes["c"].service
    await met(here, "abc", 61)
    assert set(reserved(here).values()) == {0}, "the member that was away does not bring it back"


async def test_a_member_without_room_for_its_part_says_so(here: Room) -> None:
    """It keeps the pin, and reserves the part once that has become small enough."""
    for node in here.nodes:
        node.members.ready()
    await met(here, "ab")
    budget = here.nodes["c"].engine.store.disks[0].budget
    usual, budget.capacity_bytes = budget.capacity_bytes, usual_disk_bytes(BLOCK)
    await pinned(here)
    await met(here, "abc")
    report = await here.time.run(here.of["a"].send("GET", "pin"))
    assert (report["state"], reserved(here)["c"], kept(here, "c")) == ("failed", 0, set())
    assert "bytes are missing" in report["failures"][0]["error"]
    budget.capacity_bytes = usual
    await here.lose("b")
    await met(here, "ac", 2 * AWAY_S)
    assert kept(here, "a") | kept(here, "c") == EVERY
    assert (await here.time.run(here.of["a"].send("GET", "pin")))["state"] == "done"


async def test_a_warm_up_that_fits_the_members_together_is_brought(here: Room) -> None:
    """No member has room for all of it. One that has no room for its own part says so."""
    await here.time.run(here.nodes.meet())
    for node in here.nodes:
        node.engine.store.disks[0].budget.capacity_bytes = part_bytes(here, node.name)
    await here.time.run(here.of["a"].send("PUT", "warm", LIST))
    report = await here.time.run(here.of["a"].ended())
    assert (report["state"], report["bytes"]["on_disk"]) == ("done", COUNT * SIZE)
    here.nodes["b"].engine.store.disks[0].budget.capacity_bytes = 3 * usual_disk_bytes(BLOCK)
    await here.time.run(here.of["a"].send("PUT", "warm", LIST))
    report = await here.time.run(here.of["a"].ended())
    assert (report["state"], "no room" in report["failures"][0]["error"]) == ("failed", True)
    assert {failure["object"] for failure in report["failures"]} <= {str(ref) for ref in REFS}
