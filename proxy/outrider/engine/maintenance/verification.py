"""Verification by command: blocks are read and their checksums compared. Bad blocks are dropped and reported."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from outrider.core.cache.block_file import BlockMeta
from outrider.core.maintenance.progress import State
from outrider.core.model import BlockKey, ObjectRef
from outrider.engine.tasks.runtime import Spawn
from outrider.engine.tasks.task_group import TaskGroup
from outrider.ports import ControlledStore

# Verifications of one owner; a new one replaces the oldest.
NAMES_MAX = 15
_BAD_REPORTED_MAX = 1000
_AT_ONCE = 4
_Bytes = bytes


@dataclass(slots=True)
class Check:
    """One verification. `bad`: for each bad block its object, its index, and what is wrong with it."""

    owner: str
    name: str
    state: State = State.RUNNING
    blocks: int = 0
    verified: int = 0
    bytes: int = 0
    bad_blocks: int = 0
    bad: list[dict[str, object]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None
    body: _Bytes = b""
    """The list as it was sent."""

    def report(self, bad_max: int = _BAD_REPORTED_MAX) -> dict[str, Any]:
        return {
            "name": self.name, "state": self.state.value,
            "blocks": {"wanted": self.blocks, "verified": self.verified, "bad": self.bad_blocks},
            "bytes": {"verified": self.bytes}, "bad": self.bad[:bad_max],
        }  # fmt: skip


class Verification:
    """Called on the engine's thread."""

    def __init__(self, store: ControlledStore, spawn: Spawn) -> None:
        self._store = store
        self._spawn = spawn
        self._checks: dict[tuple[str, str], Check] = {}

    def get(self, owner: str, name: str) -> Check | None:
        return self._checks.get((owner, name))

    def of(self, owner: str) -> list[Check]:
        return [check for check in self._checks.values() if check.owner == owner]

    def begin(self, owner: str, name: str, wanted: Callable[[ObjectRef], bool], body: bytes = b"") -> Check:
        self.cancel(owner, name)
        while len(those := self.of(owner)) >= NAMES_MAX:
            self.cancel(owner, those[0].name)
        check = self._checks[owner, name] = Check(owner, name, body=body)
        check.task = self._spawn(self._run(check, wanted), f"verify {name}")
        check.task.add_done_callback(lambda _: _stopped(check))
        return check

    def cancel(self, owner: str, name: str) -> None:
        check = self._checks.pop((owner, name), None)
        if check is not None and check.task is not None:
            check.task.cancel()

    async def _run(self, check: Check, wanted: Callable[[ObjectRef], bool]) -> None:
        blocks = self._store.blocks_of(wanted)
        check.blocks = len(blocks)
        waiting = iter(blocks)

        def note(meta: BlockMeta, error: str) -> None:
            # Also bad blocks that a reader finds meanwhile.
            if wanted(meta.version.ref):
                check.bad_blocks += 1
                if len(check.bad) < _BAD_REPORTED_MAX:
                    check.bad.append({"object": str(meta.version.ref), "block": meta.index, "error": error})

        self._store.on_bad.append(note)
        try:
            async with TaskGroup() as group:
                for _ in range(_AT_ONCE):
                    group.create_task(self._work(check, waiting))
        except asyncio.CancelledError:
            return  # not raised to the task, which would keep it: see `WarmupRunner._run`
        finally:
            self._store.on_bad.remove(note)
        check.state = State.FAILED if check.bad_blocks else State.DONE

    async def _work(self, check: Check, waiting: Iterator[BlockKey]) -> None:
        for block in waiting:
            size = await self._store.verify(block)
            check.verified += 1
            check.bytes += size


def _stopped(check: Check) -> None:
    if check.state is State.RUNNING:
        check.state = State.CANCELLED
