"""The shares of the limit on open files never exceed it together, and leave each part enough to go on."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.core.cache.descriptor_budget import DescriptorBudget, TooFewDescriptors

AT_REST = 28
"""The descriptors that an idle process with eight mounts holds, as measured."""


def budget(open_files: int, most: int = 10_000) -> DescriptorBudget:
    return DescriptorBudget.of(open_files, clients_max=most, exchanges_max=min(most, 128), fills_max=min(most, 64))


@given(st.integers(0, 100_000), st.integers(1, 10_000))
def test_the_shares_fit_into_the_limit(open_files: int, most: int) -> None:
    try:
        shares = budget(open_files, most)
    except TooFewDescriptors:
        return
    connections = shares.clients + shares.turned_away + shares.exchanges
    assert AT_REST + 2 * connections + shares.fills + shares.block_files <= open_files
    assert min(shares.clients, shares.exchanges, shares.fills) >= min(2, most)
    assert shares.block_files >= shares.clients, "each client may read a block"


def test_a_limit_of_usual_size_leaves_the_settings_as_they_are() -> None:
    assert budget(65_536, most=8192) == DescriptorBudget(8192, 256, 128, 64, 21_553)


def test_too_low_a_limit_is_refused_with_the_number_that_is_needed() -> None:
    with pytest.raises(TooFewDescriptors, match="is 63, and 64 are needed"):
        budget(63)
    assert budget(64).clients == 2
