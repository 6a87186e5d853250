"""The goals of riding ahead, simulated at full size, one seed each; `tests.bench.ahead_simulated` prints them."""

from __future__ import annotations

import pytest

from tests.bench.ahead_simulated import Row, rows


def named(row: Row) -> object:
    # A row that cannot be met says why; should it ever be met, that claim is wrong.
    marks = [pytest.mark.xfail(reason=row.why, strict=True)] if row.why else []
    return pytest.param(row, id=f"{row.world}: {row.figure}", marks=marks)


@pytest.mark.parametrize("row", [named(row) for row in rows()])
def test_the_goal_is_met(row: Row) -> None:
    measured = row.worst((1,))
    assert row.met(measured), f"{measured:.3f}, not {row.goal}"
