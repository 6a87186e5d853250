"""A planner makes the first numbers of each seed that it tries, half a second for all: here one table does for all
planners."""

from __future__ import annotations

import pytest

from outrider.core.ahead.order import order_search
from outrider.core.ahead.order.torch_sampler import Seeds

SEEDS = Seeds()


@pytest.fixture(autouse=True)
def seeds_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_search, "Seeds", lambda: SEEDS)
