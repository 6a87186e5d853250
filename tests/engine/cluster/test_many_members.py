"""The work of a node grows with the members, and not with their square: ten times the members, at most twelve times
the lines that run."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from outrider.core.model import ObjectRef
from outrider.engine.status.cluster_part import ClusterPart
from tests.support.counted_work import lines_of
from tests.support.fake_peers import FakeMember
from tests.support.members import Node, Time, cluster, joined_by

if TYPE_CHECKING:
    from collections.abc import Callable

FEW, MANY = 20, 200
NUMBERS = count()


def hello(node: Node) -> None:
    """Each of them comes every five seconds."""
    member = node.wire.services["m7:9482"]
    assert isinstance(member, FakeMember)
    node.members.met(member.mine)


def status(node: Node) -> None:
    part = ClusterPart(node.members, node.engine.metrics, node.clock, source="file:members", domain="cluster")
    assert part.document()["states"]["alive"] == len(node.wire.services)


def second(node: Node) -> None:
    """The work of each second."""
    node.membership.passed(node.clock())
    node.members.health.keep({state.member.name for state in node.membership.view.states})


def owner(node: Node) -> None:
    """A block that nobody asked for yet has an owner."""
    node.membership.view.acting_owner(ObjectRef("train", f"{next(NUMBERS)}"), 0)


@pytest.mark.parametrize("act", [hello, status, second, owner])
async def test_ten_times_the_members_take_at_most_twelve_times_the_work(
    act: Callable[[Node], None], tmp_path: Path
) -> None:
    lines, time = [], Time()
    for members in (FEW, MANY):
        with cluster(tmp_path / str(members), "a", clock=time, sleep=time.sleep) as nodes:
            await time.run(joined_by(nodes["a"], members))
            act(nodes["a"])  # the first call makes what others keep
            lines.append(lines_of(lambda node=nodes["a"]: act(node)))  # type: ignore[misc]
            await time.run(nodes.settle())
    few, many = lines
    assert many <= 12 * few, f"{many / few:.1f} x"
