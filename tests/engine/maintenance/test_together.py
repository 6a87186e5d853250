"""Maintenance commands that are given to one member of a cluster, and carried out by all of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from outrider.core.errors import NoSuchKey, ServiceUnavailable
from outrider.core.model import ObjectRef
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.core.s3.operation import Kind, Operation
from outrider.engine.cluster.commands import CommandsElsewhere
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.together import Together
from outrider.engine.maintenance.verification import Verification
from outrider.engine.maintenance.warmup import Book
from outrider.engine.tasks.runtime import Runtime
from outrider.http.access import Loopback, Who
from outrider.http.control.maintenance import MaintenanceCommands
from outrider.http.control.objects import ControlRequest
from tests.support.damage import block_files
from tests.support.engine import BLOCK
from tests.support.fakes import AtOnce, FakeOrigin, Fault, ramp
from tests.support.members import Cluster, Node, Time, cluster

COUNT = 8
SIZE = 3 * BLOCK + 5
REFS = [ObjectRef("train", f"shard-{number:06d}.tar") for number in range(COUNT)]
LIST = b"s3://train/shard-{000000..000007}.tar"


class Commands:
    """The control bucket of one member, as far as maintenance goes."""

    def __init__(self, node: Node, time: Time) -> None:
        made, self.node, self.time = node.engine, node, time
        runtime = Runtime(made.tasks.spawn, time, time.sleep)
        self.book = Book()
        self.verification = Verification(made.store, made.tasks.spawn)

        async def save(saved: object) -> None:
            pass

        elsewhere = CommandsElsewhere(lambda: node.membership.view, node.wire)
        self.commands = MaintenanceCommands(
            self.book, made.warmup_runner, Pinning(made.warmup_runner, made.fills, made.version_lookup, save),
            self.verification, Loopback((), cross_site=True), time,
            Together(elsewhere, self.book, made.warmup_runner, runtime),
        )  # fmt: skip
        node.service.take_command = self.commands.command

    async def send(self, method: str, folder: str, body: bytes = b"", **headers: str) -> Any:
        async def whole(limit: int) -> bytes:
            return body

        told = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        operation = Operation(Kind.CONTROL, method, "_outrider", f"{folder}/mine", ())
        request = ControlRequest(operation, told, Who(None, None, UNSIGNED), "", whole)
        answer = await self.commands.answer(request, folder, "mine")
        return json.loads(answer.body) if answer.body else None

    async def ended(self, folder: str = "warm") -> dict[str, Any]:
        """The progress when it is over."""
        while (told := await self.send("GET", folder))["state"] == "running":
            await self.time.sleep(0.1)
        return dict(told)


class Room:
    def __init__(self, nodes: Cluster, time: Time) -> None:
        self.nodes, self.time, self.origin = nodes, time, nodes.origin
        self.of = {node.name: Commands(node, time) for node in nodes}

    def owner(self, ref: ObjectRef, index: int) -> str:
        return self.nodes.owner_of(ref, index).name

    def a_block_of(self, name: str) -> tuple[ObjectRef, int]:
        return next((ref, index) for ref in REFS for index in range(4) if self.owner(ref, index) == name)

    def held(self, name: str) -> set[tuple[ObjectRef, int]]:
        store = self.nodes[name].engine.store
        found = [(key, store.version_of(key)) for key in store.present()]
        return {(version.ref, key.index) for key, version in found if version is not None}

    def gate(self, ref: ObjectRef, index: int) -> asyncio.Event:
        """The bucket's reply with this block waits for the event."""
        gate = asyncio.Event()
        self.origin.faults.append(Fault(times=None, key=ref.key, from_byte=index * BLOCK, body_gate=gate))
        return gate

    async def lose(self, name: str) -> None:
        """A member is away, and the others have noticed."""
        address = self.nodes[name].address
        for node in self.nodes:
            node.wire.services.pop(address, None)
            node.membership.unheard(address, self.time())


@contextmanager
def room(tmp_path: Path) -> Iterator[Room]:
    time, origin = Time(), FakeOrigin(chunk_bytes=BLOCK)
    for number, ref in enumerate(REFS):
        origin.put(ref, ramp(SIZE, number))
    # Virtual time would pass while a thread reads a list.
    asyncio.get_running_loop().set_default_executor(AtOnce())
    with cluster(tmp_path, origin=origin, clock=time, sleep=time.sleep) as nodes:
        yield Room(nodes, time)


EVERY = {(ref, index) for ref in REFS for index in range(4)}


