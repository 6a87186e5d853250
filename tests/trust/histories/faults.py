"""Faults: a schedule that the seed draws, and how each fault is carried out and recorded.

One fault of members is under way at a time, beside one of the bucket; between two there is calm.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from tests.trust.histories.bucket import Conditions
from tests.trust.histories.record import BUCKET, Disturbance, Down

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from tests.support.faulty_disk import HangingDisk
    from tests.support.namespaces import Switch
    from tests.support.nodes import Node
    from tests.trust.histories.bucket import Bucket
    from tests.trust.histories.record import History

_RESET_EVERY_S = 0.3
# Members refuse requests whose date is more than 300 s off.
_CLOCKS_S = (60.0, -60.0, 3600.0, -3600.0)
# Members give a call of the disk 10 s: some hang for longer.
_HANGS_LONGER = 2.0


class Kind(StrEnum):
    KILL = "a member is killed"
    RESTART = "a member is restarted"
    FREEZE = "a member is frozen (SIGSTOP)"
    CLOCK = "a member's clock is wrong"
    HANG = "a member's disk hangs"
    CUT = "a member is cut off"
    PART = "the members are parted"
    ONE_WAY = "one way between two members is cut"
    NO_BUCKET = "a member is cut off from the bucket"
    NO_WAY_TO_BUCKET = "one way between a member and the bucket is cut"
    RESETS = "connections are reset"


NEEDS_NETWORK = frozenset(
    (Kind.CUT, Kind.PART, Kind.ONE_WAY, Kind.NO_BUCKET, Kind.NO_WAY_TO_BUCKET, Kind.RESETS)
)  # fmt: skip
"""These need hosts of their own."""


@dataclass(frozen=True, slots=True)
class Fault:
    """After `calm_s`, for `for_s`. `nodes`: in a random order, of which a fault takes as many as it needs."""

    what: Kind | Conditions
    calm_s: float
    for_s: float
    nodes: Sequence[str] = ()
    number: float = 0.0


def schedule(
    chance: random.Random, seconds: float, nodes: Sequence[str], kinds: Sequence[Kind], longest_s: float, calm_s: float
) -> tuple[list[Fault], list[Fault]]:  # fmt: skip
    """The faults of members, and those of the bucket, for so long. Each kind comes before one comes again. `calm_s`:
    some calms are so long that all members know of all writes by their end."""

    def drawn(kinds: Sequence[Kind | Conditions]) -> list[Fault]:
        faults: list[Fault] = []
        left: list[Kind | Conditions] = []
        spent_s = 0.0
        while True:
            left = left or chance.sample(kinds, len(kinds))
            what = left.pop()
            fault = Fault(
                what, calm_s if chance.random() < 0.4 else chance.uniform(0.2, 0.8) * longest_s,
                chance.uniform(0.05, 1.0) * longest_s * (_HANGS_LONGER if what is Kind.HANG else 1.0),
                chance.sample(nodes, len(nodes)), chance.random(),
            )  # fmt: skip
            spent_s += fault.calm_s + fault.for_s
            if spent_s > seconds:
                return faults
            faults.append(fault)

    return drawn(kinds), drawn(list(Conditions))


@dataclass
class Faults:
    """Carries faults out. `up`: the members that serve. `disks`: by the member; not all members have one that can
    hang."""

    nodes: dict[str, Node]
    switch: Switch | None
    bucket: Bucket
    history: History
    up: set[str]
    disks: dict[str, HangingDisk]
    counts: Counter[str] = field(default_factory=Counter)

    async def play(self, faults: Sequence[Fault]) -> None:
        for fault in faults:
            await asyncio.sleep(fault.calm_s)
            self.counts[fault.what.value if isinstance(fault.what, Kind) else f"the bucket: {fault.what}"] += 1
            if isinstance(fault.what, Conditions):
                began = time.monotonic()
                self.bucket.conditions, self.bucket.probability = fault.what, 0.2 + 0.7 * fault.number
                await asyncio.sleep(fault.for_s)
                self.bucket.conditions = None
                self._disturbed(fault.what, [BUCKET], [], began)
            elif fault.what is Kind.HANG:
                await self._of_a_disk(fault)
            elif fault.what in NEEDS_NETWORK:
                await self._on_the_network(fault)
            else:
                await self._of_a_process(fault)

    def _disturbed(self, why: Kind | Conditions, some: Sequence[str], others: Sequence[str], began: float) -> None:
        self.history.disturbances.append(
            Disturbance(why, frozenset(some), frozenset(others), began, time.monotonic())
        )  # fmt: skip

    # -- processes ----------------------------------------------------------------------------------------------------

    async def _of_a_process(self, fault: Fault) -> None:
        assert isinstance(fault.what, Kind)
        name = fault.nodes[0]
        node = self.nodes[name]
        began = time.monotonic()
        if fault.what is Kind.FREEZE:
            node.send(signal.SIGSTOP)
            await asyncio.sleep(fault.for_s)
            node.send(signal.SIGCONT)
        elif fault.what is Kind.CLOCK:
            await self._again(node, ahead_s=_CLOCKS_S[int(fault.number * len(_CLOCKS_S))])
            await asyncio.sleep(fault.for_s)
            await self._again(node, kill=True)
        else:
            # Some are back before others have noticed.
            pause_s = fault.for_s if fault.number < 0.5 else 0.0
            await self._again(node, kill=fault.what is Kind.KILL, pause_s=pause_s)
        self._disturbed(fault.what, [name], [], began)

    async def _again(self, node: Node, *, kill: bool = False, pause_s: float = 0.0, ahead_s: float = 0.0) -> None:
        """Another process of the member, on the same disk."""
        began = time.monotonic()
        if kill:
            node.send(signal.SIGKILL)
        self.up.discard(node.name)
        await asyncio.to_thread(node.stop)
        number = sum(down.node == node.name for down in self.history.downs)
        node.log.rename(node.log.with_suffix(f".{number}.log"))
        await asyncio.sleep(pause_s)
        node.environment["HISTORIES_CLOCK_S"] = str(ahead_s)
        # In the fork server the product is imported already, with the right clock.
        node.forked = not ahead_s
        await asyncio.to_thread(node.start)
        self.history.downs.append(Down(node.name, began, time.monotonic()))
        self.up.add(node.name)

    # -- disks --------------------------------------------------------------------------------------------------------

    async def _of_a_disk(self, fault: Fault) -> None:
        """It disturbs nobody: a member is notified of writes, and answers, without its disk."""
        name = next(name for name in fault.nodes if name in self.disks)
        disk = self.disks[name]
        disk.hang()
        try:
            await asyncio.sleep(fault.for_s)
        finally:
            # A process that waits for the disk cannot be killed.
            disk.go_on()

    # -- links --------------------------------------------------------------------------------------------------------

    async def _on_the_network(self, fault: Fault) -> None:
        assert isinstance(fault.what, Kind)
        began = time.monotonic()
        begin, end, some, others = self._link_fault(fault)
        await asyncio.to_thread(begin)
        if fault.what is Kind.RESETS:
            for _ in range(int(fault.for_s / _RESET_EVERY_S)):
                await asyncio.sleep(_RESET_EVERY_S)
                await asyncio.to_thread(begin)
        else:
            await asyncio.sleep(fault.for_s)
        await asyncio.to_thread(end)
        self._disturbed(fault.what, some, others, began)

    def _link_fault(
        self, fault: Fault
    ) -> tuple[Callable[[], object], Callable[[], object], Sequence[str], Sequence[str]]:
        """How it begins and ends, and which members are parted from which by it; the latter empty: from all."""
        switch, (name, other, *_) = self.switch, fault.nodes
        assert switch is not None
        if fault.what is Kind.CUT:
            return lambda: switch.cut(name), lambda: switch.mend(name), [name], []
        if fault.what is Kind.RESETS:
            return lambda: switch.reset(name), lambda: None, [name], []
        if fault.what is Kind.PART:
            middle = 1 + int(fault.number * (len(fault.nodes) - 1))
            sides = fault.nodes[:middle], fault.nodes[middle:]
            return lambda: switch.part(*sides), lambda: switch.meet(*sides), *sides
        if fault.what is Kind.ONE_WAY:
            return lambda: switch.mute(name, other), lambda: switch.unmute(name, other), [name], [other]
        ends = (name, BUCKET) if fault.number < 0.5 else (BUCKET, name)
        if fault.what is Kind.NO_WAY_TO_BUCKET:
            return lambda: switch.mute(*ends), lambda: switch.unmute(*ends), [name], [BUCKET]
        return lambda: switch.part([name], [BUCKET]), lambda: switch.meet([name], [BUCKET]), [name], [BUCKET]
