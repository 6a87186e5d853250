"""Maintenance commands that are given to one member of a cluster, and carried out by all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.core.errors import NoSuchKey, ServiceUnavailable
from tests.engine.maintenance.maintaining import COUNT, EVERY, LIST, REFS, SIZE, Room
from tests.support.damage import block_files
from tests.support.engine import BLOCK


async def test_each_member_warms_its_blocks_and_the_progress_is_the_sum(here: Room) -> None:
    await here.time.run(here.nodes.meet())
    gate = here.gate(*here.a_block_of("c"))
    asked = here.of["a"]
    await here.time.run(asked.send("PUT", "warm", LIST))
    await here.time.until(here.time() + 5)
    report = await here.time.run(asked.send("GET", "warm"))
    assert report["state"] == "running", "one block of one member is missing"
    assert SIZE * COUNT - BLOCK <= report["bytes"]["on_disk"] < SIZE * COUNT
    # After a stop in between, the member that was asked would go on, and notify the others.
    assert [len(each.commands.under_way()) for each in here.of.values()] == [1, 0, 0]
    gate.set()
    report = await here.time.run(asked.ended())
    assert report["state"] == "done"
    assert report["objects"] == {"wanted": COUNT, "on_disk": COUNT, "failed": 0, "unsized": 0}
    assert report["bytes"] == {"wanted": COUNT * SIZE, "on_disk": COUNT * SIZE, "fetched": COUNT * SIZE}
    assert here.origin.body_bytes == COUNT * SIZE, "the bucket is asked for each block once"
    for name in here.of:
        assert here.held(name) == {block for block in EVERY if here.owner(*block) == name}
    assert (await here.time.run(here.of["b"].send("GET", "warm")))["bytes"] == report["bytes"]


async def test_the_end_of_the_own_part_is_followed_by_a_look_at_the_others(here: Room) -> None:
    """Otherwise a warm-up of few seconds lasts up to one second longer than its last block."""
    await here.time.run(here.nodes.meet())
    gate = here.gate(*here.a_block_of("a"))
    await here.time.run(here.of["a"].send("PUT", "warm", LIST))
    await here.time.until(here.time() + 5)
    gate.set()
    await here.time.until(here.time() + 0.05)
    report = await here.time.run(here.of["a"].send("GET", "warm"))
    assert (report["state"], report["bytes"]["on_disk"]) == ("done", COUNT * SIZE)


@pytest.mark.parametrize("after_its_end", [False, True])
async def test_the_part_of_a_member_that_goes_is_taken_over(after_its_end: bool, here: Room) -> None:
    """`after_its_end`: the parts of the others had ended by then."""
    await here.time.run(here.nodes.meet())
    gates = [here.gate(*here.a_block_of("c"))]
    if not after_its_end:
        gates.append(here.gate(*here.a_block_of("b")))
    await here.time.run(here.of["a"].send("PUT", "warm", LIST))
    await here.time.until(here.time() + 5)
    assert not here.of["a"].book.all()[0].running
    assert here.of["b"].book.all()[0].running is not after_its_end
    await here.lose("c")
    await here.time.until(here.time() + 5)
    for gate in gates:
        gate.set()
    report = await here.time.run(here.of["a"].ended())
    assert (report["state"], report["bytes"]["on_disk"]) == ("done", COUNT * SIZE)
    assert here.held("a") | here.held("b") == EVERY


async def test_a_member_that_forgot_its_part_is_given_it_again(here: Room) -> None:
    await here.time.run(here.nodes.meet())
    gate = here.gate(*here.a_block_of("b"))
    await here.time.run(here.of["a"].send("PUT", "warm", LIST))
    await here.time.until(here.time() + 5)
    here.of["c"].book.pop("", "mine")
    gate.set()
    report = await here.time.run(here.of["a"].ended())
    assert (report["state"], report["bytes"]["on_disk"]) == ("done", COUNT * SIZE)


async def test_an_object_that_is_missing_is_one_failure(here: Room) -> None:
    await here.time.run(here.nodes.meet())
    here.origin.delete(REFS[3])
    await here.time.run(here.of["b"].send("PUT", "warm", LIST))
    report = await here.time.run(here.of["b"].ended())
    assert (report["state"], report["objects"]["failed"]) == ("failed", 1)
    assert [failure["object"] for failure in report["failures"]] == [str(REFS[3])]


async def test_a_cancelled_warm_up_ends_at_all_members_and_is_then_forgotten_by_all(here: Room) -> None:
    await here.time.run(here.nodes.meet())
    here.gate(*here.a_block_of("c"))
    await here.time.run(here.of["a"].send("PUT", "warm", LIST, x_amz_meta_rate="3GB"))
    assert here.of["a"].book.all()[0].allowance.bytes_per_s == 10**9, "the bandwidth is shared"
    await here.time.until(here.time() + 5)
    await here.time.run(here.of["b"].send("DELETE", "warm"))
    await here.time.until(here.time() + 5)
    for commands in here.of.values():
        assert (await here.time.run(commands.send("GET", "warm")))["state"] == "cancelled"
        assert not commands.book.all()[0].running
    await here.time.run(here.of["b"].send("DELETE", "warm"))
    for commands in here.of.values():
        with pytest.raises(NoSuchKey):
            await here.time.run(commands.send("GET", "warm"))


async def test_all_members_drop_what_is_evicted(here: Room) -> None:
    await here.time.run(here.nodes.meet())
    await here.time.run(here.of["a"].send("PUT", "warm", LIST))
    await here.time.run(here.of["a"].ended())
    await here.time.run(here.of["b"].send("PUT", "evict", LIST))
    report = await here.time.run(here.of["b"].send("GET", "evict"))
    assert (report["blocks"], report["bytes"] >= COUNT * SIZE) == (COUNT * 4, True)
    assert not any(here.held(name) for name in here.of)
    del here.nodes["b"].wire.services[here.nodes["c"].address]
    with pytest.raises(ServiceUnavailable, match="member c"):
        await here.time.run(here.of["b"].send("PUT", "evict", LIST))


async def test_each_member_verifies_what_it_has_and_the_progress_is_the_sum(tmp_path: Path, here: Room) -> None:
    await here.time.run(here.nodes.meet())
    await here.time.run(here.of["a"].send("PUT", "warm", LIST))
    await here.time.run(here.of["a"].ended())
    await here.time.run(here.of["a"].send("PUT", "verify"))
    report = await here.time.run(here.of["a"].ended("verify"))
    assert (report["state"], report["blocks"]) == ("done", {"wanted": 32, "verified": 32, "bad": 0})
    assert report["bytes"]["verified"] >= COUNT * SIZE
    # A member that was started again verifies once more, and its disk has a bad block by now.
    here.of["c"].verification.cancel("", "mine")
    path = block_files(tmp_path / "c")[0]
    path.write_bytes(bytes(path.stat().st_size))
    report = await here.time.run(here.of["a"].ended("verify"))
    assert (report["state"], report["blocks"]["bad"], len(report["bad"])) == ("failed", 1, 1)