async def test_each_member_warms_its_blocks_and_the_progress_is_the_sum(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        gate = here.gate(*here.a_block_of("c"))
        asked = here.of["a"]
        await here.time.run(asked.send("PUT", "warm", LIST))
        await here.time.until(here.time() + 5)
        told = await here.time.run(asked.send("GET", "warm"))
        assert told["state"] == "running", "one block of one member is missing"
        assert SIZE * COUNT - BLOCK <= told["bytes"]["on_disk"] < SIZE * COUNT
        # After a stop in between, the member that was asked would go on, and tell the others.
        assert [len(each.commands.under_way()) for each in here.of.values()] == [1, 0, 0]
        gate.set()
        told = await here.time.run(asked.ended())
        assert told["state"] == "done"
        assert told["objects"] == {"wanted": COUNT, "on_disk": COUNT, "failed": 0, "unsized": 0}
        assert told["bytes"] == {"wanted": COUNT * SIZE, "on_disk": COUNT * SIZE, "fetched": COUNT * SIZE}
        assert here.origin.body_bytes == COUNT * SIZE, "the bucket is asked for each block once"
        for name in here.of:
            assert here.held(name) == {block for block in EVERY if here.owner(*block) == name}
        assert (await here.time.run(here.of["b"].send("GET", "warm")))["bytes"] == told["bytes"]


@pytest.mark.parametrize("after_its_end", [False, True])
async def test_the_part_of_a_member_that_goes_is_taken_over(after_its_end: bool, tmp_path: Path) -> None:
    """`after_its_end`: the parts of the others had ended by then."""
    with room(tmp_path) as here:
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
        told = await here.time.run(here.of["a"].ended())
        assert (told["state"], told["bytes"]["on_disk"]) == ("done", COUNT * SIZE)
        assert here.held("a") | here.held("b") == EVERY


async def test_a_member_that_forgot_its_part_is_told_again(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        gate = here.gate(*here.a_block_of("b"))
        await here.time.run(here.of["a"].send("PUT", "warm", LIST))
        await here.time.until(here.time() + 5)
        here.of["c"].book.pop("", "mine")
        gate.set()
        told = await here.time.run(here.of["a"].ended())
        assert (told["state"], told["bytes"]["on_disk"]) == ("done", COUNT * SIZE)


async def test_an_object_that_is_missing_is_one_failure(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        here.origin.delete(REFS[3])
        await here.time.run(here.of["b"].send("PUT", "warm", LIST))
        told = await here.time.run(here.of["b"].ended())
        assert (told["state"], told["objects"]["failed"]) == ("failed", 1)
        assert [failure["object"] for failure in told["failures"]] == [str(REFS[3])]


async def test_a_cancelled_warm_up_ends_at_all_members_and_is_then_forgotten_by_all(tmp_path: Path) -> None:
    with room(tmp_path) as here:
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


async def test_all_members_drop_what_is_evicted(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        await here.time.run(here.of["a"].send("PUT", "warm", LIST))
        await here.time.run(here.of["a"].ended())
        await here.time.run(here.of["b"].send("PUT", "evict", LIST))
        told = await here.time.run(here.of["b"].send("GET", "evict"))
        assert (told["blocks"], told["bytes"] >= COUNT * SIZE) == (COUNT * 4, True)
        assert not any(here.held(name) for name in here.of)
        del here.nodes["b"].wire.services[here.nodes["c"].address]
        with pytest.raises(ServiceUnavailable, match="member c"):
            await here.time.run(here.of["b"].send("PUT", "evict", LIST))


async def test_each_member_verifies_what_it_has_and_the_progress_is_the_sum(tmp_path: Path) -> None:
    with room(tmp_path) as here:
        await here.time.run(here.nodes.meet())
        await here.time.run(here.of["a"].send("PUT", "warm", LIST))
        await here.time.run(here.of["a"].ended())
        await here.time.run(here.of["a"].send("PUT", "verify"))
        told = await here.time.run(here.of["a"].ended("verify"))
        assert (told["state"], told["blocks"]) == ("done", {"wanted": 32, "verified": 32, "bad": 0})
        assert told["bytes"]["verified"] >= COUNT * SIZE
        # A member that was started again verifies once more, and its disk has a bad block by now.
        here.of["c"].verification.cancel("", "mine")
        path = block_files(tmp_path / "c")[0]
        path.write_bytes(bytes(path.stat().st_size))
        told = await here.time.run(here.of["a"].ended("verify"))
        assert (told["state"], told["blocks"]["bad"], len(told["bad"])) == ("failed", 1, 1)
