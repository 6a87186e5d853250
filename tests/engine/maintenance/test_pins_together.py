"""Pins that are given to one member of a cluster: each member keeps the blocks that it owns, or none does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from outrider.core.cache.block_file import usual_disk_bytes
from outrider.core.cluster.command_messages import Command, CommandAnswer
from outrider.core.cluster.membership import AWAY_S
from outrider.core.cluster.peer_messages import PeerFailed
from outrider.core.errors import NoRoom, NoSuchKey, ServiceUnavailable
from outrider.core.model import ObjectRef
from outrider.http.control.maintenance import MaintenanceCommands
from tests.support.engine import BLOCK
from tests.support.maintaining import COUNT, EVERY, LIST, REFS, SIZE, Room, room

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
    for node in here.nodes:
        node.membership.passed(here.time())
        node.members._changed()
    await here.time.until(here.time() + 5)


async def test_each_member_keeps_the_blocks_that_it_owns(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        await pinned(here)
        assert all(kept(here, name) == owned(here, name) == here.held(name) for name in here.of)
        assert (sum(reserved(here).values()), min(reserved(here).values()) > 0) == (DISK_BYTES, True)
        assert here.origin.body_bytes == COUNT * SIZE, "the bucket is asked for each block once"
        for each in here.of.values():
            told = await here.time.run(each.send("GET", "pin"))
            assert (told["state"], told["reserved_bytes"]) == ("done", DISK_BYTES)
            assert told["bytes"] == {"wanted": COUNT * SIZE, "on_disk": COUNT * SIZE, "fetched": COUNT * SIZE}
            assert told["objects"] == {"wanted": COUNT, "on_disk": COUNT, "failed": 0, "unsized": 0}
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
@pytest.mark.parametrize("short", ["a", "b"])
async def test_a_pin_that_does_not_fit_at_one_member_is_kept_by_none(
    short: str, before: bytes, tmp_path: Path
) -> None:  # fmt: skip
    """The pin of that name that was kept before is kept still. The member `a` is asked."""
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        if before:
            await pinned(here, "b", before)
        bytes_before, blocks_before = reserved(here), {name: kept(here, name) for name in here.of}
        here.nodes[short].engine.store.budget.capacity_bytes = part_bytes(here, short) - 1
        with pytest.raises(NoRoom, match=f"The member {short}: 1 bytes are missing"):
            await here.time.run(here.of["a"].send("PUT", "pin", LIST))
        await here.time.until(here.time() + 5)
        assert reserved(here) == bytes_before
        assert {name: kept(here, name) for name in here.of} == blocks_before
        for each in here.of.values():
            assert len(each.pinning.book.all()) == bool(before)
        # Nor is it by a member that hears later of what others keep.
        await met(here, "abc", 61)
        assert reserved(here) == bytes_before


async def test_no_pin_is_given_while_a_member_is_away(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        await here.lose("c")
        with pytest.raises(ServiceUnavailable, match="member c is away"):
            await here.time.run(here.of["a"].send("PUT", "pin", LIST))
        assert not any(each.pinning.book.all() for each in here.of.values())


@pytest.mark.parametrize("before", [b"", A_FEW], ids=["none", "a smaller one"])
@pytest.mark.parametrize("heard", ["nothing", "put and cancel", "put"])
async def test_a_member_that_does_not_answer_leaves_no_pin_behind(heard: str, before: bytes, tmp_path: Path) -> None:
    """One that did not hear either that all give back does so once it hears of the pins of the others."""
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        if before:
            await pinned(here, "b", before)
        bytes_before = reserved(here)
        commands = here.of["c"].commands

        async def silent(command: Command) -> CommandAnswer:
            is_heard = command.verb in heard or command.verb not in ("put", "cancel")
            answer = await commands.command(command) if is_heard else None
            if answer is None or command.verb == "put":
                raise PeerFailed("broke")
            return answer

        here.nodes["c"].service.take_command = silent
        with pytest.raises(ServiceUnavailable, match="member c did not reserve its part: it does not answer"):
            await here.time.run(here.of["a"].send("PUT", "pin", LIST))
        await here.time.until(here.time() + 5)
        assert (reserved(here) == bytes_before) is (heard != "put")
        here.nodes["c"].service.take_command = commands.command
        for _ in range(3):
            await met(here, "abc", 61)
            for each in here.of.values():
                each.pinning.check_again()
        await met(here, "abc", 61)
        assert reserved(here) == bytes_before
        assert [len(each.pinning.book.all()) for each in here.of.values()] == [bool(before)] * 3


async def test_a_member_that_joins_while_a_pin_is_reserved_hears_of_it_when_it_is_kept(tmp_path: Path) -> None:
    with room(tmp_path, names="abcd") as here:
        for node in here.nodes:
            node.members.ready()
        await met(here, "abc")
        commands, gate = here.of["b"].commands, asyncio.Event()

        async def slow(command: Command) -> CommandAnswer:
            if command.verb == "put":
                await gate.wait()
            return await commands.command(command)

        here.nodes["b"].service.take_command = slow
        giving = asyncio.ensure_future(here.of["a"].send("PUT", "pin", LIST))

        async def given() -> None:
            await giving

        await here.time.until(here.time() + 5)
        await met(here, "abcd")
        assert not here.of["d"].pinning.book.all()
        gate.set()
        await here.time.run(given())
        await met(here, "abcd", 61)
        assert all(kept(here, name) == owned(here, name) != set() for name in here.of)


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
        told = await here.time.run(here.of["a"].send("GET", "pin"))
        assert (told["state"], told["bytes"]["on_disk"], told["objects"]["on_disk"]) == ("done", COUNT * SIZE, COUNT)


async def test_a_member_that_joins_keeps_its_part(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        for node in here.nodes:
            node.members.ready()
        await met(here, "ab")
        await pinned(here)
        assert kept(here, "a") | kept(here, "b") == EVERY
        await met(here, "abc")
        assert all(kept(here, name) == owned(here, name) != set() for name in here.of)
        assert sum(reserved(here).values()) == DISK_BYTES
        assert (await here.time.run(here.of["c"].send("GET", "pin")))["state"] == "done"


async def test_a_member_hears_of_pins_that_it_lost_or_missed_the_end_of(tmp_path: Path) -> None:
    with room(tmp_path) as here:
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


async def test_the_end_of_a_pin_outlives_a_start_of_all_members_that_heard_of_it(tmp_path: Path) -> None:
    with room(tmp_path) as here:
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


async def test_a_member_without_room_for_its_part_says_so(tmp_path: Path) -> None:
    """It keeps the pin, and reserves the part once that has become small enough."""
    with room(tmp_path) as here:
        for node in here.nodes:
            node.members.ready()
        await met(here, "ab")
        budget = here.nodes["c"].engine.store.budget
        usual, budget.capacity_bytes = budget.capacity_bytes, usual_disk_bytes(BLOCK)
        await pinned(here)
        await met(here, "abc")
        told = await here.time.run(here.of["a"].send("GET", "pin"))
        assert (told["state"], reserved(here)["c"], kept(here, "c")) == ("failed", 0, set())
        assert "bytes are missing" in told["failures"][0]["error"]
        budget.capacity_bytes = usual
        await here.lose("b")
        await met(here, "ac", 2 * AWAY_S)
        assert kept(here, "a") | kept(here, "c") == EVERY
        assert (await here.time.run(here.of["a"].send("GET", "pin")))["state"] == "done"


async def test_a_pin_whose_leader_falls_silent_is_brought_all_the_same(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        for name in "bc":

            async def deaf(command: Command, commands: MaintenanceCommands = here.of[name].commands) -> CommandAnswer:
                return CommandAnswer() if command.verb == "begin" else await commands.command(command)

            here.nodes[name].service.take_command = deaf
        await here.time.run(here.of["a"].send("PUT", "pin", LIST))
        await here.time.until(here.time() + 5)
        assert not kept(here, "b") | kept(here, "c")
        for _ in range(3):
            await here.time.until(here.time() + 61)
            for each in here.of.values():
                each.pinning.check_again()
        await here.time.until(here.time() + 5)
        assert all(kept(here, name) == owned(here, name) for name in here.of)


async def test_a_warm_up_that_fits_the_members_together_is_brought(tmp_path: Path) -> None:
    """No member has room for all of it. One that has no room for its own part says so."""
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        for node in here.nodes:
            node.engine.store.budget.capacity_bytes = part_bytes(here, node.name)
        await here.time.run(here.of["a"].send("PUT", "warm", LIST))
        told = await here.time.run(here.of["a"].ended())
        assert (told["state"], told["bytes"]["on_disk"]) == ("done", COUNT * SIZE)
        here.nodes["b"].engine.store.budget.capacity_bytes = 3 * usual_disk_bytes(BLOCK)
        await here.time.run(here.of["a"].send("PUT", "warm", LIST))
        told = await here.time.run(here.of["a"].ended())
        assert (told["state"], "no room" in told["failures"][0]["error"]) == ("failed", True)
        assert {failure["object"] for failure in told["failures"]} <= {str(ref) for ref in REFS}
