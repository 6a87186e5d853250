"""A warm-up that puts copies of each block at several members, or at all."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider.core.cache.block_file import usual_disk_bytes
from outrider.core.cluster.messages import Command, CommandAnswer
from outrider.core.errors import InvalidArgument
from outrider.core.maintenance.object_list import SavedWarmup
from tests.engine.maintenance.maintaining import COUNT, EVERY, LIST, REFS, SIZE, Room, room
from tests.support.engine import BLOCK

WHOLE_BYTES = COUNT * (3 * usual_disk_bytes(BLOCK) + usual_disk_bytes(5))


def ranked(here: Room, name: str, copies: int) -> set[tuple[object, int]]:
    """The blocks that have this member among their first `copies`."""
    ring = here.nodes["a"].membership.view.ring
    return {block for block in EVERY if name in [each.name for each in ring.owners(*block)[:copies]]}


@pytest.mark.parametrize(("copies", "kept"), [("all", 3), ("2", 2), ("1", 1)])
async def test_so_many_members_keep_each_block_and_the_bucket_gives_it_once(
    copies: str, kept: int, tmp_path: Path
) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        await here.time.run(here.of["a"].send("PUT", "warm", LIST, x_amz_meta_copies=copies))
        report = await here.time.run(here.of["a"].ended())
        assert (report["state"], report["copies"], report["notes"]) == ("done", copies, [])
        assert report["objects"] == {"wanted": COUNT, "on_disk": COUNT, "failed": 0, "unsized": 0}
        whole = kept * COUNT * SIZE
        assert report["bytes"] == {"wanted": whole, "on_disk": whole, "fetched": whole}
        assert here.origin.body_bytes == COUNT * SIZE
        for name in here.of:
            assert here.held(name) == ranked(here, name, kept)
        # All of it is there: nothing is fetched again.
        before = len(here.origin.log)
        await here.time.run(here.of["b"].send("PUT", "warm", LIST, x_amz_meta_copies=copies))
        report = await here.time.run(here.of["b"].ended())
        assert (report["bytes"]["on_disk"], report["bytes"]["fetched"], len(here.origin.log)) == (whole, 0, before)


async def test_own_blocks_come_first_and_each_member_begins_with_the_one_after_it(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        gate = here.gate(*here.a_block_of("b"))
        await here.time.run(here.of["a"].send("PUT", "warm", LIST, x_amz_meta_copies="all"))
        await here.time.until(here.time() + 5)
        own = {block for block in EVERY if here.owner(*block) == "b"}
        assert here.held("b") < own, "while one of its own is missing, it asks for no copy"
        gate.set()
        report = await here.time.run(here.of["a"].ended())
        assert report["bytes"]["on_disk"] == 3 * COUNT * SIZE
        for name, first, then in (("a", "b", "c"), ("b", "c", "a"), ("c", "a", "b")):
            reads = here.nodes[name].wire.reads
            # The others are of own blocks, of which the ring of a moment ago had another owner.
            asked = [
                (read.ref, member) for member, read in reads if read.extent is not None and not read.only_if_cached
            ]
            assert len(asked) == len(EVERY) - len(ranked(here, name, 1))
            for ref in REFS:
                of = [member for each, member in asked if each == ref]
                assert of == sorted(of, key=[first, then].index), (name, ref)


async def test_copies_for_which_a_member_has_no_room_fail_and_its_own_blocks_stay(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        here.nodes["b"].engine.store.disks[0].budget.capacity_bytes = WHOLE_BYTES - 1
        await here.time.run(here.of["a"].send("PUT", "warm", LIST, x_amz_meta_copies="all"))
        report = await here.time.run(here.of["a"].ended())
        assert (report["state"], report["objects"]["failed"]) == ("failed", 1)
        assert [failure["error"] for failure in report["failures"]] == [
            "no room for a copy at b: 1 bytes are missing in the cache"
        ]
        assert here.held("a") == here.held("c") == EVERY
        assert here.held("b") >= {block for block in EVERY if here.owner(*block) == "b"}


async def test_more_copies_than_members_are_as_many_as_members_and_that_is_said(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        await here.time.run(here.of["c"].send("PUT", "warm", LIST, x_amz_meta_copies="5"))
        report = await here.time.run(here.of["c"].ended())
        assert (report["state"], report["bytes"]["on_disk"]) == ("done", 3 * COUNT * SIZE)
        assert report["notes"] == ["5 copies are wanted, and there are 3 members: each of them keeps one"]


async def test_a_member_of_0_2_keeps_what_it_owns_and_that_is_said(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        take = here.of["b"].commands.command

        async def as_before_0_3(command: Command) -> CommandAnswer:
            answer = await take(replace(command, copies=None))
            report = answer.report or {}
            return replace(answer, report={name: report[name] for name in report if name not in ("copies", "notes")})

        here.nodes["b"].service.take_command = as_before_0_3
        await here.time.run(here.of["a"].send("PUT", "warm", LIST, x_amz_meta_copies="all"))
        report = await here.time.run(here.of["a"].ended())
        assert report["state"] == "done"
        assert report["notes"] == ["b is older than 0.3: it keeps the blocks that it owns, and no copies of others"]
        assert here.held("a") == here.held("c") == EVERY
        assert here.held("b") == {block for block in EVERY if here.owner(*block) == "b"}


async def test_a_warm_up_goes_on_with_its_copies_after_a_start(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        gate, commands = here.gate(*here.a_block_of("a")), here.of["a"].commands
        await here.time.run(here.of["a"].send("PUT", "warm", LIST, x_amz_meta_copies="2"))
        await here.time.until(here.time() + 1)
        [saved] = commands.under_way()
        assert saved == SavedWarmup("", "mine", LIST.decode(), saved.at, 0.0, 2)
        # Another number of copies is another warm-up.
        await here.time.run(here.of["a"].send("PUT", "warm", LIST, x_amz_meta_copies="all"))
        assert commands.under_way()[0].copies == 0
        await here.time.run(here.of["a"].send("DELETE", "warm"))
        await here.time.until(here.time() + 5)
        await here.time.run(here.of["a"].send("DELETE", "warm"))
        gate.set()
        await here.time.run(commands.resume([saved]))
        report = await here.time.run(here.of["a"].ended())
        assert (report["copies"], report["bytes"]["on_disk"]) == ("2", 2 * COUNT * SIZE)


@pytest.mark.parametrize(("folder", "copies", "why"), [
    ("warm", "0", "neither all nor a number"), ("warm", "-1", "neither all"), ("warm", "many", "'many' is neither all"),
    ("pin", "all", "a pin keeps each block where it is owned"),
])  # fmt: skip
async def test_copies_that_make_no_sense_are_refused(folder: str, copies: str, why: str, tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        with pytest.raises(InvalidArgument, match=why):
            await here.time.run(here.of["a"].send("PUT", folder, LIST, x_amz_meta_copies=copies))
