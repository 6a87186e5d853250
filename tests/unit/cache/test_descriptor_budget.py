"""The shares of the limit on open files never exceed it together, and leave each part enough to go on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.descriptor_budget import DescriptorBudget, TooFewDescriptors

AT_REST, AT_REST_OF_A_WORKER = 16, 6
"""The descriptors that an idle process holds, as measured."""


def budget(open_files: int, workers: int = 1, most: int = 10_000) -> DescriptorBudget:
    return DescriptorBudget.of(
        open_files, workers=workers, clients_max=most, exchanges_max=min(most, 128), fills_max=min(most, 64)
    )


@given(st.integers(0, 100_000), st.integers(1, 64), st.integers(1, 10_000))
def test_the_shares_fit_into_the_limit(open_files: int, workers: int, most: int) -> None:
    try:
        shares = budget(open_files, workers, most)
    except TooFewDescriptors:
        return
    held = AT_REST + (workers - 1) * AT_REST_OF_A_WORKER
    held += 2 * (shares.clients + shares.turned_away + shares.exchanges) + shares.fills + shares.block_files
    assert held <= open_files
    assert min(shares.clients, shares.exchanges, shares.fills) >= min(2, most)
    assert shares.block_files >= shares.clients, "each client may read a block"


def test_a_limit_of_usual_size_leaves_the_settings_as_they_are() -> None:
    assert budget(65_536, most=8192) == DescriptorBudget(8192, 256, 128, 64, 21_557)


@pytest.mark.parametrize(("workers", "least"), [(1, 52), (4, 70)])
def test_too_low_a_limit_is_refused_with_the_number_that_is_needed(workers: int, least: int) -> None:
    with pytest.raises(TooFewDescriptors, match=f"is {least - 1}, and {least} are needed"):
        budget(least - 1, workers)
    assert budget(least, workers).clients == 2
