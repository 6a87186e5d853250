"""Which seeds the order search of a planner tries, and their first numbers, made once for all planners.

A planner's own table takes half a second, and each search in vain goes through all of it. So planners try the first
seeds alone. `test_torch_sampler.py` holds the search among all seeds to its promises.
"""

from __future__ import annotations

from unittest.mock import patch

import pytest

from outrider.core.ahead.order import order_search, torch_sampler
from outrider.core.ahead.order.torch_sampler import Seeds
from tests.support.trials import SCALE

ALL_SEEDS = Seeds()
with patch.multiple(torch_sampler, _SEEDS=64, _LIKED=()):
    FIRST_SEEDS = Seeds()


@pytest.fixture(autouse=True)
def first_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(order_search, "Seeds", lambda: FIRST_SEEDS if SCALE == 1 else ALL_SEEDS)
