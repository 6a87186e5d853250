"""Seed search over unmodified WebDataset pipelines: the shuffle of their workers is found in the first epoch."""

from __future__ import annotations

import io
import random
import tarfile
from pathlib import Path
from typing import Any

import pytest

from outrider.core.ahead.order.torch_sampler import at_once
from outrider.core.ahead.order.webdataset_shuffle import Shuffle, order_of
from tests.support.client_access import HAS_TORCH
from tests.support.later import Later
from tests.support.planner import Sampled

if not HAS_TORCH:
    pytest.skip("torch is pinned to a release without a wheel for this Python", allow_module_level=True)

wds = Later("webdataset")
COUNT, WORKERS, EPOCHS = 480, 4, 2


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("shards")
    for number in range(COUNT):
        with tarfile.open(folder / f"train-{number:06d}.tar", "w") as tar:
            member = tarfile.TarInfo(f"{number}.cls")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"1"))
    return f"{folder}/train-{{000000..{COUNT - 1:06d}}}.tar"


def read(shards: str, epochs: int = EPOCHS, **how: Any) -> list[list[int]]:
    """The shards that the workers of a loader open, in each of its epochs: each worker in turn reads a sample."""
    dataset = wds.WebDataset(shards, **how).map(lambda sample: int(Path(sample["__url__"]).stem.split("-")[1]))
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=WORKERS, persistent_workers=True)
    return [list(loader) for _ in range(epochs)]


@pytest.mark.parametrize("how", [
    # Without a seed WebDataset draws one from 0 to a million.
    {"shardshuffle": 1000},
    {"shardshuffle": 1000, "seed": 7, "detshuffle": True},
])  # fmt: skip
def test_the_order_of_its_workers_is_found(shards: str, how: dict[str, Any]) -> None:
    random.seed(43)  # WebDataset draws 40424: most of the million need not be tried
    orders = read(shards, **how)
    assert [sorted(order) for order in orders] == [list(range(COUNT))] * EPOCHS
    assert (orders[0] == orders[1]) is not how.get("detshuffle", False)
    proxy = Sampled(COUNT)
    first, *later = [proxy.foreseen(order, 2 * WORKERS) for order in orders]
    assert first > 0.92
    assert min(later) > 0.97


def test_the_emulated_shuffle_equals_webdatasets(shards: str) -> None:
    for buffer in (1000, 100, 10):
        [order] = read(shards, 1, shardshuffle=buffer, seed=3)
        ours = order_of(Shuffle(WORKERS, buffer, tuple((worker, 3) for worker in range(WORKERS))), COUNT, {}, {})
        assert order == at_once(ours).tolist()
