"""Tenants take turns on the line to the origin, by their shares."""

from __future__ import annotations

import pytest

from outrider.core.cache.tenants import TenantShare
from tests.engine.fill.slot_queue import GREEDY, MB, MODEST, Queue, tenants


async def one_by_one(queue: Queue, names: list[str]) -> str:
    """Adds these fills, of which one at a time runs: those with a `g` in their names are of `greedy`. Returns the
    tenants in the order of their slots."""
    await queue.add("first" if names[0][0] != "p" else "p-first")
    for name in names:
        await queue.add(name, left_bytes=MB, ref=GREEDY if "g" in name else MODEST)
    for place in range(len(names) + 1):
        await queue.settle()
        await queue.end(queue.order[place])
    await queue.drain()
    return "".join("g" if "g" in name else "m" for name in queue.order[1:])


@pytest.mark.parametrize("kind", ["p", "d"])
@pytest.mark.parametrize(
    ("lines", "order"),
    [
        ({}, "ggggggmmmm"),
        ({"greedy": 0.5, "modest": 0.5}, "gmgmgmgmgg"),
        ({"greedy": 0.25, "modest": 0.75}, "gmmmgmgggg"),
        ({"greedy": 0.5}, "gmggmggmgm"),
    ],
)
async def test_tenants_take_turns_on_the_line_by_their_shares(kind: str, lines: dict[str, float], order: str) -> None:
    """Where nobody has a share, the first come are the first served. Those without a share divide the rest of the line
    with fills that nobody is known to read."""
    queue = Queue(1, 1, tenants(**lines))
    names = [f"{kind}g{number}" for number in range(6)] + [f"{kind}m{number}" for number in range(4)]
    assert await one_by_one(queue, names) == order


async def test_shares_of_the_line_change_while_fills_wait() -> None:
    of_all = tenants()
    queue = Queue(1, 1, of_all)
    of_all.renew({name: TenantShare(line=0.5) for name in ("greedy", "modest")})
    assert await one_by_one(queue, ["g1", "g2", "m1", "m2"]) == "gmgm"


async def test_a_schedulers_line_has_the_tenants_of_the_other() -> None:
    queue, other = Queue(1, 1, tenants(greedy=0.5, modest=0.5)), Queue(1, 1)
    queue.scheduler.share_line(other.scheduler)
    assert await one_by_one(other, ["g1", "g2", "m1", "m2"]) == "gmgm"
