"""The comparison of several rounds of `make bench-ahead`: for each epoch, the median of all rounds."""

from __future__ import annotations

import pytest

from tests.bench.ahead import Compared
from tests.bench.ahead_live import Epoch
from tests.support.conditions import Counts

NONE = Counts({}, 0, 0, 0, 0)


def waited(*rounds: tuple[float, ...]) -> list[list[Epoch]]:
    return [[Epoch(1, 0, wait_s, 0.0, 1.0, NONE) for wait_s in its] for its in rounds]


def test_the_median_of_all_rounds_is_compared_for_each_epoch() -> None:
    compared = Compared(waited((2.0, 1.0), (9.0, 1.0), (1.0, 1.0)), waited((12.0, 11.0), (99.0, 11.0), (1.0, 99.0)))
    ours = waited((2.5, 3.0), (3.0, 1.0), (9.0, 2.0))
    first = compared.row("world", 0.09, ours, 1, 1)
    assert first.measured == pytest.approx(0.1)
    assert not first.met
    both = compared.row("world", 0.11, ours, 1, 2)
    assert both.measured == pytest.approx(0.1)
    assert both.met
