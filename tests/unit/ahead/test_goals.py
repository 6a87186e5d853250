"""The goals of prefetch, simulated with one seed each; `tests.bench.ahead_simulated` prints them.

`make test` simulates an announced order, `make soak` all.
"""

from __future__ import annotations

import pytest

from tests.bench.ahead_simulated import SHARDS, Row, rows
from tests.support.trials import SCALE

SHORT = "announced order, cache 10%"
SIMULATED = [row for row in rows(SHARDS) if SCALE > 1 or row.world == SHORT]


def named(row: Row) -> object:
    # A row that cannot be met says why; should it ever be met, that claim is wrong.
    marks = [pytest.mark.xfail(reason=row.why, strict=True)] if row.why else []
    return pytest.param(row, id=f"{row.world}: {row.figure}", marks=marks)


def test_the_rows_of_the_short_form_are_found_by_their_label() -> None:
    """Without any row pytest would skip the goals."""
    assert [row.figure for row in SIMULATED if row.world == SHORT] == ["hits, epoch 1 too", "traffic from epoch 2"]


@pytest.mark.parametrize("row", [named(row) for row in SIMULATED])
def test_the_goal_is_met(row: Row) -> None:
    measured = row.worst((1,))
    assert row.met(measured), f"{measured:.3f}, not {row.goal}"
