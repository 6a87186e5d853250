"""One round: its members, faults and clients, and the verdict over it; and the sum of many, as a table."""

from __future__ import annotations

import asyncio
import random
import socket
from collections import Counter
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from outrider.core.cache.freshness import Freshness
from tests.support.child import scratch_directory
from tests.support.faulty_disk import HangingDisk, can_hang
from tests.support.namespaces import Switch, are_here
from tests.support.nodes import Nodes
from tests.trust.histories.bucket import Bucket
from tests.trust.histories.checks import Verdict, judged
from tests.trust.histories.clients import BLOCK, Clients, Plan
from tests.trust.histories.faults import NEEDS_NETWORK, Faults, Kind, schedule
from tests.trust.histories.record import BUCKET, History

if TYPE_CHECKING:
    from tests.support.trials import Trials

AREA = "histories"
KINDS = ("mixed", "headers", "stale", "lost", "twice", "failed")
# Less than all objects have together, so that blocks are evicted.
_CACHE_SIZE = "4MiB"


@dataclass
class Tally:
    """The sum of rounds."""

    seconds: float = 0.0
    members: int = 0
    reads: Counter[str] = field(default_factory=Counter)
    bound_reads: int = 0
    late_reads: int = 0
    writes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(KINDS, 0)))
    stale_s: dict[str, float] = field(default_factory=dict)
    left_out: set[str] = field(default_factory=set)

    def add(self, plan: Plan, history: History, verdict: Verdict, faults: Counter[str]) -> None:
        self.seconds += plan.seconds
        self.members = max(self.members, plan.members)
        self.reads += verdict.outcomes
        self.bound_reads += verdict.bound_reads
        self.late_reads += verdict.late_reads
        self.writes.update(
            f"{write.way}: {'acknowledged' if write.is_acknowledged else 'refused or in doubt'}"
            for write in history.writes.values()
        )
        self.faults += faults
        self.violations.update(violation.kind for violation in verdict.violations)
        self.stale_s[plan.freshness] = max(self.stale_s.get(plan.freshness, 0.0), verdict.stale_s)

    def record(self, trials: Trials) -> None:
        """The rows of the area `histories`."""
        lost = self.violations.total()
        for outcome, times in self.reads.items():
            trials.record(AREA, "reads of all members, beside writes and faults", outcome, times=times)
        trials.record(AREA, "reads of all members, beside writes and faults", "whole", times=0, lost=lost)
        for write, times in self.writes.items():
            way, _, outcome = write.partition(": ")
            trials.record(AREA, f"writes: {way}", outcome, times=times)
        for fault, times in self.faults.items():
            trials.record(AREA, f"fault: {fault}", "as the table of docs/cluster.md allows", times=times)

    def sentence(self) -> str:
        """The last line of a run."""
        stale = ", ".join(f"{seconds:.1f} s with `{freshness}`" for freshness, seconds in sorted(self.stale_s.items()))
        return (
            f"{self.seconds:,.0f} s, {self.members} members: {self.reads.total():,} reads, "
            f"{self.bound_reads:,} of them bound to a write that their member had to know, {self.writes.total():,} "
            f"writes, {self.faults.total():,} faults, {self.violations.total():,} violations. The oldest version that "
            f"a read showed had been overwritten for {stale}."
        )

    def omissions(self) -> str:
        """The line that says which faults this machine cannot have; empty: it can have all."""
        return f"Left out on this machine: {', '.join(sorted(self.left_out))}.\n" if self.left_out else ""


async def play(plan: Plan, tally: Tally) -> Verdict:
    """Play one round, and add it to `tally`."""
    chance = random.Random(plan.seed)
    names = [f"node-{number}" for number in range(1, plan.members + 1)]
    ttl_s = Freshness.parse(plan.freshness).ttl_s
    hello_s = plan.hello_s or 5.0
    # A hello that was under way when the fault ended, and hangs for its 2 s; the next one; the half second for a number
    # that is missing; and a connection that is made anew.
    history = History(ttl_s, 2.0 + 1.2 * hello_s + 1.0 + 0.5 + 2.0, tuple(names))
    left_out = (frozenset() if are_here() else NEEDS_NETWORK) | (frozenset() if can_hang() else {Kind.HANG})
    kinds = [kind for kind in Kind if kind not in left_out]
    tally.left_out |= {kind.value for kind in left_out}
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(scratch_directory("outrider-histories-")))
        switch = stack.enter_context(Switch((BUCKET, *names))) if are_here() else None
        bucket = Bucket(random.Random(f"{plan.seed} bucket"))
        host = "127.0.0.1" if switch is None else switch.address(BUCKET)
        with nullcontext() if switch is None else switch.inside(BUCKET):
            listener = socket.create_server((host, 0))
        await stack.enter_async_context(bucket.serving(listener))
        nodes = _nodes(plan, bucket, directory, switch)
        # One member alone: hits on FUSE are sent in another way than those of a local disk.
        node = chance.choice(nodes.all)
        disks = {}
        if Kind.HANG in kinds:
            place = directory / node.name / "disk"
            disk = disks[node.name] = stack.enter_context(HangingDisk(place))
            node.argv[node.argv.index("--cache-dir") + 1] = str(place / "cache")
            node.argv = disk.wrapped(node.argv)
        stack.push_async_callback(asyncio.to_thread, nodes.stop)
        await asyncio.to_thread(nodes.start)
        up, by_name = set(names), {node.name: node for node in nodes.all}
        faults = Faults(by_name, switch, bucket, history, up, disks)
        clients = await stack.enter_async_context(Clients(by_name, up, bucket, history, plan))
        async with asyncio.TaskGroup() as group:
            clients.tasks(group)
            of_members, of_bucket = schedule(
                chance, plan.seconds, names, kinds, plan.longest_s, history.greeted_s + 4.0
            )
            playing = [group.create_task(faults.play(each)) for each in (of_members, of_bucket)]
            await asyncio.wait([*playing, group.create_task(asyncio.sleep(plan.seconds))])
            clients.stopping = True
        await asyncio.sleep(history.greeted_s + 2.5 + (ttl_s if ttl_s < inf else 0))
        await clients.read_all()
    history.versions = bucket.versions
    verdict = judged(history)
    tally.add(plan, history, verdict, faults.counts)
    return verdict


def _nodes(plan: Plan, bucket: Bucket, directory: Path, switch: Switch | None) -> Nodes:
    nodes = Nodes(
        cast("Any", bucket), directory, plan.members, switch=switch, origin=bucket.endpoint, block_size=str(BLOCK),
        cache_size=_CACHE_SIZE, freshness=plan.freshness, prefetch="off",
    )  # fmt: skip
    for number, node in enumerate(nodes.all):
        node.argv[node.argv.index("outrider")] = "tests.trust.histories.member"
        if plan.hello_s is not None:
            node.environment["HISTORIES_HELLO_S"] = str(plan.hello_s)
        # Members that differ: one prefetches.
        if number == 0:
            node.argv += ["--prefetch", "epoch"]
    return nodes
