"""Three members through random histories of reads, writes, faults and rings that differ: every read is answered, with
the bytes of one version that is no older than the last write that was acknowledged."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from outrider.core.cluster.ownership import Ring
from outrider.core.errors import InvalidRange, VersionChanged
from outrider.core.model import ObjectRef
from outrider.engine.read.version_answers import NotCacheable
from tests.engine.cluster.test_writes import write
from tests.support.engine import BLOCK, as_large, as_small, by_threads
from tests.support.event_loops import SeededLoop, SeededThreads
from tests.support.fake_peers import PeerFault
from tests.support.fakes import FakeOrigin, ramp
from tests.support.members import Cluster, Node, Time, cluster
from tests.support.trials import rounds

pytestmark = pytest.mark.one_python

KEYS = [ObjectRef("train", name) for name in "xyz"]
SIZES = (0, 1000, BLOCK, 2 * BLOCK + 5)


class History:
    """The versions of each object, and what the members are asked at random."""

    def __init__(self, nodes: Cluster, chance: random.Random) -> None:
        self.nodes = nodes
        self.names = [*nodes.nodes]
        self.chance = chance
        self.versions: dict[ObjectRef, list[bytes]] = {ref: [] for ref in KEYS}
        self.acknowledged = dict.fromkeys(KEYS, 0)
        self.writing: set[ObjectRef] = set()
        for ref in KEYS:
            nodes.origin.put(ref, self.next(ref))
        self.reads = 0
        self.cuts = 0

    def next(self, ref: ObjectRef) -> bytes:
        data = ramp(self.chance.choice(SIZES), 7 * len(self.versions[ref]) + 1)
        self.versions[ref].append(data)
        return data

    def node(self) -> Node:
        return self.nodes[self.chance.choice(self.names)]

    async def read(self) -> None:
        ref = self.chance.choice(KEYS)
        floor = self.acknowledged[ref]
        start = self.chance.choice((0, 0, 0, BLOCK // 2, BLOCK + 3))
        was_writing = ref in self.writing
        before = len(self.versions[ref])
        headers = {} if start == 0 else {"range": f"bytes={start}-"}
        if start and any(len(data) <= start for data in self.versions[ref]):
            headers, start = {}, 0
        try:
            data = await self.node().get(ref, **headers)
        except VersionChanged:
            # An overwrite cuts the answers that are under way.
            assert was_writing or len(self.versions[ref]) > before
            self.cuts += 1
            return
        except InvalidRange:
            # A write meanwhile has made it shorter.
            assert any(len(data) <= start for data in self.versions[ref][floor:])
            return
        except NotCacheable:
            # Overwrites cut two answers: it is forwarded for a while.
            assert len(self.versions[ref]) > 2
            return
        self.reads += 1
        assert data in [version[start:] for version in self.versions[ref][floor:]]

    async def write(self) -> None:
        ref = self.chance.choice(KEYS)
        if ref in self.writing:
            return
        self.writing.add(ref)
        try:
            await write(self.node(), "PUT", f"/train/{ref.key}", self.next(ref))
            self.acknowledged[ref] = len(self.versions[ref]) - 1
        finally:
            self.writing.discard(ref)

    def fault(self) -> None:
        why = self.chance.choice(("connect", "busy", "absent", "refused", "garbage", "changed", None))
        fault = PeerFault(why=why, break_after=None if why else self.chance.choice((0, 1, 999, BLOCK // 2)))
        self.node().wire.faults.append(fault)

    def differ(self) -> None:
        """A member sees another ring, or the right one again."""
        node = self.node()
        node.membership.passed(self.nodes.clock())
        if self.chance.random() < 0.7:
            view = node.membership.view
            everybody = [view.me, *view.alive.values()]
            some = Ring(self.chance.sample(everybody, self.chance.randint(1, len(everybody))))
            node.membership.view = replace(view, ring=some, acting=some)

    def evict(self) -> None:
        store = self.node().engine.store
        store.expel([block for block in store.present() if self.chance.random() < 0.5])

    async def step(self, acts: str) -> None:
        work = []
        for act in acts:
            if act == "r":
                work += [self.read() for _ in range(self.chance.randint(1, 4))]
            elif act == "w":
                work.append(self.write())
            elif act == "t":
                self.nodes.clock.advance(self.chance.choice((0.001, 1.0, 30.0)))
            else:
                {"f": self.fault, "d": self.differ, "e": self.evict}[act]()
        await asyncio.gather(*work)


def played(seed: int, acts: list[str], *, check: object = None) -> tuple[History, FakeOrigin]:
    """Carry the acts out, each group at once."""
    folder, loop, time = Path(tempfile.mkdtemp(prefix="outrider-histories-")), SeededLoop(seed), Time()
    buffer_bytes = (as_large, as_small, by_threads)[seed % 3]
    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        try:
            with cluster(
                folder, clock=time, sleep=time.sleep, buffer_bytes=buffer_bytes, origin=FakeOrigin(chunk_bytes=20_000)
            ) as nodes:
                for node in nodes:
                    node.engine.store.disks[0].work.threads = SeededThreads(loop)

                async def play() -> History:
                    history = History(nodes, random.Random(seed))
                    await nodes.meet()
                    for group in acts:
                        await history.step(group)
                    await nodes.settle()
                    return history

                return runner.run(asyncio.wait_for(time.run(play()), 60)), nodes.origin
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@settings(max_examples=rounds(25), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**16), st.lists(st.text("rrrwtfde", min_size=1, max_size=5), min_size=1, max_size=8))
def test_every_read_is_answered_with_one_version_that_is_no_older_than_the_last_write(
    seed: int, acts: list[str]
) -> None:
    history, _ = played(seed, acts)
    assert history.cuts <= 10 * len(acts)


@settings(max_examples=rounds(10), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**16), st.lists(st.text("r", min_size=1, max_size=5), min_size=1, max_size=8))
@example(75, ["rrrrr"])
def test_without_faults_the_bucket_gives_each_block_at_most_once(seed: int, acts: list[str]) -> None:
    history, origin = played(seed, acts)
    assert origin.body_bytes <= sum(len(versions[0]) for versions in history.versions.values())


@pytest.mark.parametrize("seed", range(3))
def test_a_long_history(seed: int) -> None:
    chance = random.Random(seed)
    history, _ = played(seed, ["".join(chance.choices("rrrwtfde", k=4)) for _ in range(rounds(40))])
    assert history.reads > 30
