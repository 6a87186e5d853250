"""Seed search over real PyTorch data loaders: the order that their samplers draw is found from the first few reads."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from outrider.core.ahead.order.torch_sampler import Draw, order_at_once
from tests.support.client_access import HAS_TORCH
from tests.support.later import Later
from tests.support.planner import Sampled

if not HAS_TORCH:
    pytest.skip("torch is pinned to a release without a wheel for this Python", allow_module_level=True)

torch, loaders = Later("torch"), Later("torch.utils.data")
COUNT, EPOCHS = 900, 3


class Written:
    """A dataset that records which samples are read, in which order, by all processes."""

    def __init__(self, file: Path, count: int = COUNT) -> None:
        self.file = file
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        # Each write appends one whole line, even when several processes write.
        with self.file.open("ab", buffering=0) as file:
            file.write(b"%d\n" % index)
        return index

    def read(self) -> list[int]:
        read = [int(line) for line in self.file.read_text().split()]
        os.truncate(self.file, 0)
        return read


def seeded(seed: int) -> Any:
    return torch.Generator().manual_seed(seed)


def with_a_sampler_of_its_own(data: Written, workers: int) -> Any:
    return loaders.DataLoader(data, 16, sampler=loaders.RandomSampler(data, generator=seeded(1)), num_workers=workers)


def seeded_as_in_torchs_notes_on_reproducibility(data: Written, workers: int) -> Any:
    return loaders.DataLoader(data, 16, shuffle=True, generator=seeded(0), num_workers=workers, drop_last=True)


def with_workers_that_stay(data: Written, workers: int) -> Any:
    return loaders.DataLoader(
        data, 16, shuffle=True, generator=seeded(7), num_workers=workers, persistent_workers=workers > 0
    )


def distributed(data: Written, workers: int) -> Any:
    return loaders.DataLoader(
        data, 16, sampler=loaders.DistributedSampler(data, num_replicas=1, rank=0), num_workers=workers
    )


def one_rank_of_four(data: Written, workers: int) -> Any:
    return loaders.DataLoader(
        data, 16, sampler=loaders.DistributedSampler(data, num_replicas=4, rank=2, seed=42), num_workers=workers
    )


@pytest.mark.parametrize(
    "loader_of",
    [
        with_a_sampler_of_its_own, seeded_as_in_torchs_notes_on_reproducibility, with_workers_that_stay, distributed,
        one_rank_of_four,
    ],
)  # fmt: skip
def test_the_order_that_a_sampler_draws_is_found(loader_of: Callable[[Written, int], Any], tmp_path: Path) -> None:
    count = 4 * COUNT if loader_of is one_rank_of_four else COUNT
    data, proxy = Written(tmp_path / "read", count), Sampled(count)
    # The reads of several workers depend on timing: see `tests/unit/ahead/order/test_order_search.py`.
    loader = loader_of(data, 0)
    orders = []
    for epoch in range(EPOCHS):
        if isinstance(loader.sampler, loaders.DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for _ in loader:
            pass
        orders.append(data.read())
    assert len({tuple(order) for order in orders}) == EPOCHS, "a new order each epoch"
    first, *later = [proxy.foreseen(order, 1) for order in orders]
    assert first > 0.8
    assert min(later) > 0.95


def test_the_order_of_a_sampler_without_a_seed_is_not_found(tmp_path: Path) -> None:
    data, proxy = Written(tmp_path / "read"), Sampled(COUNT)
    torch.seed()
    for _ in loaders.DataLoader(data, 16, shuffle=True):
        pass
    assert proxy.foreseen(data.read(), 80) == 0.0


@pytest.mark.parametrize("count", [1, 2, 10, 1000, 65_537])
@pytest.mark.parametrize("seed", [0, 1, 42, 2**31, 2**32 + 5, 2**63 - 1])
def test_emulated_orders_equal_those_of_torch(seed: int, count: int) -> None:
    generator = seeded(seed)
    spent = 0
    for _ in range(2):
        drawn = torch.randperm(count, generator=generator).tolist()
        assert order_at_once(Draw(seed, spent), count).tolist() == drawn
        torch.empty((), dtype=torch.int64).random_(generator=generator)
        spent += count - 1 + 2
