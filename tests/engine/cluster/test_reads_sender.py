"""Members notify each other of what their clients read: in batches, with hits at the edge, waiting for nobody."""

from __future__ import annotations

from pathlib import Path

from outrider.core.cluster.messages import READS_MAX, notice_interval_s
from outrider.core.model import ObjectRef
from tests.support.engine import BLOCK, taken
from tests.support.fakes import ramp
from tests.support.members import Node, timed_cluster

EVERY_S = notice_interval_s(2)
REFS = [ObjectRef("train", f"{number:06d}.tar") for number in range(4)]


async def read(node: Node, ref: ObjectRef) -> str:
    """As the server does, and return the answer's `x-cache`."""
    prefetch = node.engine.prefetch
    answer = await node.engine.reads.get(
        ref, {}, lambda version, extent: prefetch.requested("10.0.0.1", version, extent, checksums=False)
    )
    await taken(answer)
    prefetch.sent("10.0.0.1", ref)
    return answer.cache.value


async def test_all_members_learn_of_each_read_and_of_hits(tmp_path: Path) -> None:
    with timed_cluster(tmp_path, policy="epoch") as (time, nodes):
        for ref in REFS:
            nodes.origin.put(ref, ramp(BLOCK))
        await time.run(nodes.meet())
        edge, *others = nodes
        for _ in range(2):
            for ref in REFS:
                cache = await time.run(read(edge, ref))
            await time.until(time() + EVERY_S)
        assert cache == "HIT"
        for other in others:
            notices = [message for name, message in edge.wire.reads_notices if name == other.name]
            assert [each.ref for message in notices for each in message.reads] == [*REFS, *REFS]
            assert {each.reader for message in notices for each in message.reads} == {"10.0.0.1"}
            await time.run(other.engine.prefetch.tick())
            dataset, _ = other.engine.planner.registry.item(REFS[0])
            (job,) = dataset.jobs.values()
            assert job.client == f"{edge.name}/10.0.0.1"
            assert [*map(len, (epoch.log for epoch in job.epochs))] == [4, 4], "two epochs"
            assert not other.wire.reads_notices, "it does not pass on what it received"


async def test_a_member_that_hangs_keeps_nothing_from_the_others(tmp_path: Path) -> None:
    with timed_cluster(tmp_path) as (time, nodes):
        await time.run(nodes.meet())
        edge, silent, other = nodes
        edge.wire.silent.add(silent.address)
        for number in range(2 * READS_MAX):
            edge.reads_sender.opened("a", ObjectRef("b", str(number)), 1)
        await time.until(time() + EVERY_S)
        edge.reads_sender.opened("a", REFS[0], 1)
        await time.until(time() + EVERY_S)
        notified = [name for name, _ in edge.wire.reads_notices]
        assert notified.count(silent.name) == 1, "one message waits for an answer at a time"
        first, second = [message.reads for name, message in edge.wire.reads_notices if name == other.name]
        assert (len(first), first[-1].ref.key) == (READS_MAX, str(2 * READS_MAX - 1)), "the newest reads"
        assert [each.ref for each in second] == [REFS[0]]
