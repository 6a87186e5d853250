"""The goals of prefetch, simulated with one seed each; `tests.bench.ahead_simulated` prints them.

`make test` simulates a fifth of the shards. The beginning and the end of an epoch then weigh five times as much, and
each bound has slack for that. `make soak` and `make bench-ahead` check the goals themselves, at full size.
"""

from __future__ import annotations

import pytest

from tests.bench.ahead_simulated import READERS, SHARDS, Row, rows
from tests.support.trials import SCALE

FULL = SCALE > 1
# Each reader has one shard that it reads, one that it waits for, and one that is fetched ahead of it.
COUNT, SLACK = (SHARDS, 0.0) if FULL else (SHARDS // 5, 3 * READERS / (SHARDS // 5))


def named(row: Row) -> object:
    # A row that cannot be met says why; should it ever be met, that claim is wrong.
    marks = [pytest.mark.xfail(reason=row.why, strict=True)] if row.why else []
    return pytest.param(row, id=f"{row.world}: {row.figure}", marks=marks)


# The slack would hide that a goal cannot be met.
@pytest.mark.parametrize("row", [named(row) for row in rows(COUNT) if FULL or not row.why])
def test_the_goal_is_met(row: Row) -> None:
    measured = row.worst((1,))
    assert row.met(measured, SLACK), f"{measured:.3f}, not {row.goal}"
