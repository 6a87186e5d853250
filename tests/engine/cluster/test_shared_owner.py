"""An owner whose link many nodes share is no slow member, and not away when no connection to it is made."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.engine import BLOCK
from tests.support.fake_peers import PeerFault
from tests.support.fakes import RAMP
from tests.support.members import timed_cluster

DATA = RAMP[:BLOCK]


async def test_an_owner_reports_what_it_sends_to_all(tmp_path: Path) -> None:
    with timed_cluster(tmp_path) as (time, nodes):
        await time.run(nodes.meet())
        ref = nodes.ref_owned_by("a")
        nodes.origin.put(ref, DATA)
        assert await time.run(nodes["b"].get(ref)) == DATA
        await time.until(time() + 1)
        assert await time.run(nodes["c"].get(ref)) == DATA
        sending = nodes["c"].members.health.of("a").sending
        # One body to `b` of late, but for its last piece, which nobody waited for; and now one to `c`.
        assert 0.8 * BLOCK < sending.bytes_s <= BLOCK
        assert sending.bodies == 1
        # A reply without bytes reports nothing, and forgets nothing.
        nodes["c"].members.health.of("a").replied(0.0)
        assert nodes["c"].members.health.of("a").sending == sending


@pytest.mark.parametrize(("served_s_ago", "failures", "by_owner"), [(0.5, 1, True), (0.5, 2, False), (5.0, 1, False)])
async def test_an_owner_that_serves_is_tried_again_when_no_connection_is_made(
    served_s_ago: float, failures: int, by_owner: bool, tmp_path: Path
) -> None:
    """Its link is full. Another member would ask the bucket for the block once more."""
    with timed_cluster(tmp_path) as (time, nodes):
        await time.run(nodes.meet())
        ref = nodes.ref_owned_by("a")
        nodes.origin.put(ref, DATA)
        owner, edge = nodes["a"], nodes["b"]
        assert await time.run(owner.get(ref)) == DATA
        await time.run(edge.engine.version_lookup.ask(ref, None))
        edge.members.health.of("a").flowed(1, 0.0, time() - served_s_ago)
        edge.wire.faults.append(PeerFault(failures, "a", why="connect"))
        asked = nodes.origin.count("GET")
        edge.wire.reads.clear()
        assert await time.run(edge.get(ref)) == DATA
        assert [name for name, _ in edge.wire.reads] == (["a"] * 2 if by_owner else ["a"] * failures + ["c"])
        assert nodes.origin.count("GET") - asked == (0 if by_owner else 1)
