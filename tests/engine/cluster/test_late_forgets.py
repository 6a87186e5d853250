"""A member that has not confirmed a forget as the writer's client has its answer: for how long its own clients may see
the old version, and that nobody else does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from outrider.core.cluster.peer_messages import PeerFailed
from tests.engine.cluster.test_writes import write
from tests.support.engine import REF
from tests.support.fakes import RAMP, Fault
from tests.support.members import Cluster, Node, Time, timed_cluster

OLD, NEW = RAMP[:1000], RAMP[:2000]


async def known_to_all(nodes: Cluster, time: Time) -> tuple[Node, Node, Node]:
    """Each member knows the old version. The authority, which will be notified late; the writer; the third."""
    nodes.origin.put(REF, OLD)
    await nodes.meet()
    for node in nodes:
        assert await node.get() == OLD
    await nodes.settle()
    nodes.clock.advance(5)
    late, (writer, third) = nodes.owner_of(), nodes.others_of()
    return late, writer, third


def to(name: str, strike: Callable[[], Awaitable[None]]) -> Callable[[str], Awaitable[None]]:
    """A way on which only the forgets to the member `name` are struck."""

    async def way(member: str) -> None:
        if member == name:
            await strike()

    return way


def forgets(writer: Node) -> dict[str, float]:
    """The messages that a member sent, by what became of them."""
    value = writer.engine.metrics.value
    return {
        result: value("outrider_peer_forgets_total", result=result)
        for result in ("acknowledged", "late", "unacknowledged")
    }


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("freshness", ["immutable", "ttl:60"])
async def test_a_message_that_comes_after_the_answer_ends_the_old_version_as_it_comes(
    freshness: str, tmp_path: Path
) -> None:  # fmt: skip
    with timed_cluster(tmp_path, freshness=freshness) as (time, nodes):
        late, writer, third = await time.run(known_to_all(nodes, time))
        gate = asyncio.Event()

        async def waits() -> None:
            await gate.wait()

        writer.wire.forgets_way = to(late.name, waits)
        began = time()
        await time.run(write(writer, "PUT", body=NEW))
        assert time() - began == pytest.approx(0.5)
        assert await time.run(late.get()) == OLD
        # Both ask the late member, and do not believe what it knows.
        for node in (writer, third):
            assert await time.run(node.get()) == NEW
        assert await time.run(late.get()) == OLD
        await time.until(time() + 0.1)
        gate.set()
        await time.turns()
        assert await time.run(late.get()) == NEW
        assert forgets(writer) == {"acknowledged": 2, "late": 2, "unacknowledged": 0}
        await time.run(nodes.settle())


async def test_a_message_that_is_given_up_is_followed_by_a_hello_that_reports_the_gap(tmp_path: Path) -> None:
    with timed_cluster(tmp_path, freshness="immutable") as (time, nodes):
        late, writer, third = await time.run(known_to_all(nodes, time))
        writer.wire.forgets_way = to(late.name, never)
        await time.run(write(writer, "PUT", body=NEW))
        assert await time.run(late.get()) == OLD
        assert await time.run(third.get()) == NEW
        # 2 s for each message from when it was sent, and half a second for numbers that overtake each other.
        await time.until(time() + 3)
        assert await time.run(late.get()) == NEW
        assert forgets(writer) == {"acknowledged": 2, "late": 0, "unacknowledged": 2}
        await time.run(nodes.settle())


async def test_a_message_whose_connection_breaks_is_sent_again_while_the_write_waits(tmp_path: Path) -> None:
    with timed_cluster(tmp_path, freshness="immutable") as (time, nodes):
        late, writer, third = await time.run(known_to_all(nodes, time))
        breaks = [2]

        async def broke() -> None:
            if breaks[0]:
                breaks[0] -= 1
                raise PeerFailed("broke")

        writer.wire.forgets_way = to(late.name, broke)
        await time.run(write(writer, "PUT", body=NEW))
        assert [await time.run(node.get()) for node in (late, writer, third)] == [NEW] * 3
        await time.run(nodes.settle())


async def test_a_member_that_no_message_reaches_serves_nothing_older_than_the_time_to_live(tmp_path: Path) -> None:
    """Nor does a member that has it from there: the time to live does not add up."""
    with timed_cluster(tmp_path, freshness="ttl:60") as (time, nodes):
        late, writer, third = await time.run(known_to_all(nodes, time))
        requested_at = time() - 5
        third.engine.versions.gone(REF)
        # Two members are cut off from the writer, and not from each other.
        for node in (late, third):
            writer.membership.unanswered(node.address, time())
        await time.run(write(writer, "PUT", body=NEW))
        await time.until(requested_at + 59)
        asked = nodes.origin.count()
        assert [await time.run(node.get()) for node in (late, third)] == [OLD] * 2
        assert nodes.origin.count() == asked
        await time.until(requested_at + 61)
        assert [await time.run(node.get()) for node in (third, late)] == [NEW] * 2
        await time.run(nodes.settle())


async def test_a_member_that_takes_no_connection_gets_each_message_once_and_then_none(tmp_path: Path) -> None:
    """A hello shows that it is away: the second message of the write is not sent there."""
    with timed_cluster(tmp_path) as (time, nodes):
        late, writer, _ = await time.run(known_to_all(nodes, time))
        writer.wire.services = {at: each for at, each in writer.wire.services.items() if at != late.address}
        began, gate = time(), asyncio.Event()
        nodes.origin.faults.append(Fault(method="PUT", gate=gate))
        writing = asyncio.ensure_future(write(writer, "PUT", body=NEW))
        await time.turns()
        gate.set()
        await time.turns()
        assert writing.done()
        assert time() == began
        assert [name for name, _ in writer.wire.forgets].count(late.name) == 1
        await time.run(nodes.settle())
