"""Maintenance commands at the members of one cluster, without their ports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from outrider.core.cache.pins import SavedPin
from outrider.core.model import ObjectRef
from outrider.core.s3.body_integrity import UNSIGNED
from outrider.core.s3.operation import Operation, OperationKind
from outrider.engine.cluster.commands import MemberCommands
from outrider.engine.maintenance.commands_across_members import Together
from outrider.engine.maintenance.pinning import Pinning
from outrider.engine.maintenance.pins_across_members import PinsTogether
from outrider.engine.maintenance.verification import Verification
from outrider.engine.maintenance.warmup import Book
from outrider.engine.tasks.runtime import Runtime
from outrider.http.access import Loopback, Principal
from outrider.http.control.maintenance import MaintenanceCommands
from outrider.http.control.objects import ControlRequest
from tests.support.engine import BLOCK
from tests.support.fakes import AtOnce, FakeOrigin, Fault, ramp
from tests.support.members import Cluster, Node, Time, cluster

COUNT = 8
SIZE = 3 * BLOCK + 5
REFS = [ObjectRef("train", f"shard-{number:06d}.tar") for number in range(COUNT)]
LIST = b"s3://train/shard-{000000..000007}.tar"
EVERY = {(ref, index) for ref in REFS for index in range(4)}


class Commands:
    """The control bucket of one member, as far as maintenance goes."""

    def __init__(self, node: Node, time: Time) -> None:
        made, self.node, self.time = node.engine, node, time
        runtime = Runtime(made.tasks.spawn, time, time.sleep)
        self.book = Book()
        self.verification = Verification(made.store, made.tasks.spawn)

        self.saved: Sequence[SavedPin] = ()

        async def save(saved: Sequence[SavedPin]) -> None:
            self.saved = saved

        elsewhere = MemberCommands(lambda: node.membership.view, node.wire, time)
        self.pinning = Pinning(made.warmup_runner, made.fills, made.version_lookup, save)
        pins = PinsTogether(elsewhere, self.pinning, runtime)
        self.commands = MaintenanceCommands(
            self.book, made.warmup_runner, self.pinning, self.verification, Loopback((), cross_site=True), time,
            Together(elsewhere, self.book, made.warmup_runner, runtime, pins),
        )  # fmt: skip
        node.members.on_ring.append(self.pinning.ring_changed)
        node.members.on_hello.append(pins.learn)
        node.service.take_command = self.commands.command

    async def send(self, method: str, folder: str, body: bytes = b"", **headers: str) -> Any:
        async def whole(limit: int) -> bytes:
            return body

        pairs = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        operation = Operation(OperationKind.CONTROL, method, "_outrider", f"{folder}/mine", ())
        request = ControlRequest(operation, pairs, Principal(None, None, UNSIGNED), "", whole)
        answer = await self.commands.answer(request, folder, "mine")
        return json.loads(answer.body) if answer.body else None

    async def ended(self, folder: str = "warm") -> dict[str, Any]:
        """The report of a command that has ended."""
        while (report := await self.send("GET", folder))["state"] == "running":
            await self.time.sleep(0.1)
        return dict(report)


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
            node.membership.unanswered(address, self.time())


@contextmanager
def room(tmp_path: Path, **knobs: Any) -> Iterator[Room]:
    """`knobs`: of each engine."""
    time, origin = Time(), FakeOrigin(chunk_bytes=BLOCK)
    for number, ref in enumerate(REFS):
        origin.put(ref, ramp(SIZE, number))
    # Virtual time would pass while a thread reads a list.
    asyncio.get_running_loop().set_default_executor(AtOnce())
    with cluster(tmp_path, origin=origin, clock=time, sleep=time.sleep, **knobs) as nodes:
        yield Room(nodes, time)
