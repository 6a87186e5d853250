"""An operator that may not open gates, or does not know whether it may, closes none."""

from __future__ import annotations

import pytest

from outrider.engine.operator.rights import CHECK_S, Rights
from outrider.operator_ports import KubeError
from tests.support.fake_kube import NAME, FakeKube


class World:
    def __init__(self) -> None:
        self.kube, self.now = FakeKube(), 1000.0
        self.rights = Rights(self.kube, NAME, monotonic=lambda: self.now)


async def test_gates_are_closed_once_the_api_server_has_allowed_to_open_them() -> None:
    world = World()
    assert not world.rights.may_open()
    await world.rights.step()
    assert world.rights.may_open()


@pytest.mark.parametrize("call", ["list pods", "patch pods", "list namespaces", "update leases"])
async def test_a_right_that_is_taken_away_ends_that_at_once(call: str) -> None:
    world = World()
    await world.rights.step()
    world.kube.refuses = {call}
    with pytest.raises(KubeError, match="may not") as raised:
        await world.rights.step()
    assert raised.value.code == 403
    assert not world.rights.may_open()
    world.kube.refuses = set()
    await world.rights.step()
    assert world.rights.may_open()


async def test_an_answer_counts_while_the_api_server_is_away_for_a_moment() -> None:
    world = World()
    await world.rights.step()
    world.kube.away = True
    for after_s, may in ((CHECK_S, True), (2 * CHECK_S, True), (90.0, False)):
        world.now = 1000.0 + after_s
        with pytest.raises(KubeError):
            await world.rights.step()
        assert world.rights.may_open() is may
